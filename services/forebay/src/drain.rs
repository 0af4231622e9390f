//! `forebay drain`

use std::process::ExitCode;

use clap::Args;
use model::{Control, ExecutorControl, ExecutorId, WorkerId};
use serde_json::json;
use settings::Settings;

use crate::{failure::Failure, farm::Farm, globals::Globals, stdout};

/// Options of `forebay drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The worker or executor, as `forebay workers` and `forebay executors` show it
    #[arg(value_name = "ID")]
    worker: WorkerId,
    /// Have it take work again
    #[arg(long)]
    undo: bool,
}

/// Tells it.
pub(crate) async fn run(
    args: &DrainArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    if let Some(executor) = executor(&farm, &args.worker).await? {
        return order_executor(&farm, globals, executor, args.undo).await;
    }
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

/// The executor of this name, if one lives.
async fn executor(farm: &Farm, name: &WorkerId) -> Result<Option<ExecutorId>, Failure> {
    let live = farm.call(async |client| Ok(client.bus().executors().await?)).await?;
    Ok(live.into_iter().map(|it| it.executor).find(|executor| executor.as_str() == name.as_str()))
}

async fn order_executor(
    farm: &Farm,
    globals: &Globals,
    executor: ExecutorId,
    undo: bool,
) -> Result<ExitCode, Failure> {
    let order = if undo { ExecutorControl::Resume } else { ExecutorControl::Drain };
    farm.call(async |client| Ok(client.bus().order_executor(&executor, &order).await?)).await?;
    if globals.json {
        let status = if undo { "ready" } else { "draining" };
        stdout::json(&json!({ "executor": executor, "status": status }))?;
    } else if undo {
        stdout::line(&format!("executor {executor} takes actions again"))?;
    } else {
        stdout::line(&format!("executor {executor} finishes what runs and takes nothing new"))?;
    }
    Ok(ExitCode::SUCCESS)
}
