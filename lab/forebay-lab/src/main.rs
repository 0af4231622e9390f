//! `forebay-lab`: benchmarks, checks of conformance and the simulator, as `forebay bench`, `conform` and `sim`.

mod bench;
mod conform;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use command_line::{Log, Process, failure::Failure, globals::Globals};
use settings::Settings;

/// The laboratory of Forebay, a build farm
///
/// Exit codes: 0 succeeded, 1 a check or benchmark failed, 2 invalid usage or input, 4 a server or service is unreachable.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a Remote Execution API server against the specification
    Conform(Box<conform::ConformArgs>),
    /// Simulate scheduling decisions in virtual time
    Sim(sim::SimArgs),
    /// Benchmark Forebay on this machine
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let Cli { globals, command } = Cli::parse();
    let process = Process {
        name: "cli",
        log: Log { filter: "warn", file: None },
        asks_a_farm: matches!(&command, Command::Sim(args) if args.asks_a_farm()),
        is_one_loop: false,
    };
    let code = process.run(&globals, async |settings| dispatch(command, &globals, &settings).await);
    code.unwrap_or_else(|failure| failure.report())
}

async fn dispatch(command: Command, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    match command {
        Command::Conform(args) => conform::run(*args, globals).await,
        Command::Sim(args) => sim::run(&args, globals, settings).await,
        Command::Bench(args) => bench::run(&args, globals).await,
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
