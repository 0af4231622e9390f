//! Why a build waits, from the facts that dispatch decides by.

use std::time::Duration;

use model::{Esu, Millis, Occupancy, ThrottledBy, Waiting};

use crate::{Allowance, Held};

/// Where a build stands.
#[derive(Debug, Clone)]
pub struct Stand<'a> {
    /// Builds of its group before it.
    pub before: u64,
    /// Builds in its group's queue.
    pub queued: u64,
    /// The estimates of those before it, from the head; a bounded part.
    pub ahead: &'a [&'a Occupancy],
    /// Its own estimate.
    pub estimate: &'a Occupancy,
    /// The estimates of its group's builds in progress.
    pub in_progress: &'a Occupancy,
    /// Idle workspaces of the farm.
    pub idle: u64,
    /// When runs of its group ended, newest first.
    pub ends: &'a [Millis],
    /// The clock.
    pub now: Millis,
}

/// What keeps a build in the queue: the very decision of dispatch, told instead of acted on.
pub fn why(stand: &Stand<'_>, allowance: &Allowance) -> Waiting {
    let mut admission = allowance.admission(stand.in_progress);
    for estimate in stand.ahead {
        let _ = admission.consider(estimate);
    }
    let reserved = admission.reserved();
    let (throttled_by, without_quota) = match admission.consider(stand.estimate) {
        Ok(()) => (Vec::new(), Vec::new()),
        Err(Held::NoQuota { types }) => (Vec::new(), types),
        Err(Held::Throttled(throttled)) => {
            let told = throttled.types.into_iter().map(|lack| ThrottledBy {
                needed: lack.needed,
                remaining: lack.remaining,
                target: allowance.target(&lack.executor_type),
                in_progress: stand.in_progress.get(&lack.executor_type),
                reserved: reserved.get(&lack.executor_type),
                executor_type: lack.executor_type,
            });
            (told.collect(), Vec::new())
        }
    };
    let about_to_start =
        throttled_by.is_empty() && without_quota.is_empty() && stand.before < stand.idle && stand.idle > 0;
    let counts_as = allowance.clamped(stand.estimate);
    let rate = rate(stand.ends, stand.now).filter(|_| without_quota.is_empty());
    Waiting {
        place: stand.before + 1,
        queued: stand.queued,
        throttled_by,
        without_quota,
        counts_as: counts_as.into_iter().map(|less| (less.executor_type, less.counts_as)).collect(),
        idle_workspaces: stand.idle,
        in_progress: Vec::new(),
        ends_per_second: rate,
        expected_start_ms: rate.filter(|_| !about_to_start).map_or(
            about_to_start.then_some(stand.now),
            |rate| {
                let wait = Duration::try_from_secs_f64((stand.before as f64 + 1.0) / rate).ok()?;
                Some(stand.now.after(wait))
            },
        ),
    }
}

/// Ends a second, over the last ones; nothing while none was seen. Each makes room for another.
fn rate(ends: &[Millis], now: Millis) -> Option<f64> {
    let oldest = ends.last()?;
    let seconds = now.since(*oldest).as_secs_f64().max(0.001);
    Some(ends.len() as f64 / seconds)
}

/// In a sentence.
pub fn why_text(waiting: &Waiting) -> String {
    if !waiting.without_quota.is_empty() {
        let types: Vec<&str> = waiting.without_quota.iter().map(model::ExecutorType::as_str).collect();
        return format!(
            "the quotas of {} add up to nothing: raise one, with `forebay quota set`",
            types.join(", ")
        );
    }
    let throttled = waiting.throttled_by.iter().map(|by| {
        let before = if by.reserved > Esu::ZERO {
            format!(" and builds before it reserve {}", by.reserved)
        } else {
            String::new()
        };
        format!(
            "it needs {} ESU of {}, of a target of {} with {} in progress{before}",
            by.needed, by.executor_type, by.target, by.in_progress
        )
    });
    let mut reasons: Vec<String> = throttled.collect();
    if waiting.idle_workspaces == 0 {
        reasons.push("no workspace is idle".to_owned());
    }
    if reasons.is_empty() {
        return match waiting.place {
            0 | 1 => "it is about to start".to_owned(),
            place => format!("{} of its group are before it", count(place - 1)),
        };
    }
    reasons.join("; ")
}

fn count(builds: u64) -> String {
    format!("{builds} build{}", if builds == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
