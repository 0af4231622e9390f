//! Explains why a build waits, from the same facts that dispatch decides by.

mod start;

use std::time::Duration;

use model::{
    BuildRequirements, Esu, Millis, Occupancy, Priority, StartBasis, ThrottledBy, Waiting, WorkerCounts,
};
pub use start::{Busy, Workspaces};
use start::{Line, expected_wait};

use crate::{Allowance, Held};

/// The position of a waiting build and everything its start depends on.
#[derive(Debug, Clone)]
pub struct Stand<'a> {
    /// Number of builds of its group that are ahead of it.
    pub before: u64,
    /// Number of builds in its group's queue.
    pub queued: u64,
    /// Estimated occupancies of the builds ahead of it, from the head of the queue; bounded, so it may
    /// be shorter than `before`.
    pub ahead: &'a [&'a Occupancy],
    /// Expected run time in milliseconds of each build in `ahead`; `None` if it is unknown.
    pub ahead_ms: &'a [Option<u64>],
    /// Priority of the build itself: quotas do not keep an emergency waiting.
    pub priority: Priority,
    /// Estimated occupancy of the build itself.
    pub estimate: &'a Occupancy,
    /// Sum of the estimated occupancies of its group's builds in progress.
    pub in_progress: &'a Occupancy,
    /// Workspaces of the whole farm.
    pub workspaces: Workspaces<'a>,
    /// Times at which runs of its group ended, newest first.
    pub ends: &'a [Millis],
    /// Current time on the clock of the bus.
    pub now: Millis,
}

/// Explains what keeps a build in the queue: runs the same decision as dispatch and reports it instead of acting on it.
pub fn why(stand: &Stand<'_>, allowance: &Allowance) -> Waiting {
    let mut admission = allowance.admission(stand.in_progress);
    for estimate in stand.ahead {
        // Only what it reserves counts; whether that build may start does not.
        let _ = admission.consider(estimate);
    }
    let reserved = admission.reserved();
    let is_emergency = stand.priority.is_emergency();
    let (throttled_by, without_quota) = match admission.consider(stand.estimate) {
        _ if is_emergency => (Vec::new(), Vec::new()),
        Ok(()) => (Vec::new(), Vec::new()),
        Err(Held::NoQuota { types }) => (Vec::new(), types),
        Err(Held::Throttled(throttled)) => {
            let throttled_by = throttled.types.into_iter().map(|lack| ThrottledBy {
                needed: lack.needed,
                remaining: lack.remaining,
                target: allowance.target(&lack.executor_type),
                in_progress: stand.in_progress.get(&lack.executor_type),
                reserved: reserved.get(&lack.executor_type),
                executor_type: lack.executor_type,
                of_executors: false,
            });
            (throttled_by.collect(), Vec::new())
        }
    };
    let kept = if is_emergency { 0 } else { stand.workspaces.kept.min(stand.workspaces.idle) };
    let idle = stand.workspaces.idle - kept;
    let workspaces = Workspaces { idle, ..stand.workspaces };
    let about_to_start = throttled_by.is_empty() && without_quota.is_empty() && stand.before < idle;
    let counts_as = allowance.clamped(stand.estimate);
    let ends = since_pause(stand.ends, stand.now);
    let rate = rate(ends, stand.now).filter(|_| without_quota.is_empty());
    let line = Line {
        before: stand.before,
        ahead_ms: stand.ahead_ms,
        at_once: if is_emergency { None } else { at_once(stand, allowance) },
        rate: rate.map(|rate| (rate, ends.len())),
    };
    let expected = match expected_wait(&line, &workspaces).filter(|_| without_quota.is_empty()) {
        _ if about_to_start => Some((stand.now, None)),
        expected => expected.map(|(wait, basis)| (stand.now.after(wait), Some(basis))),
    };
    Waiting {
        place: stand.before + 1,
        queued: stand.queued,
        throttled_by,
        without_quota,
        counts_as: counts_as.into_iter().map(|less| (less.executor_type, less.counts_as)).collect(),
        requirements: BuildRequirements::default(),
        idle_workspaces: stand.workspaces.idle,
        kept_workspaces: kept,
        workspaces: stand.workspaces.idle + stand.workspaces.busy,
        workers: None,
        ahead_ms: ahead_ms(stand),
        in_progress: Vec::new(),
        ends_per_second: rate,
        expected_start_ms: expected.map(|(at, _)| at),
        expected_by: expected.and_then(|(_, basis)| basis),
    }
}

/// Total expected run time of the builds ahead in milliseconds; `None` if any of them is unknown.
fn ahead_ms(stand: &Stand<'_>) -> Option<u64> {
    let all = stand.ahead_ms.len() as u64 >= stand.before;
    let known = stand.ahead_ms.iter().try_fold(0_u64, |sum, ms| Some(sum.saturating_add((*ms)?)));
    known.filter(|_| all)
}

/// Number of builds like this one and those ahead of it that the group can have in progress at a time.
fn at_once(stand: &Stand<'_>, allowance: &Allowance) -> Option<u64> {
    let Allowance::Governed { types, .. } = allowance else { return None };
    let builds: Vec<Occupancy> =
        stand.ahead.iter().copied().chain([stand.estimate]).map(|build| allowance.counted(build)).collect();
    let of_type = |kind| {
        let all: Esu = builds.iter().map(|build| build.get(kind).or_zero()).sum();
        let mean = all.units() / builds.len() as f64;
        let target = allowance.target(kind).or_zero().units();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates if it is too large"
        )]
        let fit = (target / mean) as u64;
        (mean > 0.0).then_some(fit.max(1))
    };
    types.keys().filter_map(of_type).min()
}

