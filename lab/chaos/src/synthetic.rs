//! Generates a history as a farm without faults writes it, in which workers die now and then.

use std::{collections::BTreeMap, time::Duration};

use model::{
    Attempt, BuildId, BuildKey, BuildRecord, BuildRequest, BuildResult, Invocation, InvocationId, LogSummary,
    Millis, Outcome, Priority, Reason, ReasonCode, RequestLimits, Retry, Sequence, TimeLimits, WorkerId,
};

use crate::{Event, History, Kill, Random, Run, What};

const BUILDS: u64 = 80;
const WORKSPACES: usize = 4;
const GROUPS: [&str; 3] = ["amber", "birch", "coral"];
const TIMES: TimeLimits =
    TimeLimits { timeout_seconds: 60, queue_timeout_seconds: 600, lease_ttl_seconds: 2 };
/// An arbitrary start time, in microseconds since the Unix epoch.
const BEGIN: u64 = 1_700_000_000_000_000;
const LEASE_US: u64 = 2_000_000;
const CONSOLE_BYTES: u64 = 18;

/// Generates a good history, a different one for every seed.
pub fn history(seed: u64) -> History {
    let mut farm = SyntheticFarm::new(seed);
    while let Some((at, number)) = farm.agenda.pop_first() {
        farm.now = at.0;
        farm.handle(number);
        farm.dispatch();
    }
    farm.history
}

/// The next event of a build.
#[derive(Debug, Clone)]
enum BuildEvent {
    Arrives(Box<BuildRecord>),
    Ends(Box<BuildRecord>, Sequence),
    Dies(Box<BuildRecord>, Sequence),
    IsRequeued(Box<BuildRecord>),
}

struct SyntheticFarm {
    random: Random,
    now: u64,
    sequence: u64,
    numbers: u64,
    free: usize,
    /// Ordered by time; the second number distinguishes simultaneous entries.
    agenda: BTreeMap<(u64, u64), BuildEvent>,
    waiting: Vec<(Sequence, BuildRecord)>,
    history: History,
}

impl SyntheticFarm {
    fn new(seed: u64) -> Self {
        let mut farm = Self {
            random: Random::new(seed),
            now: BEGIN,
            sequence: 0,
            numbers: 0,
            free: WORKSPACES,
            agenda: BTreeMap::new(),
            waiting: Vec::new(),
            history: History::default(),
        };
        for _ in 0..BUILDS {
            let at = BEGIN + farm.random.between(0, 12_000_000);
            let Some(record) = farm.request(at) else {
                unreachable!("a generated request is invalid");
            };
            farm.schedule(at, BuildEvent::Arrives(Box::new(record)));
        }
        farm
    }

    fn request(&mut self, at: u64) -> Option<BuildRecord> {
        let group = self.random.pick(&GROUPS)?.parse().ok()?;
        let priority = *self.random.pick(&Priority::ALL)?;
        let request = BuildRequest {
            id: Some(BuildId::generate()),
            command: vec!["true".into()],
            ..BuildRequest::default()
        };
        let limits = RequestLimits {
            times: TIMES,
            times_max: TIMES,
            attempts: 30,
            attempts_max: 50,
            ..RequestLimits::default()
        };
        let accepted = request.validate(&group, Some(priority), None, &limits, Millis(at / 1000)).ok()?;
        Some(BuildRecord::enqueued(accepted.build))
    }

    fn schedule(&mut self, at: u64, next: BuildEvent) {
        self.numbers += 1;
        self.agenda.insert((at, self.numbers), next);
    }

    fn record_event(&mut self, key: &BuildKey, what: What) -> Sequence {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let priority = match &what {
            What::Lifecycle(record) => Some(record.build.priority),
            What::Console { .. } | What::Tool { .. } => None,
        };
        self.history.events.push(Event { sequence, stored_us: self.now, key: key.clone(), priority, what });
        sequence
    }

    fn record_lifecycle(&mut self, record: &BuildRecord) -> Sequence {
        self.record_event(&record.build.key(), What::Lifecycle(Box::new(record.clone())))
    }

