//! `forebay workers`: lists live workers.

use std::process::ExitCode;

use comfy_table::Table;
use command_line::{failure::Failure, globals::Globals, stdout};
use model::{Millis, WindowState, WorkerProperties, WorkerStatus, WorkerView, WorkspaceState};
use settings::Settings;
use telemetry::escaped;

use crate::{
    bytes_text::age,
    clock_text::with_skew,
    farm::Farm,
    style::{self, Tone},
};

/// Lists the live workers.
pub(crate) async fn run(globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let mut workers = farm.call(async |client| client.workers().await).await?;
    workers.sort_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
    if globals.json {
        stdout::json(&workers)?;
    } else if workers.is_empty() {
        stdout::line("no worker is running: start one with `forebay serve worker`")?;
    } else {
        stdout::line(&table(&workers, farm.now()).trim_fmt())?;
        for WorkerView { heartbeat } in &workers {
            if let Some(why) = &heartbeat.short {
                stdout::line(&format!("worker {} accepts no builds: {}", heartbeat.worker, escaped(why)))?;
            } else {
                red(&heartbeat.window, "worker", heartbeat.worker.as_str())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(workers: &[WorkerView], now: Millis) -> Table {
    let mut table = style::table();
    table.set_header(["WORKER", "HOST", "PID", "STATUS", "BUSY", "WINDOW", "UP", "OFFERS", "BUILDS"]);
    for WorkerView { heartbeat } in workers {
        let builds: Vec<String> = heartbeat.workspaces.iter().filter_map(build_of).collect();
        table.add_row([
            heartbeat.worker.to_string(),
            heartbeat.host.clone(),
            heartbeat.pid.to_string(),
            with_skew(status(heartbeat.status).to_owned(), heartbeat.clock_skew_ms),
            format!("{}/{}", builds.len(), heartbeat.workspaces.len()),
            window(&heartbeat.window),
            age(heartbeat.started_at_ms, now),
            offers(&heartbeat.properties),
            builds.join(" "),
        ]);
    }
    table
}

fn offers(properties: &WorkerProperties) -> String {
    let property = |(name, values): (&String, &Vec<String>)| format!("{name}={}", values.join("|"));
    properties.0.iter().map(property).collect::<Vec<_>>().join(" ")
}

/// The points of a congestion window: those in use, and its size.
pub(crate) fn window(state: &WindowState) -> String {
    if state.size == 0 { "off".to_owned() } else { format!("{}/{}", state.used, state.size) }
}

/// Prints what the sensors of a worker or executor report.
pub(crate) fn red(window: &WindowState, kind: &str, name: &str) -> Result<(), Failure> {
    for why in &window.red {
        stdout::line(&format!("{kind} {name}: {}", escaped(why)))?;
    }
    Ok(())
}

pub(crate) fn build_of(workspace: &WorkspaceState) -> Option<String> {
    match workspace {
        WorkspaceState::Idle { .. } | WorkspaceState::Closed { .. } => None,
        WorkspaceState::Busy { group, id } => Some(format!("{group}/{id}")),
        WorkspaceState::Broken => Some("broken".to_owned()),
    }
}

pub(crate) fn status(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Ready => "ready",
        WorkerStatus::Draining => "draining",
        WorkerStatus::Full => "full",
        WorkerStatus::Gone => "gone",
    }
}

/// The tone of a worker's status.
pub(crate) fn tone(status: WorkerStatus) -> Option<Tone> {
    match status {
        WorkerStatus::Ready => None,
        WorkerStatus::Draining | WorkerStatus::Full => Some(Tone::Warning),
        WorkerStatus::Gone => Some(Tone::Bad),
    }
}
