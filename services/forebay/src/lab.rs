//! `forebay bench`, `conform` and `sim`: commands of the laboratory, which is a program by itself.

use std::{env, ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use clap::{Args, Subcommand};
use command_line::{
    failure::{FAILED, Failure, USAGE},
    find_program,
};

const PROGRAM: &str = "forebay-lab";

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Check a Remote Execution API server against the specification
    #[command(disable_help_flag = true)]
    Conform(LabArgs),
    /// Simulate scheduling decisions in virtual time
    #[command(disable_help_flag = true)]
    Sim(LabArgs),
    /// Benchmark Forebay on this machine
    #[command(disable_help_flag = true)]
    Bench(LabArgs),
}

/// Arguments for `forebay-lab`. It reads them, and the global options, from the whole command line.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// Arguments of forebay-lab, which runs this command; --help lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Becomes `forebay-lab` with the arguments of this process. Returns only if that fails.
pub(crate) fn run() -> Failure {
    let Some(program) = find_program(PROGRAM) else {
        let advice =
            "build it with `make lab` or `cargo build -p forebay-lab`, install it with `make install-lab`";
        let line =
            format!("{PROGRAM}, which runs this command, is neither beside forebay nor in PATH: {advice}");
        return Failure::plain(USAGE, line);
    };
    let mut own = env::args_os();
    let name = own.next().unwrap_or_else(|| PROGRAM.into());
    // Usage lines name the command that the user typed.
    let error = Command::new(&program).arg0(name).args(own).exec();
    Failure::new(FAILED, format!("cannot run {}", program.display()), &error)
}
