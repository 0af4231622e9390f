//! The commands, and what is set up before one runs.

use std::{io::IsTerminal as _, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{
    bench, cancel, cas, completions, conform, doctor, drain, exec, executors, failure::Failure, get,
    globals::Globals, logs, ls, policy_line, pools, quota, schema, serve, sim, submit, topology, up, watch,
    why, workers,
};

const UP_EXAMPLES: &str = "\
Examples:
  forebay up
      runs nats-server, redis-server and every service until Ctrl-C; keeps everything in ./forebay-data
  forebay up --autoscale workers=0..4
      has as many workers as the builds that wait need, up to four
  forebay up --data /tmp/farm --nats-port 0 --redis-port 0 --http-port 0
      runs another farm beside it on free ports; forebay submit --data /tmp/farm finds it";

/// A build farm on NATS JetStream
///
/// Exit codes: 0 succeeded, 1 the build failed, 2 bad usage or bad input, 3 cancelled or expired,
/// 4 a server or service is not reachable. With --exit-code command, those of the command.
#[derive(Debug, Parser)]
#[command(name = "forebay", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole farm on this machine
    #[command(after_help = UP_EXAMPLES)]
    Up(up::UpArgs),
    /// Run one or more services
    Serve(serve::ServeArgs),
    /// Queue a build
    Submit(Box<submit::SubmitArgs>),
    /// Follow a build until it ends
    Watch(watch::WatchArgs),
    /// Print what a build has written until now
    Logs(logs::LogsArgs),
    /// Show a build, or fetch a file that it kept
    Get(get::GetArgs),
    /// End a build
    Cancel(cancel::CancelArgs),
    /// Say why a build waits
    Why(why::WhyArgs),
    /// List recent builds
    Ls(ls::LsArgs),
    /// Run one command as an action, cached and confined
    #[command(after_help = exec::EXAMPLES)]
    Exec(Box<exec::ExecArgs>),
    /// Put blobs and folders into the content-addressable store, and get them
    Cas(Box<cas::CasArgs>),
    /// Check a server of the Remote Execution API against the specification
    Conform(Box<conform::ConformArgs>),
    /// List the live workers
    Workers,
    /// List the live executors, and how full they are
    Executors,
    /// Show how many processes the pools that are scaled should have, and why
    Pools,
    /// Have a worker or an executor finish what runs and take nothing new
    Drain(drain::DrainArgs),
    /// Show what quota groups use and may use, and set their quotas
    Quota(quota::QuotaArgs),
    /// Ask for a decision of the scheduler, one JSON a line
    Policy(policy_line::PolicyArgs),
    /// Run the decisions of the farm in virtual time
    Sim(sim::SimArgs),
    /// Show the streams, buckets and consumers that a farm uses
    Topology(topology::TopologyArgs),
    /// Measure what this machine does
    Bench(bench::BenchArgs),
    /// Check that everything a farm needs is there and works
    Doctor,
    /// End what a killed `forebay up` left; `up` starts this by itself
    #[command(hide = true)]
    Watchdog,
    /// Print the JSON Schemas of every public message
    Schema(schema::SchemaArgs),
    /// Print what a shell needs to complete commands and options
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// The name that logs and traces show.
    fn name(&self) -> &'static str {
        match self {
            Self::Up(_) => "up",
            Self::Serve(args) => args.name(),
            Self::Watchdog => up::watchdog::NAME,
            Self::Submit(_)
            | Self::Watch(_)
            | Self::Logs(_)
            | Self::Get(_)
            | Self::Cancel(_)
            | Self::Why(_)
            | Self::Quota(_)
            | Self::Policy(_)
            | Self::Sim(_)
            | Self::Ls(_)
            | Self::Exec(_)
            | Self::Cas(_)
            | Self::Conform(_)
            | Self::Workers
            | Self::Executors
            | Self::Pools
            | Self::Drain(_)
            | Self::Topology(_)
            | Self::Bench(_)
            | Self::Doctor
            | Self::Schema(_)
            | Self::Completions(_) => "cli",
        }
    }

    /// Servers log what they do; a command only what is wrong, and so does `up` to a person.
    fn log_filter(&self) -> &'static str {
        if self.name() == "cli" || self.is_quiet() { "warn" } else { "info" }
    }

    /// Whether it is an `up` whose log goes to a file, and only problems to the terminal.
    fn is_quiet(&self) -> bool {
        matches!(self, Self::Up(args) if !args.verbose) && std::io::stderr().is_terminal()
    }
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> ExitCode {
        self.try_run().unwrap_or_else(|failure| failure.report())
    }

    fn try_run(self) -> Result<ExitCode, Failure> {
        // A file that is wrong for a farm is no matter of what asks none.
        let alone = matches!(&self.command, Command::Sim(args) if !args.asks_a_farm())
            || matches!(&self.command, Command::Policy(_) | Command::Schema(_) | Command::Completions(_));
        let settings = if alone { settings::Settings::default() } else { self.globals.settings()? };
        let log = if settings.log_format == "json" {
            telemetry::LogFormat::Json
        } else {
            telemetry::LogFormat::Human
        };
        let instance = format!("{}-{}", self.command.name(), std::process::id());
        let mut telemetry = telemetry::Settings::from_env(self.command.name(), &instance, log);
        if std::env::var_os("FOREBAY_LOG").is_none() {
            self.command.log_filter().clone_into(&mut telemetry.filter);
            telemetry.file = self.command.is_quiet().then(|| settings.data.join("logs/up.log"));
        }
        // A service that `up` started has what `up` warned of.
        if std::env::var_os("FOREBAY_LISTEN_FILE").is_none() {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            telemetry.warnings.extend(settings::unknown_variables(names));
        }
        let guard = telemetry::init_with(telemetry);
        let mut runtime = if matches!(&self.command, Command::Serve(args) if args.is_one_loop()) {
            tokio::runtime::Builder::new_current_thread()
        } else {
            tokio::runtime::Builder::new_multi_thread()
        };
        let runtime =
            runtime.enable_all().build().map_err(|error| Failure::new(1, "cannot start threads", &error))?;
        let code = runtime.block_on(dispatch(self.command, &self.globals, settings));
        // A read from a terminal or a slow disk must not keep a finished command.
        runtime.shutdown_background();
        drop(guard);
        code
    }
}

