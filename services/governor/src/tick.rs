//! The main loop: samples several times each tick, decides at its end, and writes the decision
//! unless another governor did.

use std::time::Duration;

use bus::BusError;
use index::{Index, IndexError};
use model::{Esu, ExecutorType, GovernorRecord};
use policy::{ControlSettings, govern, next_tick};
use service::{Context, Current, Governance, ServiceError};
use settings::GovernorSettings;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{
    executors::{Capacity, Executors},
    looks::{Look, Samples},
    usage::Usage,
};

/// Number of samples in each tick.
const SAMPLES_PER_TICK: u32 = 10;
/// Number of builds read from each queue for a decision; other samples read only what is in progress.
const DEPTH: usize = 64;
/// Polling interval of a farm without builds; one query to Redis.
const IDLE: Duration = Duration::from_secs(1);
/// Time within which live executors answer a request for heartbeats.
const ANSWERS: Duration = Duration::from_millis(250);
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

/// What decisions are made from.
pub(crate) struct Sources {
    pub(crate) index: Index,
    pub(crate) usage: Usage,
    pub(crate) executors: Executors,
    pub(crate) governance: watch::Receiver<Current>,
}

/// Makes decisions until the service stops.
pub(crate) async fn serve(
    context: Context,
    settings: GovernorSettings,
    control: ControlSettings,
    sources: Sources,
) -> Result<(), ServiceError> {
    let pause = settings.tick / SAMPLES_PER_TICK;
    let mut governor = Governor {
        context,
        settings,
        control,
        sources,
        capacity: Capacity::default(),
        samples: Samples::default(),
        quiet_decisions: 0,
        seen_tick: 0,
    };
    let mut failing = false;
    // Otherwise the first decision would be made without the executors, which have just been asked.
    tokio::time::sleep(pause.min(ANSWERS)).await;
    loop {
        let pause = match governor.sample().await {
            Ok(Activity::Governing) => pause,
            Ok(Activity::Idle) => IDLE,
            Ok(Activity::NothingToGovern) => {
                tokio::select! {
                    () = governor.context.stop.cancelled() => return Ok(()),
                    () = governor.sources.executors.appeared() => {}
                    changed = governor.sources.governance.changed() => {
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
    /// There are neither quotas nor executors.
    NothingToGovern,
}

struct Governor {
    context: Context,
    settings: GovernorSettings,
    control: ControlSettings,
    sources: Sources,
    /// Capacity of the executors at the last sample.
    capacity: Capacity,
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
        let Sources { index, usage, executors, governance } = &mut self.sources;
        let Some(known) = governance.borrow_and_update().clone() else {
            return Ok(Activity::NothingToGovern);
        };
        // The decision about executors that are gone must not stay in force.
        let decides = !known.quotas.is_empty()
            || !executors.is_empty()
            || !self.settings.scaled_executors.is_empty()
            || !known.record.executors.is_empty();
        if !decides {
            return Ok(Activity::NothingToGovern);
        }
        // Another governor decided: the earlier samples belong to that decision.
        if known.record.tick != self.seen_tick {
            self.seen_tick = known.record.tick;
            self.samples.reset();
        }
        let bus = &self.context.bus;
        self.capacity =
            executors.capacity(bus, &self.settings.scaled_executors, &self.settings.capacity).await?;
        let in_use = usage.now();
        if in_use.groups.is_empty()
            && self.quiet_decisions >= QUIET_DECISIONS
            && !is_outdated(&known, &self.capacity)
            && index.is_idle().await?
        {
            return Ok(Activity::Idle);
        }
        let due = bus.now() >= next_tick(&known.record, &self.control);
        let look = Look {
            in_use,
            backlog: self.capacity.backlog(&index.actions()).await?,
            demands: index.demands(if due { DEPTH } else { 0 }).await?,
            on_executors: index.executor_demand().await?,
        };
        self.samples.add(&look);
        if due {
            self.decide(&known).await?;
        }
        Ok(Activity::Governing)
    }

    /// Makes the decision that is due, unless another governor has made it.
    async fn decide(&mut self, known: &Governance) -> Result<(), TickError> {
        let (position, last) = self.context.bus.buckets().get::<GovernorRecord>(&()).await?;
        let last = last.unwrap_or_default();
        let now = self.context.bus.now();
        let ahead = last.at_ms.since(now) > self.settings.tick;
        if now < next_tick(&last, &self.control) && !ahead {
            return Ok(());
        }
        self.quiet_decisions =
            if self.samples.is_quiet() { self.quiet_decisions.saturating_add(1) } else { 0 };
        let (capacity, cap) = (self.capacity.esu.clone(), self.settings.capacity.clone());
        let (groups, executors) = self.samples.averages(&known.quotas, capacity, cap);
        let record = govern(&last, &groups, &executors, &self.control, now);
        let written = self.context.bus.buckets().compare_and_set(&(), &record, position, PATIENCE).await?;
        if written {
            self.context.bus.keep_decision(&record).await;
        }
        debug!(tick = record.tick, first = written, "decided");
        Ok(())
    }
}

/// Whether the last decision does not apply to the present groups and executors.
fn is_outdated(known: &Governance, capacity: &Capacity) -> bool {
    let Governance { quotas, record, .. } = known;
    let decided = |(kind, carried): (&ExecutorType, Esu)| {
        record.executors.get(kind).is_some_and(|governed| governed.quota == carried)
    };
    quotas.groups.keys().any(|group| !record.groups.contains_key(group))
        || record.executors.len() != capacity.esu.0.len()
        || !capacity.esu.iter().all(decided)
}
