//! Predicts when a waiting build starts.
//!
//! The workspaces are simulated forward: each becomes free when its run reaches its expected end, and the builds ahead
//! of this one start in order as workspaces become free. If other groups wait too, or a quota limits how many builds
//! the group may have, the share that the group really gets is less certain: the prediction is then averaged with the
//! one from the recent completion rate of the group.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use model::StartBasis;

/// Maximum number of workspaces simulated; the rest of a larger farm is ignored.
const WORKSPACES_MAX: usize = 4096;
/// Maximum number of runs simulated; the builds ahead beyond that count with the average run time.
const STEPS_MAX: u64 = 20_000;
/// Minimum number of ends for the rate to be used if the simulation gives a result too.
const ENDS_MIN: usize = 5;
/// Minimum remaining time of a run that is near its expected end, as a fraction of the expected time: one tenth.
const NEAR_END: u64 = 10;
/// Remaining time of a run that is late, as a fraction of its lateness: one half. The later a run is, the
/// less its estimate says.
const LATE: u64 = 2;

/// A workspace that runs a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Whether the build is of the group the prediction is for.
    pub own: bool,
    /// Expected run time in milliseconds; `None` if it is unknown.
    pub expected_ms: Option<u64>,
    /// Milliseconds that the build has run so far.
    pub ran_ms: u64,
}

/// The farm's workspaces from the view of one group.
#[derive(Debug, Clone, Copy)]
pub struct Workspaces<'a> {
    /// Number of idle workspaces.
    pub idle: u64,
    /// Number of idle workspaces that only emergencies may use.
    pub kept: u64,
    /// Number of busy workspaces.
    pub busy: u64,
    /// The builds that run in the busy workspaces; bounded, so it may be shorter than `busy`.
    pub busy_with: &'a [Busy],
    /// Share of the workspaces becoming free that goes to the group: above 0, at most 1. It is 1 if
    /// only this group waits.
    pub share: f64,
}

/// The builds ahead of a build, and the limits of its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// Number of builds ahead of it.
    pub before: u64,
    /// Expected run times in milliseconds of the builds ahead, from the head; `None` if unknown. Bounded, so it may
    /// be shorter than `before`.
    pub ahead_ms: &'a [Option<u64>],
    /// Number of builds that the group can have in progress at a time; `None` means limited only by the workspaces.
    pub at_once: Option<u64>,
    /// Completion rate of the group's runs per second, and the number of ends it is measured over.
    pub rate: Option<(f64, usize)>,
}

/// How long a build is expected to wait from now, and the basis of that prediction; `None` if nothing is known.
pub(super) fn expected_wait(line: &Line<'_>, workspaces: &Workspaces<'_>) -> Option<(Duration, StartBasis)> {
    if workspaces.idle + workspaces.busy == 0 {
        return None;
    }
    let simulated = mean_ms(line, workspaces).map(|mean| Simulation::new(workspaces, mean).wait(line));
    let by_rate = |(rate, ends): (f64, usize)| {
        Some((Duration::try_from_secs_f64((line.before as f64 + 1.0) / rate).ok()?, ends))
    };
    let limited = line.at_once.is_some_and(|most| most < workspaces.idle + workspaces.busy);
    let uncertain = limited || workspaces.share < 1.0;
    match (simulated, line.rate.and_then(by_rate)) {
        (Some(simulated), Some((wait, ends))) if uncertain && ends >= ENDS_MIN => {
            Some(((simulated + wait) / 2, StartBasis::Both))
        }
        (Some(simulated), _) => Some((simulated, StartBasis::Estimates)),
        (None, Some((wait, _))) => Some((wait, StartBasis::Rate)),
        (None, None) => None,
    }
}

/// Mean expected run time in milliseconds; `None` if it is unknown for more than half of the runs.
fn mean_ms(line: &Line<'_>, workspaces: &Workspaces<'_>) -> Option<u64> {
    let busy = workspaces.busy_with.iter().map(|busy| busy.expected_ms);
    let all = line.ahead_ms.len() + workspaces.busy_with.len();
    let known: Vec<u64> = line.ahead_ms.iter().copied().chain(busy).flatten().collect();
    let enough = !known.is_empty() && known.len() * 2 >= all;
    let sum = known.iter().fold(0_u64, |sum, ms| sum.saturating_add(*ms));
    enough.then(|| (sum / u64::try_from(known.len()).unwrap_or(u64::MAX)).max(1))
}

/// Simulation of the workspaces as they become free.
struct Simulation {
    /// When each workspace becomes free, in milliseconds from now, and whether its build is of the group.
    busy: BinaryHeap<Reverse<(u64, bool)>>,
    own: u64,
    share: f64,
    mean: u64,
}

impl Simulation {
    fn new(workspaces: &Workspaces<'_>, mean: u64) -> Self {
        let idle = usize::try_from(workspaces.idle).unwrap_or(usize::MAX).min(WORKSPACES_MAX);
        let busy = usize::try_from(workspaces.busy).unwrap_or(usize::MAX).min(WORKSPACES_MAX - idle);
        let left = |run: &Busy| {
            let expected = run.expected_ms.unwrap_or(mean);
            let late = run.ran_ms.saturating_sub(expected);
            (expected.saturating_sub(run.ran_ms).max(expected / NEAR_END).max(late / LATE), run.own)
        };
        // Workspaces that were not read are assumed to be like those that were.
        let known = workspaces.busy_with.iter().map(left).cycle();
        let runs = known.chain(std::iter::repeat((mean / 2, false))).take(busy);
        let busy: BinaryHeap<_> = std::iter::repeat_n((0, false), idle).chain(runs).map(Reverse).collect();
        let own = busy.iter().filter(|Reverse((_, own))| *own).count() as u64;
        Self { busy, own, share: workspaces.share.clamp(0.001, 1.0), mean }
    }

    /// How long the build behind `line` waits until it gets a workspace.
    fn wait(mut self, line: &Line<'_>) -> Duration {
        let (workspaces, mut started) = (self.busy.len() as u64, 0_u64);
        let (mut credit, mut steps, mut now) = (0.0, 0, 0);
        let mut ahead = line.ahead_ms.iter();
        while let Some(Reverse((free_at, own))) = self.busy.pop() {
            (now, steps) = (free_at, steps + 1);
            self.own -= u64::from(own);
            credit = f64::min(credit + self.share, 1.0);
            let has_room = line.at_once.is_none_or(|most| self.own < most.max(1));
            // Sums of fractional shares are not exact.
            if has_room && credit > 0.999 {
                if started >= line.before {
                    return Duration::from_millis(now);
                }
                (started, credit, self.own) = (started + 1, credit - 1.0, self.own + 1);
                let run = ahead.next().copied().flatten().unwrap_or(self.mean);
                self.busy.push(Reverse((now.saturating_add(run.max(1)), true)));
            } else if self.share < 1.0 {
                self.busy.push(Reverse((now.saturating_add(self.mean), false)));
            }
            if steps >= STEPS_MAX {
                break;
            }
        }
        let at_once = line.at_once.unwrap_or(u64::MAX).clamp(1, workspaces.max(1));
        let each = self.mean as f64 / (workspaces as f64 * self.share).min(at_once as f64).max(0.001);
        let rest = Duration::try_from_secs_f64(line.before.saturating_sub(started) as f64 * each / 1000.0);
        Duration::from_millis(now).saturating_add(rest.unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests;