async fn dispatch(
    command: Command,
    globals: &Globals,
    settings: settings::Settings,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(args) => {
            Ok(ExitCode::from(up::run(args, settings, globals.wait()?.patience(), globals.json).await?))
        }
        Command::Watchdog => Ok(up::watchdog::run(&settings).await?),
        Command::Serve(args) => serve::run(&args, globals, settings).await,
        Command::Submit(args) => submit::run(&args, globals, &settings).await,
        Command::Watch(args) => watch::run(args, globals, &settings).await,
        Command::Logs(args) => logs::run(args, globals, &settings).await,
        Command::Get(args) => get::run(args, globals, &settings).await,
        Command::Cancel(args) => cancel::run(args, globals, &settings).await,
        Command::Why(args) => why::run(args, globals, &settings).await,
        Command::Quota(args) => quota::run(args, globals, &settings).await,
        Command::Policy(args) => policy_line::run(&args),
        Command::Sim(args) => sim::run(&args, globals, &settings).await,
        Command::Ls(args) => ls::run(&args, globals, &settings).await,
        Command::Exec(args) => exec::run(*args, globals, &settings).await,
        Command::Cas(args) => cas::run(*args, globals, &settings).await,
        Command::Conform(args) => conform::run(*args, globals).await,
        Command::Workers => workers::run(globals, &settings).await,
        Command::Executors => executors::run(globals, &settings).await,
        Command::Pools => pools::run(globals, &settings).await,
        Command::Drain(args) => drain::run(&args, globals, &settings).await,
        Command::Topology(args) => topology::run(&args, globals, &settings).await,
        Command::Bench(args) => Box::pin(bench::run(&args, globals, &settings)).await,
        Command::Doctor => doctor::run(globals, &settings).await,
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
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
