//! Heartbeats of the executor, with its load and the actions that it holds.

use std::time::Duration;

use model::{ExecutorHeartbeat, ExecutorStatus};
use service::{Context, HeartbeatSource, heartbeat_ttl_ms};
use tokio::sync::Notify;

use crate::{held_actions::ExecutorLoad, image, shared::Shared};

impl HeartbeatSource for Shared {
    type Heartbeat = ExecutorHeartbeat;

    fn context(&self) -> &Context {
        &self.context
    }

    fn interval(&self) -> Duration {
        self.settings.heartbeat
    }

    fn outdated(&self) -> &Notify {
        &self.actions.announce
    }

    fn heartbeat(&self) -> ExecutorHeartbeat {
        content(self)
    }

    fn final_heartbeat(&self) -> ExecutorHeartbeat {
        ExecutorHeartbeat { status: ExecutorStatus::Gone, ..content(self) }
    }
}

/// The content of a heartbeat.
pub(crate) fn content(shared: &Shared) -> ExecutorHeartbeat {
    let ExecutorLoad { slots, capacity, held, window } = shared.actions.load();
    ExecutorHeartbeat {
        executor: shared.id.clone(),
        pool: shared.pool.name.clone(),
        home: shared.home.clone(),
        host: shared.host.clone(),
        pid: std::process::id(),
        started_at_ms: shared.started_at,
        status: shared.actions.status(),
        executor_type: shared.settings.executor_type.clone(),
        slots,
        properties: shared.pool.properties.clone(),
        root_is_input: shared.pool.root_is_input,
        capacity,
        held,
        running: shared.actions.keys(),
        room: shared.actions.room(),
        window,
        images: image::keys(shared),
        image_names: Vec::new(),
        shared_services: shared.services_here.ids(),
        ttl_ms: heartbeat_ttl_ms(shared.interval()),
        clock_skew_ms: shared.context.bus.clock().skew(),
    }
}
