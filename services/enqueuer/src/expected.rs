//! Estimates of run times, and of which builds run actions: learned from ended builds, applied to queued ones. Every
//! replica reads the same log and learns the same.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{BusError, EventSubject, Follower, Start, Stored, millis, stream};
use model::{
    Build, BuildRecord, EstimateError, EstimatorKind, Esu, ExecutorType, LifecycleEvent, Occupancy, Outcome,
    RecordHead, ToolHints,
};
use parking_lot::Mutex;
use policy::{
    ActionSenders, BuildWork, LearnedTools, OccupancyError,
    estimate::{Estimator, Quality, Source},
    own_hints, target_keys,
};
use service::{Context, ServiceError};
use telemetry::metrics::{Counter, Gauge, Label, count, set};
use tracing::{debug, info, warn};

const BATCH: usize = 500;
/// Maximum number of keys with recorded durations; each build has four keys.
const KEYS_MAX: usize = 100_000;
/// Maximum number of targets with known tags and rules.
const TOOL_TARGETS_MAX: usize = 10_000;
const RETRY: Duration = Duration::from_secs(1);

/// The learned run times. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Expected(Arc<Mutex<LearnedTimes>>);

struct LearnedTimes {
    estimator: Estimator,
    quality: Quality,
    senders: ActionSenders,
    tools: LearnedTools,
    occupancy_error: OccupancyError,
}

/// A run that ended on its own.
struct EndedRun {
    record: BuildRecord,
    /// Time for which its workspace was occupied.
    took: Duration,
    /// ESU that it occupied; empty if it was not measured.
    usage: Occupancy,
    /// Part of `usage` that its actions occupied.
    on_executors: Occupancy,
}

impl Expected {
    /// Starts without any learned run times.
    pub(crate) fn new(kind: EstimatorKind) -> Self {
        let known = LearnedTimes {
            estimator: Estimator::new(kind, KEYS_MAX),
            quality: Quality::default(),
            senders: ActionSenders::new(KEYS_MAX),
            tools: LearnedTools::new(TOOL_TARGETS_MAX),
            occupancy_error: OccupancyError::default(),
        };
        Self(Arc::new(Mutex::new(known)))
    }

    /// Expected time in milliseconds for which `build` will occupy a workspace; `None` if no similar build has ended.
    pub(crate) fn of(&self, build: &Build) -> Option<u64> {
        let keys = BuildWork::of(build).keys();
        let estimate = self.0.lock().estimator.estimate(&keys, Duration::from_secs(build.timeout_seconds));
        (estimate.source != Source::HalfOfLimit).then_some(estimate.ms)
    }

    /// Whether `build` is expected to run actions on executors.
    pub(crate) fn sends_actions(&self, build: &Build) -> bool {
        self.0.lock().senders.expects(build)
    }

    /// What is known of the tool of `build`; `version_file` is the content of its file `.bazelversion`, if that is known.
    pub(crate) fn tool_hints(&self, build: &Build, version_file: Option<&str>) -> ToolHints {
        let (mut hints, targets) = (own_hints(build, version_file), target_keys(build));
        self.0.lock().tools.complete(&mut hints, &targets);
        hints
    }

    /// Accuracy of the latest estimates of occupancy by executor type.
    pub(crate) fn occupancy_error(&self) -> BTreeMap<ExecutorType, EstimateError> {
        self.0.lock().occupancy_error.means()
    }

    /// Learns from an end, and measures the error of its estimate. `live` is false for ends before this process
    /// started: those were measured then.
    fn learn(&self, ended: &EndedRun, live: bool) {
        let EndedRun { record, took, usage, on_executors } = ended;
        let build = &record.build;
        let keys = BuildWork::of(build).keys();
        let took_ms = millis(*took);
        let mut known = self.0.lock();
        known.estimator.observe(&keys, *took);
        known.senders.observe(build, on_executors.iter().any(|(_, amount)| amount > Esu::ZERO));
        if let Some(facts) = record.result().and_then(|result| result.tool.as_deref()) {
            known.tools.observe(build, facts);
        }
        if !usage.is_empty() {
            known.occupancy_error.observe(&build.occupancy, usage);
        }
        if let Some(expected_ms) = build.expected_ms {
            known.quality.observe(expected_ms, took_ms);
        }
        drop(known);
        if live {
            let (within, side) = verdict(build.expected_ms, took_ms);
            count(Counter::EstimatedBuilds, &[(Label::Within, within), (Label::Side, side)], 1);
        }
    }

    /// Publishes the accuracy of recent estimates as metrics.
    fn publish_metrics(&self) {
        for (kind, error) in self.occupancy_error() {
            let means = [
                ("mean", error.mean),
                ("mean_absolute", error.mean_absolute),
                ("root_mean_square", error.mean_square.sqrt()),
            ];
            for (name, mean) in means {
                let labels = [(Label::ExecutorType, kind.as_str()), (Label::Mean, name)];
                set(Gauge::OccupancyErrorMilliEsu, &labels, Esu::clamped(mean).micros() / 1000);
            }
        }
        let last = *self.0.lock().quality.last();
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

/// The accuracy of an estimate, as labels of the metric.
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

/// Reads recent ends, then follows new ones, until the service stops.
pub(crate) async fn follow(context: Context, expected: Expected) -> Result<(), ServiceError> {
    tokio::select! {
        () = context.stop.cancelled() => Ok(()),
        () = learn_continuously(&context, &expected) => Ok(()),
    }
}

async fn learn_continuously(context: &Context, expected: &Expected) {
    let last = loop {
        match context.bus.stream(stream::EVENTS).positions().await {
            Ok((_, last)) => break last,
            Err(error) => {
                warn!(
                    error = telemetry::error_chain(&error),
                    "cannot read past ends of builds yet, retrying until the bus answers"
                );
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    // An end is the last message on its subject, so earlier messages are not needed.
    let start = Start::LastOfEachSubject;
    let mut follower = Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
    let mut learned = 0_u64;
    loop {
        let live = follower.cursor() >= last;
        for stored in follower.next(BATCH).await {
            if let Some(ended) = ended_run(&stored) {
                learned += 1;
                expected.learn(&ended, live || stored.sequence > last);
            }
        }
        if follower.caught_up() {
            expected.publish_metrics();
            if !live {
                info!(learned, "learned run times from past builds");
            }
        }
    }
}

/// The end of a run in a lifecycle message, if the run ended on its own: an aborted run has no useful run time.
fn ended_run(stored: &Stored) -> Option<EndedRun> {
    let log_unreadable =
        |error: &BusError| debug!(error = telemetry::error_chain(error), "ignoring an unreadable event");
    // Two of three messages are not ends of builds: these are not read completely.
    let head: RecordHead = stored.read().inspect_err(log_unreadable).ok()?;
    if head.event != LifecycleEvent::Finished {
        return None;
    }
    let record = stored.record().inspect_err(log_unreadable).ok()?;
    let result = record.result()?;
    // A build that never started its command failed for an unrelated reason.
    let ran = result.exit_code.is_some() || result.job.is_some();
    let by_itself = ran && matches!(result.outcome, Outcome::Succeeded | Outcome::Failed);
    let took = record.at_ms.since(record.invocation()?.started_at_ms);
    let (usage, on_executors) = (result.usage.clone(), result.on_executors.clone());
    by_itself.then_some(EndedRun { record, took, usage, on_executors })
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
