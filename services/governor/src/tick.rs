//! The main loop: samples several times each tick, decides at its end, and writes the decision
//! unless another governor did.

use std::time::Duration;

use bus::BusError;
use index::{Index, IndexError};
use invariant::impossible;
use model::GovernorRecord;
use policy::{ControlSettings, govern, next_tick};
use service::{Context, Current, ServiceError};
use settings::GovernorSettings;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{looks::Samples, usage::Usage};

/// Number of samples in each tick.
const SAMPLES_PER_TICK: u32 = 10;
/// Number of builds read from each queue for a decision; other samples read only what is in progress.
const DEPTH: usize = 64;
/// Polling interval of a farm without builds; one query to Redis.
const IDLE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum TickError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Settings of the control loop, with the tick that the farm is configured with.
pub(crate) fn control(settings: &GovernorSettings) -> Result<ControlSettings, ServiceError> {
    let tick_seconds = settings.tick.as_secs_f64();
    let control = ControlSettings { tick_seconds, ..ControlSettings::default() };
    control.check().map_err(|error| ServiceError::failed("setting up the governor", error))?;
    Ok(control)
}

/// Makes decisions until the service stops.
pub(crate) async fn serve(
    context: Context,
    settings: GovernorSettings,
    control: ControlSettings,
    index: Index,
    usage: Usage,
    governance: watch::Receiver<Current>,
) -> Result<(), ServiceError> {
    let pause = settings.tick / SAMPLES_PER_TICK;
    let mut governor = Governor {
        context,
        settings,
        control,
        index,
        usage,
        governance,
        samples: Samples::default(),
        quiet_decisions: 0,
        seen_tick: 0,
    };
    let mut failing = false;
    loop {
        let pause = match governor.sample().await {
            Ok(Activity::Governing) => pause,
            Ok(Activity::Idle) => IDLE,
            Ok(Activity::NoQuotas) => {
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
                        "cannot decide until Redis and the bus answer"
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

/// What the governor does until the next sample.
enum Activity {
    Governing,
    Idle,
    NoQuotas,
}

struct Governor {
    context: Context,
    settings: GovernorSettings,
    control: ControlSettings,
    index: Index,
    usage: Usage,
    governance: watch::Receiver<Current>,
    samples: Samples,
    /// Number of decisions made since the farm became quiet.
    quiet_decisions: u32,
    /// Tick of the last known decision.
    seen_tick: u64,
}

/// Number of decisions made after the last build, so that the stored decision is that of a quiet farm.
const QUIET_DECISIONS: u32 = 3;

impl Governor {
    async fn sample(&mut self) -> Result<Activity, TickError> {
        let Some(known) = self.governance.borrow_and_update().clone() else { return Ok(Activity::NoQuotas) };
        if known.quotas.is_empty() {
            return Ok(Activity::NoQuotas);
        }
        // Another governor decided: the earlier samples belong to that decision.
        if known.record.tick != self.seen_tick {
            self.seen_tick = known.record.tick;
            self.samples.reset();
        }
        let in_use = self.usage.now();
        let changed = known.quotas.groups.keys().any(|group| !known.record.groups.contains_key(group));
        if in_use.is_empty()
            && self.quiet_decisions >= QUIET_DECISIONS
            && !changed
            && self.index.is_idle().await?
        {
            return Ok(Activity::Idle);
        }
        let due = self.context.bus.now() >= next_tick(&known.record, &self.control);
        let demands = self.index.demands(if due { DEPTH } else { 0 }).await?;
        self.samples.add(&in_use, &demands);
        if due {
            self.decide().await?;
        }
        Ok(Activity::Governing)
    }

    /// Makes the decision that is due, unless another governor has made it.
    async fn decide(&mut self) -> Result<(), TickError> {
        let Some(known) = self.governance.borrow().clone() else {
            impossible!("the quotas are unknown at a decision");
            return Ok(());
        };
        let (position, last) = self.context.bus.buckets().get::<GovernorRecord>(&()).await?;
        let last = last.unwrap_or_default();
        let now = self.context.bus.now();
        let ahead = last.at_ms.since(now) > self.settings.tick;
        if now < next_tick(&last, &self.control) && !ahead {
            return Ok(());
        }
        self.quiet_decisions =
            if self.samples.is_quiet() { self.quiet_decisions.saturating_add(1) } else { 0 };
        let capacity = &self.settings.capacity;
        let capacity = (!capacity.is_empty()).then_some(capacity);
        let groups = self.samples.averages(&known.quotas);
        let record = govern(&last, &groups, capacity, &self.control, now);
        let written = self.context.bus.buckets().compare_and_set(&(), &record, position, PATIENCE).await?;
        debug!(tick = record.tick, first = written, "decided");
        Ok(())
    }
}
