//! Collects builds in order of arrival from the lifecycle events of their ends.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use model::{BuildRecord, Group, Invocation, Millis, Outcome, Phase, Priority, Sequence, State, WorkerId};
use policy::BuildWork;
use serde::Serialize;

/// Longest time in which a workspace is handed over to the next build. If it was idle for longer, the build waited for
/// something else, e.g. its quota.
const HAND_OVER_MAX: Duration = Duration::from_millis(200);

/// A build in the input format of the simulator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedBuild {
    pub arrival_ms: u64,
    pub duration_ms: u64,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) requirements: BTreeMap<String, String>,
    group: Group,
    pub(crate) priority: Priority,
    submitter: String,
    labels: BTreeMap<String, String>,
    command: String,
    limit_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimate_ms: Option<u64>,
    pub waited_ms: u64,
    outcome: Outcome,
}

/// Keeps builds until all that arrived earlier have ended.
#[derive(Debug)]
pub struct Recorder {
    since: Option<Millis>,
    group: Option<Group>,
    /// Builds by arrival; `None` if the build has not ended.
    builds: BTreeMap<(Millis, Sequence), Option<RecordedBuild>>,
    /// End of the last build of each workspace.
    ends: HashMap<(WorkerId, u16), Millis>,
    /// The first arrival, which is time 0, and the latest one returned.
    handed_out: Option<(Millis, Millis)>,
}

impl Recorder {
    /// A recorder of the builds of `group`, or all groups, that were queued `since` then, or at any time.
    pub fn new(since: Option<Millis>, group: Option<Group>) -> Self {
        Self { since, group, builds: BTreeMap::new(), ends: HashMap::new(), handed_out: None }
    }

    /// Processes a lifecycle event.
    pub fn take(&mut self, record: &BuildRecord, position: Sequence) {
        let build = &record.build;
        let arrived = build.submitted_at_ms;
        let since = self.busy_since(record);
        let other = self.group.as_ref().is_some_and(|group| *group != build.group);
        if other || self.since.is_some_and(|since| arrived < since) {
            return;
        }
        let key = (arrived, record.queue.first_sequence.unwrap_or(position));
        match (record.state(), recorded(record, since)) {
            (State::Enqueued | State::InProgress, _) => {
                self.builds.insert(key, None);
            }
            (State::Finished, Some(recorded)) => {
                self.builds.insert(key, Some(recorded));
            }
            // It never ran, so it occupied no workspace.
            (State::Finished, None) => {
                self.builds.remove(&key);
            }
        }
    }

    /// Time since which a build that ended occupied its workspace. If it waited while another build occupied the
    /// workspace, this includes the hand-over, which takes no time in the simulator and is therefore added to the run.
    fn busy_since(&mut self, record: &BuildRecord) -> Option<Millis> {
        let Phase::Finished { invocation: Some(run), .. } = &record.phase else { return None };
        let Invocation { worker, workspace, started_at_ms: started, .. } = run;
        let before = self.ends.insert((worker.clone(), *workspace), record.at_ms);
        let waited = |end: &Millis| record.build.submitted_at_ms <= *end;
        let handed_over = |end: &Millis| *started >= *end && started.since(*end) <= HAND_OVER_MAX;
        Some(before.filter(|end| waited(end) && handed_over(end)).unwrap_or(*started))
    }

    /// Removes and returns the builds that have ended and have no unfinished build before them.
    pub fn ready(&mut self) -> Vec<RecordedBuild> {
        let mut ready = Vec::new();
        while let Some(first) = self.builds.first_entry().filter(|first| first.get().is_some()) {
            let ((arrived, _), build) = first.remove_entry();
            ready.extend(build.map(|build| self.hand_out(arrived, build)));
        }
        ready
    }

    /// Removes and returns all builds that have ended; unfinished ones are dropped.
    pub fn rest(&mut self) -> Vec<RecordedBuild> {
        let ended = std::mem::take(&mut self.builds).into_iter();
        let ended = ended.filter_map(|((arrived, _), build)| Some((arrived, build?)));
        ended.map(|(arrived, build)| self.hand_out(arrived, build)).collect()
    }

    /// Converts arrivals to relative times. Clocks of enqueuers may differ, so an arrival is never earlier
    /// than those already returned.
    fn hand_out(&mut self, arrived: Millis, build: RecordedBuild) -> RecordedBuild {
        let (first, last) = self.handed_out.unwrap_or((arrived, arrived));
        let arrived = arrived.max(last);
        self.handed_out = Some((first, arrived));
        RecordedBuild { arrival_ms: arrived.0 - first.0, ..build }
    }
}

/// The recorded form of a finished build that occupied a workspace `since` then; `None` if it never ran.
fn recorded(record: &BuildRecord, since: Option<Millis>) -> Option<RecordedBuild> {
    let Phase::Finished { invocation: Some(run), result } = &record.phase else { return None };
    let millis = |from: Millis, to: Millis| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
    let build = &record.build;
    let work = BuildWork::of(build);
    let hardware = Some(work.hardware).filter(|hardware| !hardware.is_empty());
    Some(RecordedBuild {
        arrival_ms: 0,
        duration_ms: millis(since.unwrap_or(run.started_at_ms), record.at_ms),
        kind: work.environment,
        requirements: hardware.map(|hardware| ("hwgroup".to_owned(), hardware)).into_iter().collect(),
        group: build.group.clone(),
        priority: build.priority,
        submitter: work.submitter,
        labels: work.labels,
        command: work.command,
        limit_ms: build.timeout_seconds.saturating_mul(1000),
        estimate_ms: build.expected_ms,
        waited_ms: millis(build.submitted_at_ms, run.started_at_ms),
        outcome: result.outcome,
    })
}

