//! `forebay drain`

use std::process::ExitCode;

use clap::Args;
use model::{Control, WorkerId};
use serde_json::json;
use settings::Settings;

use crate::{failure::Failure, farm::Farm, globals::Globals, stdout};

/// Options of `forebay drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The worker, as `forebay workers` shows it
    worker: WorkerId,
    /// Have it take builds again
    #[arg(long)]
    undo: bool,
}

/// Tells the worker.
pub(crate) async fn run(
    args: &DrainArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let order = if args.undo { Control::Resume } else { Control::Drain };
    farm.call(async |client| client.control(&args.worker, &order).await).await?;
    if globals.json {
        let status = if args.undo { "ready" } else { "draining" };
        stdout::json(&json!({ "worker": args.worker, "status": status }))?;
    } else if args.undo {
        stdout::line(&format!("worker {} takes builds again", args.worker))?;
    } else {
        stdout::line(&format!("worker {} finishes what runs and takes nothing new", args.worker))?;
    }
    Ok(ExitCode::SUCCESS)
}
