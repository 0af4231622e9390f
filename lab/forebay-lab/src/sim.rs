//! `forebay sim`: simulates the decisions of the farm in virtual time.

mod estimate;
mod files;
mod quota;
mod record;
mod run;
mod scale;
mod source;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use command_line::{failure::Failure, globals::Globals};
use settings::Settings;

/// Options of `forebay sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Simulate quota groups under changing load: governor and dispatcher, second by second
    #[command(after_help = quota::HELP)]
    Quota(Box<quota::SimQuotaArgs>),
    /// Simulate queue policies: generated or recorded streams of jobs, with one queue or one per worker
    #[command(after_help = run::HELP)]
    Run(Box<run::SimRunArgs>),
    /// Evaluate estimates of processing times on generated or recorded streams
    #[command(after_help = estimate::HELP)]
    Estimate(Box<estimate::SimEstimateArgs>),
    /// Simulate autoscaling: a planned pool compared with two of fixed size
    #[command(after_help = scale::HELP)]
    Scale(Box<scale::SimScaleArgs>),
    /// Record the builds of a farm, for `sim run --replay`
    #[command(after_help = record::HELP)]
    Record(record::SimRecordArgs),
}

impl SimArgs {
    /// Whether the command connects to a farm, and so needs the settings.
    pub(crate) fn asks_a_farm(&self) -> bool {
        matches!(self.what, SimCommand::Record(_))
    }
}

/// Runs the chosen simulation and prints the result.
pub(crate) async fn run(args: &SimArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    match &args.what {
        SimCommand::Quota(args) => quota::quota(args, globals)?,
        SimCommand::Run(args) => run::run(args, globals)?,
        SimCommand::Estimate(args) => estimate::estimate(args, globals)?,
        SimCommand::Scale(args) => scale::scale(args, globals)?,
        SimCommand::Record(args) => return record::run(args, globals, settings).await,
    }
    Ok(ExitCode::SUCCESS)
}
