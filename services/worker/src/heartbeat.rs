//! Heartbeats of the worker, with the state of its workspaces.

use std::time::Duration;

use model::{Heartbeat, WorkerStatus, WorkspaceState};
use service::{Context, HeartbeatSource, heartbeat_ttl_ms};
use telemetry::metrics::{Gauge, Label, set};
use tokio::sync::Notify;

use crate::shared::Shared;

impl HeartbeatSource for Shared {
    type Heartbeat = Heartbeat;

    fn context(&self) -> &Context {
        &self.context
    }

    fn interval(&self) -> Duration {
        self.settings.heartbeat
    }

    fn outdated(&self) -> &Notify {
        &self.workspaces.announce
    }

    fn heartbeat(&self) -> Heartbeat {
        content(self, self.workspaces.status())
    }

    fn final_heartbeat(&self) -> Heartbeat {
        content(self, WorkerStatus::Gone)
    }
}

/// The content of a heartbeat; also updates the gauge of workspaces.
fn content(shared: &Shared, status: WorkerStatus) -> Heartbeat {
    let workspaces = shared.workspaces.states();
    let idle = workspaces.iter().filter(|state| matches!(state, WorkspaceState::Idle { .. })).count();
    let kept_out = workspaces.iter().filter(|state| matches!(state, WorkspaceState::Closed { .. })).count();
    let gauge = |state, count: usize| {
        set(Gauge::Workspaces, &[(Label::State, state)], i64::try_from(count).unwrap_or(i64::MAX));
    };
    // No build is offered to a worker that drains or whose disk is full.
    let (offered, closed) =
        if status == WorkerStatus::Ready { (idle, kept_out) } else { (0, idle + kept_out) };
    gauge("idle", offered);
    gauge("closed", closed);
    let busy = workspaces.iter().filter(|state| matches!(state, WorkspaceState::Busy { .. })).count();
    gauge("busy", busy);
    let short = match status {
        WorkerStatus::Full => shared.workspaces.closed_because(),
        WorkerStatus::Ready | WorkerStatus::Draining | WorkerStatus::Gone => None,
    };
    Heartbeat {
        worker: shared.id.clone(),
        host: shared.host.clone(),
        pid: std::process::id(),
        started_at_ms: shared.started_at,
        status,
        short,
        window: shared.workspaces.window(),
        properties: shared.offered.properties(),
        workspaces,
        ttl_ms: heartbeat_ttl_ms(shared.interval()),
        clock_skew_ms: shared.context.bus.clock().skew(),
    }
}