    fn handle(&mut self, next: BuildEvent) {
        match next {
            BuildEvent::Arrives(record) => {
                let key = record.build.key();
                self.history.acknowledged.insert(key.clone());
                self.history.exit_codes.insert(key, 0);
                let at = self.record_lifecycle(&record);
                self.waiting.push((at, *record));
            }
            BuildEvent::IsRequeued(record) => {
                let at = self.record_lifecycle(&record);
                self.waiting.push((at, *record));
            }
            BuildEvent::Ends(record, guard) => self.end(&record, guard),
            BuildEvent::Dies(record, guard) => self.die(&record, guard),
        }
    }

    fn output(&mut self, record: &BuildRecord, guard: Sequence) {
        let what = What::Console { attempt: record.attempt, guard, bytes: CONSOLE_BYTES };
        self.record_event(&record.build.key(), what);
    }

    fn write_run(&mut self, record: &BuildRecord, ended: bool) {
        let start_us = record.invocation().map_or(self.now, |invocation| invocation.dispatched_at_us + 200);
        let (key, attempt) = (record.build.key(), record.attempt);
        let end_us = ended.then_some(self.now);
        self.history.runs.push(Run { key, attempt, start_us, last_us: self.now, end_us });
    }

    fn end(&mut self, record: &BuildRecord, guard: Sequence) {
        self.free += 1;
        self.output(record, guard);
        self.write_run(record, true);
        let mut result = BuildResult::without_run(Outcome::Succeeded, ReasonCode::Cancelled, "");
        result.reason = None;
        result.exit_code = Some(0);
        result.log =
            LogSummary { stdout_bytes: CONSOLE_BYTES, bus_bytes: CONSOLE_BYTES, ..LogSummary::default() };
        self.record_lifecycle(&record.finished(result, Millis(self.now / 1000)));
    }

    fn die(&mut self, record: &BuildRecord, guard: Sequence) {
        self.free += 1;
        self.output(record, guard);
        self.write_run(record, false);
        self.history.kills.push(Kill::at(self.now, "SIGKILL worker"));
        let Some(invocation) = record.invocation() else {
            unreachable!("a build that was not started cannot be lost");
        };
        let at = self.now + LEASE_US;
        let reason = Reason { code: ReasonCode::LeaseExpired, message: "the lease expired".into() };
        let retry = Retry { reason, worker: invocation.worker.clone(), invocation: invocation.id };
        self.schedule(at, BuildEvent::IsRequeued(Box::new(record.requeued(retry, true, Millis(at / 1000)))));
    }

    /// Starts the most urgent, then oldest build of the group that is next.
    fn dispatch(&mut self) {
        while self.free > 0 && !self.waiting.is_empty() {
            let turn = self.random.position(self.waiting.len());
            let Some(group) = self.waiting.get(turn).map(|(_, record)| record.build.group.clone()) else {
                unreachable!("a random position is an index");
            };
            let urgency = |(at, record): &(Sequence, BuildRecord)| {
                (record.build.priority.rank(), record.queue.first_sequence.unwrap_or(*at))
            };
            let waiting = self.waiting.iter().enumerate();
            let best = waiting.filter(|(_, (_, record))| record.build.group == group);
            let Some((place, _)) = best.min_by_key(|(_, waits)| urgency(waits)) else {
                unreachable!("the group was chosen by one of its builds");
            };
            let (at, record) = self.waiting.swap_remove(place);
            self.start(at, &record);
        }
    }

    fn start(&mut self, position: Sequence, record: &BuildRecord) {
        let Ok(worker) = "worker-0".parse::<WorkerId>() else {
            unreachable!("the name of the worker is invalid");
        };
        self.free -= 1;
        self.now += 20;
        let invocation = Invocation {
            id: Some(InvocationId::generate()),
            worker,
            workspace: 0,
            lease_revision: self.sequence,
            started_at_ms: Millis(self.now / 1000),
            dispatched_at_us: self.now,
            dispatched_at_sequence: Sequence(self.sequence),
            workspace_kind: None,
        };
        let started = record.started(invocation, position);
        let guard = self.record_lifecycle(&started);
        self.record_event(&started.build.key(), What::Tool { attempt: started.attempt, guard });
        let span = self.random.millis(100, 900);
        let dies = self.random.once_in(8) && started.attempt < Attempt(5);
        let at = self.now + micros(span);
        let started = Box::new(started);
        self.schedule(
            at,
            if dies { BuildEvent::Dies(started, guard) } else { BuildEvent::Ends(started, guard) },
        );
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
