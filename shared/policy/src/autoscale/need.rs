//! How many processes a pool needs.

use std::time::Duration;

use super::{AutoscaleSettings, Observation, Reason, erlang};

/// Of the target waiting time, what is left at least for what already waited long: what is late is not made up for at any
/// price.
const LEFT: f64 = 0.25;

/// So many that arrive in a window are too few to keep a process for them.
const RARE: f64 = 0.5;

/// What a pool needs, in processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// For what waits.
    backlog: u64,
    /// For what usually arrives.
    load: u64,
}

/// How long an item takes: the mean of what ended, or what is expected of what waits.
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
        settings: &AutoscaleSettings,
    ) -> Self {
        let slots = seen.slots.max(1);
        let service = service.as_secs_f64();
        let target = settings.target_wait.as_secs_f64();
        let most = settings.max.saturating_mul(slots).saturating_add(slots);
        // An average that fades is never nothing; what hardly ever arrives finds no process waiting for it.
        let is_rare = per_second * settings.rate_window.as_secs_f64() < RARE;
        let load = if is_rare { 0 } else { erlang::places(per_second * service, service, target, most) };
        Self { backlog: backlog(seen, service, settings), load: load.div_ceil(slots) }
    }

    pub(super) fn processes(&self) -> u64 {
        self.backlog.max(self.load)
    }

    /// Which of the two it is.
    pub(super) fn reason(&self) -> Reason {
        if self.backlog >= self.load { Reason::Backlog } else { Reason::Load }
    }
}

/// Processes to start what waits in time, beside what runs.
///
/// What waits is to start within the target waiting time, less what the first of it has waited already. Until then a
/// process that is there does that much work in each slot, one that must be started first does less. But never are more
/// slots of use than items wait and run.
fn backlog(seen: &Observation, service: f64, settings: &AutoscaleSettings) -> u64 {
    if seen.waiting == 0 {
        return 0;
    }
    let slots = seen.slots.max(1);
    let target = settings.target_wait.as_secs_f64().max(1e-3);
    let left = (target - seen.oldest_wait.as_secs_f64()).max(LEFT * target);
    // What runs goes on for as long as an item takes on the average: how long it has run says nothing.
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

/// `count` rounded up, one at least and `most` at most.
fn whole(count: f64, most: u64) -> u64 {
    let seconds = Duration::try_from_secs_f64((count - 1e-9).max(0.0).ceil()).unwrap_or(Duration::MAX);
    seconds.as_secs().clamp(1, most.max(1))
}
