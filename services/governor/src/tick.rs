//! The loop: look a few times a tick, decide at its end, write the decision if nobody else did.

use std::time::Duration;

use bus::BusError;
use index::{Index, IndexError};
use model::{GovernorRecord, Sequence};
use policy::{GovernorSettings, govern, next_tick};
use service::{Context, Current, ServiceError};
use settings::Settings;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{looks::Looks, usage::Usage};

/// Looks a tick.
const LOOKS: u64 = 10;
/// Builds of each queue that are looked at before a decision; between decisions only what is in progress is.
const DEPTH: usize = 64;
/// How often a farm without builds is looked at; one question to Redis.
const IDLE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum TickError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// The gains, with the tick that the farm is set to.
pub(crate) fn settings(settings: &Settings) -> Result<GovernorSettings, ServiceError> {
    let tick_seconds = settings.governor_tick_ms as f64 / 1000.0;
    let gains = GovernorSettings { tick_seconds, ..GovernorSettings::default() };
    gains.check().map_err(|error| ServiceError::failed("setting up the governor", error))?;
    Ok(gains)
}

/// Decides until the service stops.
pub(crate) async fn serve(
    context: Context,
    settings: GovernorSettings,
    index: Index,
    usage: Usage,
    governance: watch::Receiver<Current>,
) -> Result<(), ServiceError> {
    let pause = Duration::from_millis(context.settings.governor_tick_ms / LOOKS);
    let mut governor = Governor {
        context,
        settings,
        index,
        usage,
        governance,
        looks: Looks::default(),
        rest: 0,
        seen_tick: 0,
    };
    let mut failing = false;
    loop {
        let pause = match governor.turn().await {
            Ok(Turn::Governing) => pause,
            Ok(Turn::Idle) => IDLE,
            Ok(Turn::NoQuotas) => {
                tokio::select! {
                    () = governor.context.stop.cancelled() => return Ok(()),
                    changed = governor.governance.changed() => {
                        if changed.is_err() {
                            return Ok(());
                        }
                    }
                }
                continue;
            }
            Err(error) => {
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "no decision until redis and the bus answer"
                    );
                }
                failing = true;
                tokio::select! {
                    () = governor.context.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(IDLE) => continue,
                }
            }
        };
        failing = false;
        tokio::select! {
            () = governor.context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

enum Turn {
    Governing,
    Idle,
    NoQuotas,
}

struct Governor {
    context: Context,
    settings: GovernorSettings,
    index: Index,
    usage: Usage,
    governance: watch::Receiver<Current>,
    looks: Looks,
    /// Decisions made since the farm is quiet.
    rest: u32,
    /// The last decision that is known.
    seen_tick: u64,
}

/// Decisions after the last build, so that what stands there is the decision of a farm at rest.
const REST: u32 = 3;

impl Governor {
    async fn turn(&mut self) -> Result<Turn, TickError> {
        let Some(known) = self.governance.borrow_and_update().clone() else { return Ok(Turn::NoQuotas) };
        if known.quotas.is_empty() {
            return Ok(Turn::NoQuotas);
        }
        // Another governor decided: what was seen before belongs to that decision.
        if known.record.tick != self.seen_tick {
            self.seen_tick = known.record.tick;
            self.looks.reset();
        }
        let in_use = self.usage.now();
        let changed = known.quotas.groups.keys().any(|group| !known.record.groups.contains_key(group));
        if in_use.is_empty() && self.rest >= REST && !changed && self.index.is_idle().await? {
            return Ok(Turn::Idle);
        }
        let due = self.context.bus.now() >= next_tick(&known.record, &self.settings);
        let demands = self.index.demands(if due { DEPTH } else { 0 }).await?;
        self.looks.add(&in_use, &demands);
        if due {
            self.decide().await?;
        }
        Ok(Turn::Governing)
    }

    /// Makes the decision that is due, unless another governor has made it.
    async fn decide(&mut self) -> Result<(), TickError> {
        let Some(known) = self.governance.borrow().clone() else { return Ok(()) };
        let (position, last): (Sequence, GovernorRecord) = self.context.bus.governor_record().await?;
        let now = self.context.bus.now();
        let ahead = last.at_ms.since(now) > Duration::from_secs_f64(self.settings.tick_seconds);
        if now < next_tick(&last, &self.settings) && !ahead {
            return Ok(());
        }
        self.rest = if self.looks.is_quiet() { self.rest.saturating_add(1) } else { 0 };
        let capacity = &self.context.settings.capacity;
        let capacity = (!capacity.is_empty()).then_some(capacity);
        let groups = self.looks.take(&known.quotas);
        let record = govern(&last, &groups, capacity, &self.settings, now);
        let written = self.context.bus.write_governor_record(&record, position, PATIENCE).await?;
        debug!(tick = record.tick, first = written.is_some(), "decided");
        Ok(())
    }
}