#[cfg(test)]
mod tests {
    use model::{BuildId, BuildRequest, BuildResult, Invocation, ReasonCode, RequestLimits};

    use super::*;
    use crate::stream::Stream;

    fn queued(at: u64) -> BuildRecord {
        let request = BuildRequest {
            id: Some(BuildId::generate()),
            command: vec!["make".to_owned()],
            ..BuildRequest::default()
        };
        let group = "ci".parse().unwrap();
        let accepted = request.validate(&group, None, None, &RequestLimits::default(), Millis(at));
        BuildRecord::enqueued(accepted.unwrap().build)
    }

    fn run(record: &BuildRecord, position: u64, from: u64, to: u64) -> BuildRecord {
        let invocation = Invocation {
            id: None,
            worker: "w".parse().unwrap(),
            workspace: 0,
            lease_revision: 1,
            started_at_ms: Millis(from),
            dispatched_at_us: 0,
            dispatched_at_sequence: Sequence(0),
            workspace_kind: None,
        };
        let result = BuildResult::without_run(Outcome::Failed, ReasonCode::CommandFailed, "");
        record.started(invocation, Sequence(position)).finished(result, Millis(to))
    }

    fn times(builds: &[RecordedBuild]) -> Vec<(u64, u64, u64)> {
        builds.iter().map(|build| (build.arrival_ms, build.duration_ms, build.waited_ms)).collect()
    }

    #[test]
    fn builds_come_in_order_of_arrival_however_they_end() {
        let mut recorder = Recorder::new(None, None);
        let (long, short, cancelled) = (queued(1000), queued(1500), queued(1600));
        for (position, record) in (1..).zip([&long, &short, &cancelled]) {
            recorder.take(record, Sequence(position));
        }
        recorder.take(&run(&short, 2, 2000, 2100), Sequence(4));
        let ended = BuildResult::without_run(Outcome::Cancelled, ReasonCode::Cancelled, "");
        recorder.take(&cancelled.clone().placed(Sequence(3)).finished(ended, Millis(2200)), Sequence(5));
        assert!(recorder.ready().is_empty(), "an earlier build is still running");
        recorder.take(&run(&long, 1, 1200, 9000), Sequence(6));
        assert_eq!(times(&recorder.ready()), [(0, 7800, 200), (500, 100, 500)]);
        // Another enqueuer's clock is behind.
        recorder.take(&run(&queued(1400), 7, 1450, 1460), Sequence(8));
        assert_eq!(times(&recorder.rest()), [(500, 10, 50)]);
    }

    #[test]
    fn the_hand_over_of_a_workspace_is_part_of_the_run_that_waited_for_it() {
        let mut recorder = Recorder::new(None, None);
        for (position, record) in (1..).zip([
            run(&queued(1000), 1, 1000, 2000),
            run(&queued(1500), 2, 2010, 3000),
            // It arrived when the workspace was already idle,
            run(&queued(3005), 3, 3010, 4000),
            // and this one waited for something else.
            run(&queued(3900), 4, 9000, 9500),
        ]) {
            recorder.take(&record, Sequence(position));
        }
        assert_eq!(
            times(&recorder.rest()),
            [(0, 1000, 0), (500, 1000, 510), (2005, 990, 5), (2900, 500, 5100)]
        );
    }

    #[test]
    fn what_has_not_ended_and_what_was_not_asked_for_is_left_out() {
        let mut recorder = Recorder::new(Some(Millis(1000)), Some("ci".parse().unwrap()));
        recorder.take(&queued(2000), Sequence(1));
        recorder.take(&run(&queued(900), 2, 1100, 1200), Sequence(3));
        let mut elsewhere = run(&queued(3000), 4, 3000, 3100);
        elsewhere.build.group = "other".parse().unwrap();
        recorder.take(&elsewhere, Sequence(5));
        recorder.take(&run(&queued(3000), 6, 3000, 3300), Sequence(7));
        assert_eq!(times(&recorder.rest()), [(0, 300, 0)]);
    }

    #[test]
    fn recorded_builds_are_the_jobs_that_their_lines_describe() {
        let mut recorder = Recorder::new(None, None);
        let (mut known, unknown) = (run(&queued(1000), 1, 1000, 2000), run(&queued(1500), 2, 2000, 3000));
        known.build.expected_ms = Some(7);
        known.build.priority = Priority::Batch;
        recorder.take(&known, Sequence(1));
        recorder.take(&unknown, Sequence(2));
        let builds = recorder.rest();
        let stream = Stream::of_builds("week", &builds);
        for (job, build) in stream.jobs.iter().zip(&builds) {
            let line = serde_json::to_value(build).unwrap();
            assert_eq!(line["arrival_ms"], job.arrival_ms);
            assert_eq!(line["duration_ms"], job.duration_ms);
            assert_eq!(line["priority"], serde_json::to_value(job.priority).unwrap());
            assert_eq!(line["type"], stream.kinds[job.kind as usize].as_str());
            let asked = &stream.requirements[job.requirements as usize];
            assert_eq!(line["requirements"], serde_json::to_value(asked).unwrap());
        }
        let estimates: Vec<u64> = stream.jobs.iter().map(|job| job.estimate_ms).collect();
        assert_eq!(estimates, [7, policy::queue::UNKNOWN_ESTIMATE_MS]);
    }
}
