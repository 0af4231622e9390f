//! `forebay drain`: drains or resumes a worker or executor.

use std::process::ExitCode;

use clap::Args;
use client::{Order, Ordered};
use command_line::{failure::Failure, globals::Globals, stdout};
use model::{AuditKind, WorkerId};
use serde_json::json;
use settings::Settings;

use crate::farm::Farm;

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
    let order = if args.undo { Order::Resume } else { Order::Drain };
    let ordered = farm.call(async |client| client.order(args.worker.as_str(), order).await).await?;
    farm.record(AuditKind::Drain, "forebay drain", args.worker.as_str(), Some(order.as_str())).await;
    let (kind, id, work) = match &ordered {
        Ordered::Worker(worker) => ("worker", worker.as_str(), "builds"),
        Ordered::Executor(executor) => ("executor", executor.as_str(), "actions"),
    };
    if globals.json {
        let status = if args.undo { "ready" } else { "draining" };
        stdout::json(&json!({ kind: id, "status": status }))?;
    } else if args.undo {
        stdout::line(&format!("{kind} {id} accepts {work} again"))?;
    } else {
        stdout::line(&format!("{kind} {id} drains: it finishes running {work} and accepts no new ones"))?;
    }
    Ok(ExitCode::SUCCESS)
}
