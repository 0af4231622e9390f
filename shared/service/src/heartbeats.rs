//! Heartbeats of processes that run work, on both sides. Workers and executors send them at the start, periodically, and
//! at once after a change, a reconnect or a request. Dispatchers and schedulers receive them.

use std::{sync::Arc, time::Duration};

use bus::{Bus, HeartbeatMessage, Received, Reconnects, millis};
use tokio::sync::Notify;
use tracing::warn;

use crate::{Context, ServiceError, Subscription};

/// Maximum wait until the server has the final heartbeat.
const FINAL: Duration = Duration::from_secs(1);

/// A process that sends heartbeats, or one session of it.
pub trait HeartbeatSource {
    type Heartbeat: HeartbeatMessage;

    fn context(&self) -> &Context;

    /// Time between two heartbeats.
    fn interval(&self) -> Duration;

    /// Notified when the receivers' view is out of date.
    fn outdated(&self) -> &Notify;

    /// The heartbeat with the current state.
    fn heartbeat(&self) -> Self::Heartbeat;

    /// The heartbeat that says that the process is gone.
    fn final_heartbeat(&self) -> Self::Heartbeat;
}

/// Milliseconds without a heartbeat after which its sender counts as lost: three intervals.
pub fn heartbeat_ttl_ms(interval: Duration) -> u64 {
    millis(interval * 3)
}

/// Sends heartbeats until the future is dropped.
pub async fn serve_heartbeats<S: HeartbeatSource>(source: Arc<S>) -> Result<(), ServiceError> {
    let context = source.context();
    let request = S::Heartbeat::request();
    let what = || format!("subscribing to {request}");
    let subscribed = context.bus.signals(&request).await;
    let mut requests = subscribed.map_err(|error| ServiceError::failed(what(), error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        send_heartbeat(&*source).await;
        tokio::select! {
            () = tokio::time::sleep(source.interval()) => {}
            () = source.outdated().notified() => {}
            () = reconnects.next() => {}
            signal = requests.next() => {
                if signal.is_none() {
                    return Err(ServiceError::failed(what(), "the subscription ended"));
                }
            }
        }
    }
}

/// Sends one heartbeat now.
pub async fn send_heartbeat<S: HeartbeatSource>(source: &S) {
    source.context().bus.send_or_log(&(), &source.heartbeat()).await;
}

/// Sends the final heartbeat.
pub async fn send_final_heartbeat<S: HeartbeatSource>(source: &S) {
    let bus = &source.context().bus;
    bus.send_or_log(&(), &source.final_heartbeat()).await;
    // Receivers that miss it learn of the end from the time to live or the released lease.
    let _ = bus.flush(FINAL).await;
}

/// Requests a heartbeat from all senders now. A failure is logged: the next heartbeats come without a request.
pub async fn request_heartbeats<M: HeartbeatMessage>(bus: &Bus) {
    if let Err(error) = bus.signal(&M::request()).await {
        let error = telemetry::error_chain(&error);
        warn!(error, "cannot request heartbeats; waiting for the next ones");
    }
}

/// Received heartbeats, each delivered to one member of a group of receivers.
#[derive(Debug)]
pub struct Heartbeats<M> {
    context: Context,
    messages: Subscription<M>,
    reconnects: Reconnects,
    /// Whether heartbeats were missed: before the start or while the connection was lost.
    has_missed: bool,
}

impl<M: HeartbeatMessage> Heartbeats<M> {
    /// Subscribes as a member of `group`.
    pub async fn subscribe(context: &Context, group: &str) -> Result<Self, ServiceError> {
        let messages = Subscription::<M>::in_group(&context.bus, &(), group).await?;
        let reconnects = context.bus.reconnects();
        Ok(Self { context: context.clone(), messages, reconnects, has_missed: true })
    }

    /// The next heartbeat; `None` when the service stops. Requests those that were missed. The call may be dropped and
    /// repeated without losing a heartbeat.
    pub async fn next(&mut self) -> Result<Option<Received<M>>, ServiceError> {
        loop {
            if self.has_missed {
                request_heartbeats::<M>(&self.context.bus).await;
                self.has_missed = false;
            }
            tokio::select! {
                () = self.context.stop.cancelled() => return Ok(None),
                () = self.reconnects.next() => self.has_missed = true,
                message = self.messages.next() => return message.map(Some),
            }
        }
    }
}
