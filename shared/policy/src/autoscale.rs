//! How many processes a pool should have (chapter 5 of the thesis): analysis and planning, of monitor, analyse, plan and
//! execute. Whoever monitors gives an [`Observation`], whoever executes follows the [`Plan`].
//!
//! A pool is a set of equal processes, as section 5.3.3 advises. It needs as many as start what waits now within the target
//! waiting time, and as many as would do so for what usually arrives, whichever is more. More are asked for at once; fewer
//! only once fewer were enough for a while, a part of them at a time, so that what comes and goes is not followed.
//! Processes that are to go are drained, never killed: no plan is below what runs.

mod erlang;
mod need;
mod rate;
mod settings;
mod window;

use std::{fmt, time::Duration};

use model::Millis;

use need::Need;
use rate::Rate;
pub use settings::{AutoscaleSettings, InvalidAutoscaleSettings};
use window::Window;

/// What is seen of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observation {
    /// Sum of the estimates of what waits.
    pub queued_work: Duration,
    /// Items that wait and could run here.
    pub waiting: u64,
    /// Items that run.
    pub running: u64,
    /// Items that joined the queue since the observation before this one. 0 is a safe answer: then only what waits and
    /// runs is looked at.
    pub arrived: u64,
    /// How long an item takes, the mean of what ended lately; zero where nothing did, and what waits is looked at.
    pub service: Duration,
    /// How long the item that waits longest has waited.
    pub oldest_wait: Duration,
    /// Items that one process runs at a time. 0 counts as 1.
    pub slots: u64,
    /// Processes that take work.
    pub alive: u64,
    /// Of these, those that run something.
    pub busy: u64,
    /// Processes that were asked for and do not take work yet.
    pub starting: u64,
    /// Processes that run what they have and take no more. They count for nothing but money.
    pub draining: u64,
}

impl Observation {
    /// Processes that there are or soon will be.
    pub fn processes(&self) -> u64 {
        self.alive.saturating_add(self.starting)
    }
}

/// How many processes there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Processes that take work or are about to: those that drain do not count.
    pub desired: u64,
    /// How many are needed, whatever the settings allow.
    pub needed: u64,
    /// Why so many.
    pub reason: Reason,
}

/// Why a plan is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There are as many as there should be.
    Enough,
    /// More, to start what waits in time.
    Backlog,
    /// More, for what usually arrives.
    Load,
    /// More, because there must be so many.
    Minimum,
    /// More are needed than there may be.
    Maximum,
    /// More are needed than may be paid for.
    Budget,
    /// Fewer: they were enough for long enough.
    Surplus,
    /// Fewer are needed, but not for long enough yet.
    TooSoon,
    /// Fewer are needed, but the last change was just now.
    Cooldown,
    /// Fewer are needed, but more than those run something.
    Busy,
}

impl Reason {
    /// Each of them.
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

    /// The same for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Enough => "there are as many as there should be",
            Self::Backlog => "more, to start what waits in time",
            Self::Load => "more, for what usually arrives",
            Self::Minimum => "more, because the pool has at least so many",
            Self::Maximum => "more are needed than the pool may have",
            Self::Budget => "more are needed than the budget pays for",
            Self::Surplus => "fewer were enough for long enough",
            Self::TooSoon => "fewer are needed, but not for long enough yet",
            Self::Cooldown => "fewer are needed, but the last change was just now",
            Self::Busy => "fewer are needed, but the others run something",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the planner remembers of a pool. A new one, after a restart say, removes no process until it has seen enough.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PoolState {
    rate: Rate,
    needed: Window,
    changed_at: Option<Millis>,
}

impl PoolState {
    /// Items that are taken to arrive a second.
    pub fn arrival_rate(&self) -> f64 {
        self.rate.per_second()
    }
}

/// How many processes the pool should have now, and what to remember until the next time. Plan every few seconds: at least
/// ten times in [`AutoscaleSettings::scale_in_after`].
///
/// The plan is within the bounds of the settings, and above the least of them not below what runs. With more work it is
/// not smaller.
pub fn plan(
    state: &PoolState,
    seen: &Observation,
    settings: &AutoscaleSettings,
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
    settings: &AutoscaleSettings,
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

/// To how many the pool shrinks, or why it does not.
fn scale_in(
    state: &PoolState,
    seen: &Observation,
    wanted: u64,
    settings: &AutoscaleSettings,
    now: Millis,
) -> Result<u64, Reason> {
    let has = seen.processes();
    let enough =
        |than: u64| has <= than || (than > settings.least() && has - than <= settings.tolerated(has));
    if enough(wanted) {
        return Err(Reason::Enough);
    }
    let Some(lately) = state.needed.most(settings.scale_in_after, now) else { return Err(Reason::TooSoon) };
    let lately = wanted.max(lately.min(settings.most()));
    if enough(lately) {
        return Err(Reason::TooSoon);
    }
    if enough(lately.max(seen.busy)) {
        return Err(Reason::Busy);
    }
    if state.changed_at.is_some_and(|at| now.since(at) < settings.cooldown) {
        return Err(Reason::Cooldown);
    }
    Ok(lately.max(seen.busy).max(has - settings.step(has)))
}

#[cfg(test)]
mod tests;
