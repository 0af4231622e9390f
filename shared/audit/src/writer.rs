//! Writing events to the bus, again until it has them.

use std::{sync::Arc, time::Duration};

use bus::{Bus, BusError};
use futures::future::join_all;
use model::{AuditEvent, AuditKind};
use telemetry::metrics::{Counter, Label, count};
use tokio::{sync::mpsc, time::sleep};
use uuid::Uuid;

use crate::{Act, Actor, Inner};

/// Maximum number of events that are written at once.
const AT_ONCE: usize = 256;
/// Time between two tries while the bus is away.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between two looks for callers that have room for an event that is held.
const HELD_EVERY: Duration = Duration::from_secs(1);
/// Time limit for a command.
const PATIENCE: Duration = Duration::from_secs(3);

/// Writes what it receives until the process ends.
pub(crate) async fn write(bus: Bus, mut receiver: mpsc::Receiver<AuditEvent>) {
    let mut events = Vec::new();
    while receiver.recv_many(&mut events, AT_ONCE).await > 0 {
        let batch = std::mem::take(&mut events).into_iter().map(|event| (Uuid::now_v7().to_string(), event));
        write_all(&bus, batch.collect()).await;
    }
}

async fn write_all(bus: &Bus, mut left: Vec<(String, AuditEvent)>) {
    let mut is_reported = false;
    loop {
        let written = join_all(left.iter().map(|(id, event)| bus.write_audit(id, event))).await;
        let mut failed: Option<BusError> = None;
        let mut results = written.into_iter();
        left.retain(|(_, event)| {
            if let Some(Err(error)) = results.next() {
                failed.get_or_insert(error);
                return true;
            }
            count(Counter::AuditEvents, &[(Label::Kind, event.kind.as_str())], 1);
            false
        });
        let Some(error) = failed else { return };
        if !is_reported {
            let error = telemetry::error_chain(&error);
            tracing::warn!(error, events = left.len(), "cannot write audit events, retrying");
            is_reported = true;
        }
        sleep(AGAIN).await;
    }
}

/// Sends held events when their callers have room, with a timer only while there are any.
pub(crate) async fn send_held(inner: Arc<Inner>) {
    loop {
        inner.held.notified().await;
        while inner.send_due(inner.bus.now()) {
            sleep(HELD_EVERY).await;
        }
    }
}

/// Writes what a command did on the bus without a service between, and waits until it is stored. The user of the machine is
/// named as the caller: a statement that is not checked.
///
/// # Errors
///
/// Fails if the bus does not store it in time.
pub async fn write_stated(
    bus: &Bus,
    kind: AuditKind,
    (user, command): (&str, &str),
    target: &str,
    reason: Option<&str>,
) -> Result<(), BusError> {
    let act = Act::new(Actor::stated(Some(user)), command).on(target);
    let act = match reason {
        Some(reason) => act.because(reason),
        None => act,
    };
    let event = act.event(kind, bus.now(), "forebay cli");
    let id = Uuid::now_v7().to_string();
    match tokio::time::timeout(PATIENCE, bus.write_audit(&id, &event)).await {
        Ok(written) => written,
        Err(_) => Err(BusError::Timeout { what: "writing an audit event".to_owned() }),
    }
}
