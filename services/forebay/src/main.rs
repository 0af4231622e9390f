//! `forebay`: the single binary with every service, the command line, and `up`, which runs a whole farm.

mod access;
mod audit;
mod build_status;
mod bytes_text;
mod cancel;
mod cas;
mod cli;
mod clock_text;
mod completions;
mod context_folder;
mod credential;
mod credential_helper;
mod doctor;
mod download;
mod drain;
mod env;
mod exec;
mod exec_outputs;
mod executors;
mod exit_code;
mod farm;
mod fetch;
mod file_argument;
mod fold;
mod follow;
mod frames;
mod get;
mod job;
mod job_text;
mod lab;
mod last_build;
mod logs;
mod ls;
mod moment;
mod policy_line;
mod pools;
mod present;
mod progress;
mod quota;
mod reconnect;
mod record_text;
mod remote;
mod replaced_file;
mod report;
mod request;
mod schema;
mod serve;
mod settings_list;
mod style;
mod submit;
mod submit_args;
mod submit_trace;
mod top;
mod topology;
mod up;
mod user;
mod watch;
mod why;
mod workers;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // A shim creates namespaces, so no thread may have been started before this point.
    if std::env::args_os().nth(1).is_some_and(|first| first == "shim") {
        return shim::main();
    }
    cli::Cli::parse().run()
}
