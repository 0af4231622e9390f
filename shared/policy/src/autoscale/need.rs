//! Number of processes that a pool needs.

use std::time::Duration;

use super::{Observation, PlannerSettings, Reason, erlang};

/// Minimum fraction of the target waiting time that is left for items which already waited long: lateness is not made
/// up for at any price.
const LEFT: f64 = 0.25;

/// Expected number of arrivals in a window below which no process is kept for them.
const RARE: f64 = 0.5;

/// Number of processes that a pool needs, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Processes for the waiting items.
    backlog: u64,
    /// Processes for the usual arrivals.
    load: u64,
}

/// Run time of an item: the mean of finished items, or the mean estimate of waiting items.
pub(super) fn service(seen: &Observation) -> Duration {
    let expected = || {
        let waiting = u32::try_from(seen.waiting).unwrap_or(u32::MAX);
        seen.queued_work.checked_div(waiting).unwrap_or_default()
    };
    if seen.service.is_zero() { expected() } else { seen.service }
}

impl Need {
    pub(super) fn of(
        seen: &Observation,
        service: Duration,
        per_second: f64,
        settings: &PlannerSettings,
    ) -> Self {
        let slots = seen.slots.max(1);
        let service = service.as_secs_f64();
        let target = settings.target_wait.as_secs_f64();
        let most = settings.max.saturating_mul(slots).saturating_add(slots);
        // A decaying average never becomes 0; no process is kept for very rare arrivals.
        let is_rare = per_second * settings.rate_window.as_secs_f64() < RARE;
        let load = if is_rare { 0 } else { erlang::places(per_second * service, service, target, most) };
        Self { backlog: backlog(seen, service, settings), load: load.div_ceil(slots) }
    }

    pub(super) fn processes(&self) -> u64 {
        self.backlog.max(self.load)
    }

    /// The cause that needs more processes.
    pub(super) fn reason(&self) -> Reason {
        if self.backlog >= self.load { Reason::Backlog } else { Reason::Load }
    }
}

/// Number of processes needed to start the waiting items in time, in addition to the running ones.
///
/// Waiting items are to start within the target waiting time, less the time that the oldest has already waited. In the
/// remaining time an existing process does that much work in each slot, and a process that must be started first does
/// less. The number of useful slots never exceeds the number of waiting and running items.
fn backlog(seen: &Observation, service: f64, settings: &PlannerSettings) -> u64 {
    if seen.waiting == 0 {
        return 0;
    }
    let slots = seen.slots.max(1);
    let target = settings.target_wait.as_secs_f64().max(1e-3);
    let left = (target - seen.oldest_wait.as_secs_f64()).max(LEFT * target);
    // Running items are expected to run for another average run time: how long one has run says nothing (memoryless).
    let runs_on = if service > 0.0 { service * (1.0 - (-left / service).exp()) } else { 0.0 };
    let work = seen.running as f64 * runs_on + seen.queued_work.as_secs_f64();
    let does = slots as f64 * left;
    let has_done = seen.alive as f64 * does;
    let useful = seen.waiting.saturating_add(seen.running).div_ceil(slots);
    if work <= has_done {
        return whole(work / does, useful);
    }
    let new_does = slots as f64 * (left - settings.start_up.as_secs_f64()).max(LEFT * target);
    useful.min(seen.alive.saturating_add(whole((work - has_done) / new_does, useful)))
}

/// Rounds `count` up to a whole number from 1 to `most`.
fn whole(count: f64, most: u64) -> u64 {
    let seconds = Duration::try_from_secs_f64((count - 1e-9).max(0.0).ceil()).unwrap_or(Duration::MAX);
    seconds.as_secs().clamp(1, most.max(1))
}
