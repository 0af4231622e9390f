//! Records of a run of the farm: events, files written by the builds, acknowledgements and kills.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use model::{Attempt, BuildKey, BuildRecord, Phase, Priority, Sequence, State};

/// Microseconds after a kill, or after a stopped process continues, in which an inversion is excused.
const EXCUSE_US: u64 = 2_000_000;

/// All records of a run of the farm.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The event stream in stream order.
    pub events: Vec<Event>,
    /// Runs as recorded by the builds' own processes.
    pub runs: Vec<Run>,
    /// Builds whose submission was acknowledged.
    pub acknowledged: BTreeSet<BuildKey>,
    /// Expected exit code of each build's command.
    pub exit_codes: BTreeMap<BuildKey, i32>,
    /// Builds with a cancel request, and whether the answer confirmed it: without confirmation, the build may or may
    /// not have been cancelled.
    pub cancelled: BTreeMap<BuildKey, bool>,
    /// Faults that were injected: processes killed or stopped, stores emptied.
    pub kills: Vec<Kill>,
}

/// One message of the event stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Position in the stream.
    pub sequence: Sequence,
    /// Time when nats-server stored the event, in microseconds since the Unix epoch, rounded up to a millisecond. The
    /// event is effective from then on.
    pub stored_us: u64,
    pub key: BuildKey,
    /// Priority of the build, if an earlier event has it.
    pub priority: Option<Priority>,
    /// Content of the event.
    pub what: What,
}

/// Content of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A change of state.
    Lifecycle(Box<BuildRecord>),
    /// Console output of a run.
    Console {
        attempt: Attempt,
        /// Stream position of the run's start, according to the writer.
        guard: Sequence,
        /// Size of the output in bytes.
        bytes: u64,
    },
    /// A tool event of the worker.
    Tool {
        attempt: Attempt,
        /// Stream position of the run's start, according to the writer.
        guard: Sequence,
    },
}

/// One run as its own processes recorded it. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub key: BuildKey,
    pub attempt: Attempt,
    /// Time of the first line of the run.
    pub start_us: u64,
    /// Time of the last line of the run.
    pub last_us: u64,
    /// Time of the end; `None` if the run was killed.
    pub end_us: Option<u64>,
}

/// A fault that was injected into the farm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// Time of the fault in microseconds since the Unix epoch.
    pub time_us: u64,
    /// End of a stop in microseconds since the Unix epoch; equal to `time_us` for other faults.
    pub until_us: u64,
    /// Name of the target, and kind of the fault.
    pub what: String,
}

impl Kill {
    /// Creates an instantaneous fault.
    pub fn at(time_us: u64, what: impl Into<String>) -> Self {
        Self { time_us, until_us: time_us, what: what.into() }
    }

    /// Returns whether the fault excuses an inversion at `time_us`: builds that were offered to a
    /// dead process return late.
    pub fn excuses(&self, time_us: u64) -> bool {
        (self.time_us..=self.until_us.saturating_add(EXCUSE_US)).contains(&time_us)
    }
}

impl Event {
    /// Returns the record of a change of state.
    pub fn record(&self) -> Option<&BuildRecord> {
        match &self.what {
            What::Lifecycle(record) => Some(record),
            What::Console { .. } | What::Tool { .. } => None,
        }
    }

    /// Returns the record for mutation.
    pub fn record_mut(&mut self) -> Option<&mut BuildRecord> {
        match &mut self.what {
            What::Lifecycle(record) => Some(record),
            What::Console { .. } | What::Tool { .. } => None,
        }
    }

    /// Returns the state of the build after this event, if it is a change of state.
    pub fn state(&self) -> Option<State> {
        self.record().map(BuildRecord::state)
    }

    /// Returns whether the event is a change to this state.
    pub fn is(&self, state: State) -> bool {
        self.state() == Some(state)
    }
}

impl History {
    /// Returns the events of each build, in stream order.
    pub fn by_build(&self) -> BTreeMap<&BuildKey, Vec<&Event>> {
        let mut all: BTreeMap<&BuildKey, Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            all.entry(&event.key).or_default().push(event);
        }
        all
    }

    /// Describes all records of one build.
    pub fn story(&self, key: &BuildKey) -> String {
        let mut text = format!("build {key}\n");
        for event in self.events.iter().filter(|event| event.key == *key) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "    {:>7} {}", event.sequence, line(&event.what));
        }
        for run in self.runs.iter().filter(|run| run.key == *key) {
            let end = run.end_us.map_or_else(|| "no end".to_owned(), |end| format!("end {}", clock(end)));
            let (start, last) = (clock(run.start_us), clock(run.last_us));
            let _ =
                writeln!(text, "    its own file: attempt {} start {start} last {last} {end}", run.attempt);
        }
        if !self.acknowledged.contains(key) {
            text.push_str("    its submission was not acknowledged\n");
        }
        text
    }

    /// Describes all injected faults.
    pub fn kill_list(&self) -> String {
        let until = |kill: &Kill| {
            if kill.until_us > kill.time_us {
                format!(" until {}", clock(kill.until_us))
            } else {
                String::new()
            }
        };
        let line = |kill: &Kill| format!("    {} {}{}\n", clock(kill.time_us), kill.what, until(kill));
        self.kills.iter().map(line).collect()
    }
}

/// Seconds with microseconds, without the leading digits that all times share.
pub(crate) fn clock(time_us: u64) -> String {
    format!("{}.{:06}", time_us / 1_000_000 % 100_000, time_us % 1_000_000)
}

fn line(what: &What) -> String {
    let record = match what {
        What::Console { attempt, guard, bytes } => {
            return format!("console      attempt {attempt} guard {guard} {bytes} bytes");
        }
        What::Tool { attempt, guard } => return format!("tool         attempt {attempt} guard {guard}"),
        What::Lifecycle(record) => record,
    };
    let (attempt, at) = (record.attempt, clock(record.at_ms.0 * 1000));
    let mut text = format!("{:<12} attempt {attempt} at {at}", record.state().as_str());
    // Writing to a String cannot fail.
    let _ = match &record.phase {
        Phase::Enqueued => match &record.queue.retry {
            None => write!(text, " {} first", record.build.priority),
            Some(retry) => write!(text, " {} after: {}", record.build.priority, retry.reason.message),
        },
        Phase::InProgress { invocation } => write!(
            text,
            " on {}/{} lease {} dispatched {} at position {}",
            invocation.worker,
            invocation.workspace,
            invocation.lease_revision,
            clock(invocation.dispatched_at_us),
            invocation.dispatched_at_sequence
        ),
        Phase::Finished { result, .. } => {
            let why = result.reason.as_ref().map(|reason| reason.message.as_str()).unwrap_or_default();
            write!(text, " {} exit {:?} {why}", result.outcome.as_str(), result.exit_code)
        }
    };
    text
}
