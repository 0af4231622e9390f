//! Decides how many processes a pool should have (chapter 5 of the thesis): the analysis and planning steps
//! of monitor, analyse, plan and execute. The monitoring part provides an [`Observation`], and the executing
//! part follows the [`Plan`].
//!
//! A pool is a set of equal processes, as section 5.3.3 of the thesis recommends. It needs enough processes to start
//! the waiting work within the target waiting time, or enough to do so for the usual arrivals, whichever is more.
//! Scaling up is immediate. Scaling down happens only after fewer processes were enough for a while, and in steps, so
//! that short fluctuations have no effect. Processes to be removed are drained, never killed: no plan is below the
//! number of busy processes.

mod erlang;
mod need;
mod rate;
mod settings;
mod window;

use std::{fmt, time::Duration};

use model::Millis;

use need::Need;
use rate::Rate;
pub use settings::{InvalidPlannerSettings, PlannerSettings};
use window::Window;

/// Observed state of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observation {
    /// Sum of the estimated run times of the waiting items.
    pub queued_work: Duration,
    /// Number of waiting items that could run in this pool.
    pub waiting: u64,
    /// Number of running items.
    pub running: u64,
    /// Number of items that joined the queue since the previous observation. 0 is a safe value: then only waiting
    /// and running items count.
    pub arrived: u64,
    /// Mean run time of recently finished items; zero if none finished, in which case the estimates of
    /// waiting items are used.
    pub service: Duration,
    /// How long the oldest waiting item has waited.
    pub oldest_wait: Duration,
    /// Number of items that one process runs concurrently. 0 counts as 1.
    pub slots: u64,
    /// Number of processes that accept work.
    pub alive: u64,
    /// Number of these that run something.
    pub busy: u64,
    /// Number of processes that were requested and do not accept work yet.
    pub starting: u64,
    /// Number of processes that finish their work and accept no more. They only count as cost.
    pub draining: u64,
}

impl Observation {
    /// Number of processes that accept work or soon will.
    pub fn processes(&self) -> u64 {
        self.alive.saturating_add(self.starting)
    }
}

/// The planned size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of processes that accept work or are about to; draining ones do not count.
    pub desired: u64,
    /// Number of processes needed, regardless of the settings.
    pub needed: u64,
    /// Why the pool should have the desired size.
    pub reason: Reason,
}

/// Why a plan is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The pool has its target size.
    Enough,
    /// More, to start the waiting work in time.
    Backlog,
    /// More, for the usual rate of arrivals.
    Load,
    /// More, because of the minimum size.
    Minimum,
    /// More are needed than the maximum size allows.
    Maximum,
    /// More are needed than the budget allows.
    Budget,
    /// Fewer, because they were enough for long enough.
    Surplus,
    /// Fewer are needed, but not for long enough yet.
    TooSoon,
    /// Fewer are needed, but the last change was too recent.
    Cooldown,
    /// Fewer are needed, but more than that number are busy.
    Busy,
}

impl Reason {
    /// All reasons, in order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Enough,
        Self::Backlog,
        Self::Load,
        Self::Minimum,
        Self::Maximum,
        Self::Budget,
        Self::Surplus,
        Self::TooSoon,
        Self::Cooldown,
        Self::Busy,
    ];

    /// Its name in messages, metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::Backlog => "backlog",
            Self::Load => "load",
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::Budget => "budget",
            Self::Surplus => "surplus",
            Self::TooSoon => "too_soon",
            Self::Cooldown => "cooldown",
            Self::Busy => "busy",
        }
    }

    /// A description of the reason for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Enough => "the pool has its target size",
            Self::Backlog => "scaling up to start the waiting work in time",
            Self::Load => "scaling up for the usual rate of arrivals",
            Self::Minimum => "scaling up to the minimum size",
            Self::Maximum => "more processes are needed than the maximum allows",
            Self::Budget => "more processes are needed than the budget allows",
            Self::Surplus => "scaling down, since fewer processes were enough for long enough",
            Self::TooSoon => "fewer processes are needed, but not for long enough yet",
            Self::Cooldown => "fewer processes are needed, but the last change was too recent",
            Self::Busy => "fewer processes are needed, but the others are busy",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The planner's memory of a pool. A new one, for example after a restart, removes no process until it has seen enough.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PoolState {
    rate: Rate,
    needed: Window,
    changed_at: Option<Millis>,
}

impl PoolState {
    /// Estimated rate of arrivals in items per second.
    pub fn arrival_rate(&self) -> f64 {
        self.rate.per_second()
    }
}

/// Plans how many processes the pool should have now, and returns the state for the next call. Call it every few
/// seconds: at least ten times in [`PlannerSettings::scale_in_after`].
///
/// The plan is within the bounds of the settings, and above the minimum it is not below the number of busy processes.
/// With more work the plan is never smaller.
pub fn plan(
    state: &PoolState,
    seen: &Observation,
    settings: &PlannerSettings,
    now: Millis,
) -> (Plan, PoolState) {
    let mut state = state.clone();
    let service = need::service(seen);
    state.rate.observe(seen.arrived, service, settings, now);
    let need = Need::of(seen, service, state.rate.per_second(), settings);
    state.needed.add(need.processes(), settings.scale_in_after, now);
    let plan = choose(&state, seen, &need, settings, now);
    if plan.desired != seen.processes() {
        state.changed_at = Some(now);
    }
    (plan, state)
}

fn choose(
    state: &PoolState,
    seen: &Observation,
    need: &Need,
    settings: &PlannerSettings,
    now: Millis,
) -> Plan {
    let (least, most) = (settings.least(), settings.most());
    let needed = need.processes();
    let has = seen.processes();
    let wanted = needed.clamp(least, most);
    let plan = |desired, reason| Plan { desired, needed, reason };
    if needed > most && has <= most {
        let reason = if most < settings.max { Reason::Budget } else { Reason::Maximum };
        return plan(most, reason);
    }
    if wanted > has {
        return plan(wanted, if needed < least { Reason::Minimum } else { need.reason() });
    }
    if has > most {
        return plan(most, Reason::Surplus);
    }
    scale_in(state, seen, wanted, settings, now)
        .map_or_else(|reason| plan(has, reason), |fewer| plan(fewer, Reason::Surplus))
}

/// The size that the pool shrinks to, or why it does not shrink.
fn scale_in(
    state: &PoolState,
    seen: &Observation,
    wanted: u64,
    settings: &PlannerSettings,
    now: Millis,
) -> Result<u64, Reason> {
    let has = seen.processes();
    let enough =
        |than: u64| has <= than || (than > settings.least() && has - than <= settings.tolerated(has));
    if enough(wanted) {
        return Err(Reason::Enough);
    }
    let Some(recent_most) = state.needed.most(settings.scale_in_after, now) else {
        return Err(Reason::TooSoon);
    };
    let recent_most = wanted.max(recent_most.min(settings.most()));
    if enough(recent_most) {
        return Err(Reason::TooSoon);
    }
    if enough(recent_most.max(seen.busy)) {
        return Err(Reason::Busy);
    }
    if state.changed_at.is_some_and(|at| now.since(at) < settings.cooldown) {
        return Err(Reason::Cooldown);
    }
    Ok(recent_most.max(seen.busy).max(has - settings.step(has)))
}

#[cfg(test)]
mod tests;
