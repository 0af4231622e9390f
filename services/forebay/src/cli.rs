//! The commands, and the setup before one of them runs.

use std::{io::IsTerminal as _, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};
use command_line::{Log, Process, failure::Failure, globals::Globals};

use crate::{
    access, audit, cancel, cas, completions, credential, credential_helper, doctor, drain, env, exec,
    executors, get,
    lab::{self, LabCommand},
    logs, ls, policy_line, pools, quota, report, schema, serve, settings_list, submit, submit_args, top,
    topology, up, watch, why, workers,
};

const UP_EXAMPLES: &str = "\
Examples:
  forebay up
      runs nats-server, redis-server and every service until Ctrl-C; all data is in ./forebay-data
  forebay up --autoscale workers=0..4
      scales from zero to four workers, depending on the waiting builds
  forebay up --data /tmp/farm --nats-port 0 --redis-port 0 --http-port 0 --grpc-port 0
      runs a second farm on free ports; forebay submit --data /tmp/farm uses it";

/// A build farm on NATS JetStream
///
/// Exit codes: 0 succeeded, 1 the build or the command failed, 2 invalid usage or input, 3 cancelled or expired,
/// 4 a server or service is unreachable. With --exit-code command: the exit code of the build's command.
#[derive(Debug, Parser)]
#[command(name = "forebay", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: AnyCommand,
}

#[derive(Debug, Subcommand)]
enum AnyCommand {
    #[command(flatten)]
    Own(Command),
    #[command(flatten)]
    Lab(LabCommand),
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole farm on this machine
    #[command(after_help = UP_EXAMPLES)]
    Up(up::UpArgs),
    /// Run one or more services
    Serve(serve::ServeArgs),
    /// Submit a build to the queue
    Submit(Box<submit_args::SubmitArgs>),
    /// Follow a build until it ends
    Watch(watch::WatchArgs),
    /// Print the output of a build so far
    Logs(logs::LogsArgs),
    /// Show a build, or download one of its output files
    Get(get::GetArgs),
    /// Cancel a queued or running build
    Cancel(cancel::CancelArgs),
    /// Explain why a build is waiting
    Why(why::WhyArgs),
    /// List recent builds, newest first
    Ls(ls::LsArgs),
    /// Show the state of the farm, live in the terminal
    Top(top::TopArgs),
    /// Show size, targets, waits and times of builds by priority
    Report(report::ReportArgs),
    /// Run one command as a cached, sandboxed action
    #[command(after_help = exec::EXAMPLES)]
    Exec(Box<exec::ExecArgs>),
    /// Upload, download and list blobs and folders in the content-addressable store
    Cas(Box<cas::CasArgs>),
    /// List live workers and their builds
    Workers,
    /// List live executors and their load
    Executors,
    /// Show the target size of each autoscaled pool and why
    Pools,
    /// Drain a worker or executor: finish running work, accept nothing new
    Drain(drain::DrainArgs),
    /// Propose, approve, list and remove environments, the images that the farm makes
    Env(env::EnvArgs),
    /// Make API keys for callers of gateways, and show what a credential may do
    Credential(credential::CredentialArgs),
    /// Answer Bazel, which asks for the credentials of a request
    CredentialHelper(credential_helper::CredentialHelperArgs),
    /// Show the usage and quotas of groups, and set quotas
    Quota(quota::QuotaArgs),
    /// Show what callers did to the farm, and what they were refused
    Audit(audit::AuditArgs),
    /// Query the scheduler's decisions (JSON lines in, JSON lines out)
    Policy(policy_line::PolicyArgs),
    /// Describe who may use the bus and the index, and configure nats-server and Redis
    Access(Box<access::AccessArgs>),
    /// Show the streams, buckets and consumers of a farm
    Topology(topology::TopologyArgs),
    /// Check that all dependencies and services are healthy
    Doctor(doctor::DoctorArgs),
    /// List all settings with their descriptions, values and defaults
    Settings,
    /// Stop the processes of a killed `forebay up`; `up` starts this automatically
    #[command(hide = true)]
    Watchdog,
    /// Print the JSON Schema of every public message
    Schema(schema::SchemaArgs),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Name of the process in logs and traces.
    fn name(&self) -> &'static str {
        match self {
            Self::Up(_) => "up",
            Self::Serve(args) => args.name(),
            Self::Watchdog => up::WATCHDOG,
            Self::Submit(_)
            | Self::Watch(_)
            | Self::Logs(_)
            | Self::Get(_)
            | Self::Cancel(_)
            | Self::Why(_)
            | Self::Env(_)
            | Self::Credential(_)
            | Self::CredentialHelper(_)
            | Self::Quota(_)
            | Self::Audit(_)
            | Self::Policy(_)
            | Self::Ls(_)
            | Self::Report(_)
            | Self::Top(_)
            | Self::Exec(_)
            | Self::Cas(_)
            | Self::Workers
            | Self::Executors
            | Self::Pools
            | Self::Drain(_)
            | Self::Access(_)
            | Self::Topology(_)
            | Self::Doctor(_)
            | Self::Settings
            | Self::Schema(_)
            | Self::Completions(_) => "cli",
        }
    }

    /// Services log at level `info`; commands, and `up` on a terminal, log warnings only. `top` shows on its screen what
    /// fails, and a line of a log would destroy the screen.
    fn log_filter(&self) -> &'static str {
        if matches!(self, Self::Top(_)) && std::io::stderr().is_terminal() {
            "off"
        } else if self.name() == "cli" || self.is_quiet() {
            "warn"
        } else {
            "info"
        }
    }

    /// Whether this is an `up` on a terminal: its log goes to a file, and only problems go to the terminal.
    fn is_quiet(&self) -> bool {
        matches!(self, Self::Up(args) if !args.verbose) && std::io::stderr().is_terminal()
    }
}

