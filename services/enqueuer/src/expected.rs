//! How long builds will run: learned from those that ended, told of those that are queued. Every replica reads the same log
//! and learns the same.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bus::{EventSubject, Follower, Start, Stored, stream};
use model::{Build, BuildRecord, Outcome};
use policy::{
    BuildWork,
    estimate::{Estimator, Quality, Source},
};
use serde::Deserialize;
use service::{Context, ServiceError};
use settings::Settings;
use telemetry::metrics::{Counter, Gauge, Label, count, set};
use tracing::{debug, info, warn};

const BATCH: usize = 500;
/// Keys of which durations are kept; each build has four.
const KEYS_MAX: usize = 100_000;
const RETRY: Duration = Duration::from_secs(1);

/// What is known. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Expected(Arc<Mutex<Known>>);

struct Known {
    estimator: Estimator,
    quality: Quality,
}

/// Enough of a lifecycle message to pass over it: two of three tell no end.
#[derive(Deserialize)]
struct Brief<'a> {
    event: &'a str,
}

/// A run that ended by itself.
struct Ended {
    record: BuildRecord,
    /// As long as its workspace was held.
    took: Duration,
}

impl Expected {
    /// Nothing is known yet.
    pub(crate) fn new(settings: &Settings) -> Self {
        // Other names were refused with the settings.
        let kind = settings.estimator.parse().unwrap_or_default();
        let known = Known { estimator: Estimator::new(kind, KEYS_MAX), quality: Quality::default() };
        Self(Arc::new(Mutex::new(known)))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds that `build` is expected to hold a workspace; `None` where no build like it has ended.
    pub(crate) fn of(&self, build: &Build) -> Option<u64> {
        let keys = BuildWork::of(build).keys();
        let estimate = self.lock().estimator.estimate(&keys, Duration::from_secs(build.timeout_seconds));
        (estimate.source != Source::HalfOfLimit).then_some(estimate.ms)
    }

    /// Learns from an end, and judges what had been expected. `live` is false for what ended before this process began: that
    /// was counted then.
    fn learn(&self, ended: &Ended, live: bool) {
        let Ended { record, took } = ended;
        let build = &record.build;
        let keys = BuildWork::of(build).keys();
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let mut known = self.lock();
        known.estimator.observe(&keys, *took);
        if let Some(expected_ms) = build.expected_ms {
            known.quality.observe(expected_ms, took_ms);
        }
        drop(known);
        if live {
            let (within, side) = verdict(build.expected_ms, took_ms);
            count(Counter::EstimatedBuilds, &[(Label::Within, within), (Label::Side, side)], 1);
        }
    }

    /// Shows how good the last estimates were.
    fn show(&self) {
        let last = *self.lock().quality.last();
        let shares = [
            ("within_10", last.share_within_10()),
            ("within_20", last.share_within_20()),
            ("over", last.share_over()),
            ("under", last.share_under()),
        ];
        for (name, share) in shares {
            if let Some(share) = share {
                #[expect(clippy::cast_possible_truncation, reason = "at most a thousand")]
                let permille = (share * 1000.0).round() as i64;
                set(Gauge::EstimatePermille, &[(Label::Share, name)], permille);
            }
        }
    }
}

/// How good an estimate was, as labels of the metric.
fn verdict(expected_ms: Option<u64>, took_ms: u64) -> (&'static str, &'static str) {
    let Some(expected) = expected_ms else { return ("unknown", "none") };
    let took = took_ms.max(1);
    let off = expected.abs_diff(took);
    let within = match () {
        () if off.saturating_mul(10) < took => "10",
        () if off.saturating_mul(5) < took => "20",
        () => "more",
    };
    (within, if expected < took { "under" } else { "over" })
}

/// Reads what ended lately, then follows what ends, until the service stops.
pub(crate) async fn follow(context: Context, expected: Expected) -> Result<(), ServiceError> {
    tokio::select! {
        () = context.stop.cancelled() => Ok(()),
        () = learn_for_ever(&context, &expected) => Ok(()),
    }
}

async fn learn_for_ever(context: &Context, expected: &Expected) {
    let last = loop {
        match context.bus.stream_positions(stream::EVENTS).await {
            Ok((_, last)) => break last,
            Err(error) => {
                warn!(
                    error = telemetry::error_chain(&error),
                    "what ended before is read as soon as the bus answers"
                );
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    // However much else is said of builds: of each the last is its end.
    let start = Start::LastOfEachSubject;
    let mut follower = Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
    let mut learned = 0_u64;
    loop {
        let live = follower.cursor() >= last;
        for stored in follower.next(BATCH).await {
            if let Some(ended) = ended(&stored) {
                learned += 1;
                expected.learn(&ended, live || stored.sequence > last);
            }
        }
        if follower.caught_up() {
            expected.show();
            if !live {
                info!(learned, "learned how long builds run, from what ended before");
            }
        }
    }
}

/// The end of a run that a lifecycle message tells, if it ended by itself: what was stopped half-way says nothing.
fn ended(stored: &Stored) -> Option<Ended> {
    let brief: Brief<'_> = serde_json::from_slice(&stored.payload).ok()?;
    if brief.event != "INVOCATION_FINISHED" {
        return None;
    }
    let record = stored
        .record()
        .inspect_err(|error| debug!(error = telemetry::error_chain(error), "an end that teaches nothing"))
        .ok()?;
    let result = record.result()?;
    // One that never began its command failed for another reason than what it is.
    let ran = result.exit_code.is_some() || result.job.is_some();
    let by_itself = ran && matches!(result.outcome, Outcome::Succeeded | Outcome::Failed);
    let took = record.at_ms.since(record.invocation()?.started_at_ms);
    by_itself.then_some(Ended { record, took })
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn an_estimate_is_judged_by_how_far_it_was_off() {
        for (expected, took, wanted) in [
            (Some(1000), 1000, ("10", "over")),
            (Some(1099), 1000, ("10", "over")),
            (Some(1100), 1000, ("20", "over")),
            (Some(801), 1000, ("20", "under")),
            (Some(800), 1000, ("more", "under")),
            (Some(0), 0, ("more", "under")),
            (None, 5, ("unknown", "none")),
        ] {
            assert_eq!(verdict(expected, took), wanted, "{expected:?} of {took}");
        }
    }
}
