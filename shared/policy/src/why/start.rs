//! When a waiting build is expected to start.
//!
//! The workspaces are played forward: each becomes free when its run has taken as long as expected, and the builds before
//! this one start in order as they do. Where other groups wait too, or a quota says how many builds the group may have,
//! what really comes to the group is less certain: then the rate at which its runs ended lately counts as much.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use model::StartBasis;

/// Workspaces that are played at most; of a larger farm the first so many.
const WORKSPACES_MAX: usize = 4096;
/// Runs that are played at most; what is before a build beyond that counts as it did on the average.
const STEPS_MAX: u64 = 20_000;
/// Fewer ends tell little of a rate where there is something else to go by.
const ENDS_MIN: usize = 5;
/// What is left at least of a run that is near its expected end, as a part of what was expected.
const NEAR_END: u64 = 10;
/// What is left of a run that takes longer than expected, as a part of the time that it is late: the longer it is late, the
/// less the estimate says.
const LATE: u64 = 2;

/// A workspace that has a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Whether the build is of the group that is looked at.
    pub own: bool,
    /// Milliseconds that its run is expected to take, where anything is known of that.
    pub expected_ms: Option<u64>,
    /// Milliseconds that it has run.
    pub ran_ms: u64,
}

/// The farm's workspaces, as a group finds them.
#[derive(Debug, Clone, Copy)]
pub struct Workspaces<'a> {
    /// Those that have no build.
    pub idle: u64,
    /// Those that have one.
    pub busy: u64,
    /// What these have; a bounded part.
    pub busy_with: &'a [Busy],
    /// The part of what becomes free that goes to the group: above 0, at most 1. Where only this group waits it is 1.
    pub share: f64,
}

/// What is before a build.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// Builds before it.
    pub before: u64,
    /// Milliseconds that each of them is expected to run, from the head, where anything is known of that; a bounded part.
    pub ahead_ms: &'a [Option<u64>],
    /// Builds that its group can have in progress at a time; `None`: as many as there are workspaces.
    pub at_once: Option<u64>,
    /// Ends of its group's runs a second, and over how many of them.
    pub rate: Option<(f64, usize)>,
}

/// How long a build is expected to wait from now on, and by what; `None` where nothing is known.
pub(super) fn expected_wait(line: &Line<'_>, workspaces: &Workspaces<'_>) -> Option<(Duration, StartBasis)> {
    if workspaces.idle + workspaces.busy == 0 {
        return None;
    }
    let played = mean_ms(line, workspaces).map(|mean| Play::new(workspaces, mean).wait(line));
    let by_rate = |(rate, ends): (f64, usize)| {
        Some((Duration::try_from_secs_f64((line.before as f64 + 1.0) / rate).ok()?, ends))
    };
    let limited = line.at_once.is_some_and(|most| most < workspaces.idle + workspaces.busy);
    let uncertain = limited || workspaces.share < 1.0;
    match (played, line.rate.and_then(by_rate)) {
        (Some(played), Some((wait, ends))) if uncertain && ends >= ENDS_MIN => {
            Some(((played + wait) / 2, StartBasis::Both))
        }
        (Some(played), _) => Some((played, StartBasis::Estimates)),
        (None, Some((wait, _))) => Some((wait, StartBasis::Rate)),
        (None, None) => None,
    }
}

/// How long a run is expected to take on the average; `None` where nothing is known of more than half of them.
fn mean_ms(line: &Line<'_>, workspaces: &Workspaces<'_>) -> Option<u64> {
    let busy = workspaces.busy_with.iter().map(|busy| busy.expected_ms);
    let all = line.ahead_ms.len() + workspaces.busy_with.len();
    let known: Vec<u64> = line.ahead_ms.iter().copied().chain(busy).flatten().collect();
    let enough = !known.is_empty() && known.len() * 2 >= all;
    let sum = known.iter().fold(0_u64, |sum, ms| sum.saturating_add(*ms));
    enough.then(|| (sum / u64::try_from(known.len()).unwrap_or(u64::MAX)).max(1))
}

/// Workspaces as they become free.
struct Play {
    /// When, in milliseconds from now; and whether what they have is of the group.
    busy: BinaryHeap<Reverse<(u64, bool)>>,
    own: u64,
    share: f64,
    mean: u64,
}

impl Play {
    fn new(workspaces: &Workspaces<'_>, mean: u64) -> Self {
        let idle = usize::try_from(workspaces.idle).unwrap_or(usize::MAX).min(WORKSPACES_MAX);
        let busy = usize::try_from(workspaces.busy).unwrap_or(usize::MAX).min(WORKSPACES_MAX - idle);
        let left = |run: &Busy| {
            let expected = run.expected_ms.unwrap_or(mean);
            let late = run.ran_ms.saturating_sub(expected);
            (expected.saturating_sub(run.ran_ms).max(expected / NEAR_END).max(late / LATE), run.own)
        };
        // Those that were not read are like those that were.
        let known = workspaces.busy_with.iter().map(left).cycle();
        let runs = known.chain(std::iter::repeat((mean / 2, false))).take(busy);
        let busy: BinaryHeap<_> = std::iter::repeat_n((0, false), idle).chain(runs).map(Reverse).collect();
        let own = busy.iter().filter(|Reverse((_, own))| *own).count() as u64;
        Self { busy, own, share: workspaces.share.clamp(0.001, 1.0), mean }
    }

    /// When a workspace comes to the build behind `line`.
    fn wait(mut self, line: &Line<'_>) -> Duration {
        let (workspaces, mut started) = (self.busy.len() as u64, 0_u64);
        let (mut credit, mut steps, mut now) = (0.0, 0, 0);
        let mut ahead = line.ahead_ms.iter();
        while let Some(Reverse((free_at, own))) = self.busy.pop() {
            (now, steps) = (free_at, steps + 1);
            self.own -= u64::from(own);
            credit = f64::min(credit + self.share, 1.0);
            let has_room = line.at_once.is_none_or(|most| self.own < most.max(1));
            // Sums of a share are not exact.
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
