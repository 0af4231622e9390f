//! `forebay sim`: the decisions of the farm in virtual time.

mod estimate;
mod files;
mod quota;
mod record;
mod recorder;
mod run;
mod scale;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use settings::Settings;

use crate::{failure::Failure, globals::Globals};

/// Options of `forebay sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Quota groups under changing load: the governor and the dispatcher, second by second
    #[command(after_help = quota::HELP)]
    Quota(Box<quota::SimQuotaArgs>),
    /// Queue policies: streams of jobs, made up or recorded, through one queue or one for each worker
    #[command(after_help = run::HELP)]
    Run(Box<run::SimRunArgs>),
    /// Estimates of processing times: how good they are on streams made up or recorded
    #[command(after_help = estimate::HELP)]
    Estimate(Box<estimate::SimEstimateArgs>),
    /// Autoscaling: a pool whose size the planner chooses, beside two of a fixed size
    #[command(after_help = scale::HELP)]
    Scale(Box<scale::SimScaleArgs>),
    /// Record the builds that a farm ran, to be run again by `sim run --replay`
    #[command(after_help = record::HELP)]
    Record(record::SimRecordArgs),
}

impl SimArgs {
    /// Whether it asks a farm: then the settings say which.
    pub(crate) fn asks_a_farm(&self) -> bool {
        matches!(self.what, What::Record(_))
    }
}

/// Simulates and prints.
pub(crate) async fn run(args: &SimArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    match &args.what {
        What::Quota(args) => quota::quota(args, globals)?,
        What::Run(args) => run::run(args, globals)?,
        What::Estimate(args) => estimate::estimate(args, globals)?,
        What::Scale(args) => scale::scale(args, globals)?,
        What::Record(args) => return record::run(args, globals, settings).await,
    }
    Ok(ExitCode::SUCCESS)
}