/// Share of the workspaces becoming free that goes to a group of this `weight`, between 0.001 and 1. `waiting` is the
/// number of groups that wait, and `some` the weights of a sample of them, which may include this group.
pub fn share_of(weight: u64, waiting: u64, some: &[u64]) -> f64 {
    if waiting <= 1 || some.is_empty() {
        return 1.0;
    }
    let sum: f64 = some.iter().map(|weight| *weight as f64).sum();
    let all = sum / some.len() as f64 * waiting as f64;
    (weight as f64 / all.max(weight as f64)).clamp(0.001, 1.0)
}

/// A gap between ends counts as a pause if it is longer than `PAUSE` times the median gap and longer than
/// [`PAUSE_MIN`]. Ends before a pause are not used to predict the present rate.
const PAUSE: u32 = 20;
/// Minimum length of a pause; see [`PAUSE`] for the other condition.
const PAUSE_MIN: Duration = Duration::from_secs(30);

/// The ends since the last pause; `ends` is sorted newest first.
fn since_pause(ends: &[Millis], now: Millis) -> &[Millis] {
    let gaps: Vec<Duration> =
        std::iter::once(&now).chain(ends).zip(ends).map(|(later, end)| later.since(*end)).collect();
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    let pause = gaps.iter().position(|gap| *gap > usual.saturating_mul(PAUSE).max(PAUSE_MIN));
    pause.and_then(|at| ends.get(..at)).unwrap_or(ends)
}

/// Ends per second over `ends`; `None` if it is empty. Each end frees capacity for one more build.
fn rate(ends: &[Millis], now: Millis) -> Option<f64> {
    let oldest = ends.last()?;
    let seconds = now.since(*oldest).as_secs_f64().max(0.001);
    Some(ends.len() as f64 / seconds)
}

/// Describes the basis of a prediction in words.
pub fn basis_text(basis: StartBasis) -> &'static str {
    match basis {
        StartBasis::Estimates => "from the expected run times of the builds ahead",
        StartBasis::Rate => "from the recent completion rate of its group",
        StartBasis::Both => {
            "from the expected run times of the builds ahead and the recent completion rate of its group"
        }
    }
}

/// States in one sentence why the build waits.
pub fn why_text(waiting: &Waiting) -> String {
    if !waiting.without_quota.is_empty() {
        let types: Vec<&str> = waiting.without_quota.iter().map(model::ExecutorType::as_str).collect();
        return format!("the quotas for {} total 0: raise one with `forebay quota set`", types.join(", "));
    }
    let throttled = waiting.throttled_by.iter().map(|by| {
        let before = if by.reserved > Esu::ZERO {
            format!(" and {} reserved by builds ahead", by.reserved)
        } else {
            String::new()
        };
        let of = if by.of_executors { " of all builds that run actions" } else { "" };
        format!(
            "it needs {} ESU of {}: the target{of} is {}, with {} in progress{before}",
            by.needed, by.executor_type, by.target, by.in_progress
        )
    });
    let mut reasons: Vec<String> = throttled.collect();
    if waiting.idle_workspaces == 0 {
        reasons.push(without_workspace(waiting));
    } else if waiting.idle_workspaces <= waiting.kept_workspaces {
        let kept = waiting.kept_workspaces;
        reasons.push(if kept == 1 {
            "the only idle workspace is kept for emergencies (emergency_workspaces)".to_owned()
        } else {
            format!("all idle workspaces, {kept}, are kept for emergencies (emergency_workspaces)")
        });
    }
    if reasons.is_empty() {
        return match waiting.place {
            0 | 1 => "it is about to start".to_owned(),
            place => format!("behind {} of its group", count(place - 1)),
        };
    }
    reasons.join("; ")
}

/// States why no workspace is idle.
fn without_workspace(waiting: &Waiting) -> String {
    let requirements = &waiting.requirements;
    let why = without_worker(waiting.workers);
    match waiting.workers {
        _ if requirements.is_empty() => why.to_owned(),
        Some(WorkerCounts { ready: 0, draining: 0, full: 0 }) => {
            format!("no live worker offers {requirements}; it waits for one")
        }
        Some(_) | None => format!("of the workers that offer {requirements}: {why}"),
    }
}

fn without_worker(workers: Option<WorkerCounts>) -> &'static str {
    match workers {
        Some(WorkerCounts { ready: 0, draining: 0, full: 0 }) => {
            "no worker is running: start one with `forebay serve worker`"
        }
        Some(WorkerCounts { ready: 0, draining: 0, full: _ }) => {
            "no worker accepts builds: `forebay workers` says why"
        }
        Some(WorkerCounts { ready: 0, draining: _, full: 1.. }) => {
            "every worker is draining or accepts no builds: `forebay workers` says why"
        }
        Some(WorkerCounts { ready: 0, draining: _, full: 0 }) => {
            "every worker is draining and accepts no builds: start another with `forebay serve worker`, or undo a drain \
             with `forebay drain --undo ID`"
        }
        Some(_) | None => "no workspace is idle",
    }
}

/// Adds the counted workers to `waiting`. If no worker accepts builds, the expected start is removed.
pub fn with_workers(waiting: Waiting, workers: WorkerCounts) -> Waiting {
    let mut waiting = Waiting { workers: Some(workers), ..waiting };
    if workers.ready == 0 {
        (waiting.expected_start_ms, waiting.expected_by) = (None, None);
    }
    waiting
}

fn count(builds: u64) -> String {
    format!("{builds} build{}", if builds == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