impl Cli {
    /// Runs the command to completion.
    pub(crate) fn run(self) -> ExitCode {
        self.try_run().unwrap_or_else(|failure| failure.report())
    }

    fn try_run(self) -> Result<ExitCode, Failure> {
        let Self { globals, command } = self;
        let command = match command {
            AnyCommand::Own(command) => command,
            AnyCommand::Lab(_) => return Err(lab::run()),
        };
        let alone = matches!(&command, Command::Doctor(args) if !args.asks_a_farm())
            || matches!(&command, Command::Access(args) if !args.asks_a_farm())
            || matches!(&command, Command::Policy(_) | Command::Schema(_) | Command::Completions(_));
        let file = command.is_quiet().then_some("logs/up.log");
        let process = Process {
            name: command.name(),
            log: Log { filter: command.log_filter(), file },
            asks_a_farm: !alone,
            is_one_loop: matches!(&command, Command::Serve(args) if args.is_one_loop()),
        };
        process.run(&globals, async |settings| Box::pin(dispatch(command, &globals, settings)).await)
    }
}

async fn dispatch(
    command: Command,
    globals: &Globals,
    settings: settings::Settings,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(args) => up::run(args, globals, settings).await,
        Command::Watchdog => up::watchdog(&settings).await,
        Command::Serve(args) => serve::run(&args, globals, settings).await,
        Command::Submit(args) => submit::run(&args, globals, &settings).await,
        Command::Watch(args) => watch::run(args, globals, &settings).await,
        Command::Logs(args) => logs::run(args, globals, &settings).await,
        Command::Get(args) => get::run(args, globals, &settings).await,
        Command::Cancel(args) => cancel::run(args, globals, &settings).await,
        Command::Why(args) => why::run(args, globals, &settings).await,
        Command::Env(args) => env::run(args, globals, &settings).await,
        Command::Credential(args) => credential::run(args, globals, &settings).await,
        Command::CredentialHelper(args) => credential_helper::run(&args, &settings),
        Command::Quota(args) => quota::run(args, globals, &settings).await,
        Command::Audit(args) => audit::run(args, globals, &settings).await,
        Command::Policy(args) => policy_line::run(&args),
        Command::Ls(args) => ls::run(&args, globals, &settings).await,
        Command::Report(args) => report::run(&args, globals, &settings).await,
        Command::Exec(args) => exec::run(*args, globals, &settings).await,
        Command::Cas(args) => cas::run(*args, globals, &settings).await,
        // Boxed: its state is large.
        Command::Top(args) => Box::pin(top::run(args, globals, &settings)).await,
        Command::Workers => workers::run(globals, &settings).await,
        Command::Executors => executors::run(globals, &settings).await,
        Command::Pools => pools::run(globals, &settings).await,
        Command::Drain(args) => drain::run(&args, globals, &settings).await,
        Command::Access(args) => access::run(*args, globals, &settings).await,
        Command::Topology(args) => topology::run(&args, globals, &settings).await,
        Command::Doctor(args) => doctor::run(&args, globals, &settings).await,
        Command::Settings => settings_list::run(globals, &settings),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args, &mut Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
