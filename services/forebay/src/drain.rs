//! `forebay drain`: drains or resumes a worker or executor.

use std::process::ExitCode;

use clap::Args;
use client::ClientError;
use model::{ApiError, Control, ErrorCode, ExecutorControl, ExecutorId, WorkerId};
use serde_json::json;
use settings::Settings;

use crate::{failure::Failure, farm::Farm, globals::Globals, stdout};

/// Options of `forebay drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Id of the worker or executor, as listed by `forebay workers` or `forebay executors`
    #[arg(value_name = "ID")]
    worker: WorkerId,
    /// Resume accepting new work
    #[arg(long)]
    undo: bool,
}

/// Sends the order to the worker or executor.
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
    let called = farm.call(async |client| {
        client.control(&args.worker, &order).await.map_err(|error| not_found(error, &args.worker))
    });
    called.await?;
    if globals.json {
        let status = if args.undo { "ready" } else { "draining" };
        stdout::json(&json!({ "worker": args.worker, "status": status }))?;
    } else if args.undo {
        stdout::line(&format!("worker {} accepts builds again", args.worker))?;
    } else {
        stdout::line(&format!(
            "worker {} drains: it finishes running builds and accepts no new ones",
            args.worker
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The error of a call to a worker that does not exist: it names executors too, which were searched before.
fn not_found(error: ClientError, name: &WorkerId) -> ClientError {
    if let ClientError::Api(answer) = &error
        && answer.error == ErrorCode::NotFound
    {
        return ApiError::new(ErrorCode::NotFound, format!("no worker or executor {name}")).into();
    }
    error
}

/// The live executor with this name, if any.
async fn executor(farm: &Farm, name: &WorkerId) -> Result<Option<ExecutorId>, Failure> {
    let live = farm.call(async |client| Ok(client.bus().leases().executors().await?)).await?;
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
        stdout::line(&format!("executor {executor} accepts actions again"))?;
    } else {
        stdout::line(&format!(
            "executor {executor} drains: it finishes running actions and accepts no new ones"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
