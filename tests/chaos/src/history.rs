//! What is known of a run of the farm: events, the builds' own files, acknowledgements and kills.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use model::{Attempt, BuildKey, BuildRecord, Phase, Priority, Sequence, State};

/// So long after a kill, or after what was stopped went on.
const EXCUSE_US: u64 = 2_000_000;

/// Everything that a run of the farm left behind.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The event stream, in its order.
    pub events: Vec<Event>,
    /// What the builds' processes wrote themselves.
    pub runs: Vec<Run>,
    /// Builds whose submission was acknowledged.
    pub acknowledged: BTreeSet<BuildKey>,
    /// What each build's command exits with.
    pub exit_codes: BTreeMap<BuildKey, i32>,
    /// Builds that someone tried to cancel: whether they were is left to chance, unless the answer said so.
    pub cancelled: BTreeMap<BuildKey, bool>,
    /// What was killed, stopped or emptied.
    pub kills: Vec<Kill>,
}

/// One message of the event stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its position.
    pub sequence: Sequence,
    /// When nats-server stored it, in microseconds since the Unix epoch, rounded up to a millisecond. From then on it holds.
    pub stored_us: u64,
    /// Whose it is.
    pub key: BuildKey,
    /// The build's priority, where the stream told it before.
    pub priority: Option<Priority>,
    /// What it says.
    pub what: What,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A change of state.
    Lifecycle(Box<BuildRecord>),
    /// Output.
    Console {
        /// Of this run,
        attempt: Attempt,
        /// which started at this position according to the writer,
        guard: Sequence,
        /// so much.
        bytes: u64,
    },
    /// What a worker did around the command.
    Tool {
        /// In this run,
        attempt: Attempt,
        /// which started at this position according to the writer.
        guard: Sequence,
    },
}

/// One run as its own processes saw it. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The build.
    pub key: BuildKey,
    /// Which run.
    pub attempt: Attempt,
    /// Its first line.
    pub start_us: u64,
    /// Its last line.
    pub last_us: u64,
    /// Its end, unless it was killed before.
    pub end_us: Option<u64>,
}

/// Something that was done to the farm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// When, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// Until when it stood still, for what was stopped; else the same.
    pub until_us: u64,
    /// To what, and which way.
    pub what: String,
}

impl Kill {
    /// Something that happened at one moment.
    pub fn at(time_us: u64, what: impl Into<String>) -> Self {
        Self { time_us, until_us: time_us, what: what.into() }
    }

    /// Whether it excuses an inversion at `time_us`: what was offered to the dead comes back late.
    pub fn excuses(&self, time_us: u64) -> bool {
        (self.time_us..=self.until_us.saturating_add(EXCUSE_US)).contains(&time_us)
    }
}

impl Event {
    /// The record of a change of state.
    pub fn record(&self) -> Option<&BuildRecord> {
        match &self.what {
            What::Lifecycle(record) => Some(record),
            What::Console { .. } | What::Tool { .. } => None,
        }
    }

    /// The record, to break it.
    pub fn record_mut(&mut self) -> Option<&mut BuildRecord> {
        match &mut self.what {
            What::Lifecycle(record) => Some(record),
            What::Console { .. } | What::Tool { .. } => None,
        }
    }

    /// The state that this event says the build is in, if it is a change of state.
    pub fn state(&self) -> Option<State> {
        self.record().map(BuildRecord::state)
    }

    /// Whether it is this change of state.
    pub fn is(&self, state: State) -> bool {
        self.state() == Some(state)
    }
}

impl History {
    /// The events of each build, in order.
    pub fn by_build(&self) -> BTreeMap<&BuildKey, Vec<&Event>> {
        let mut all: BTreeMap<&BuildKey, Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            all.entry(&event.key).or_default().push(event);
        }
        all
    }

    /// Everything that is known of one build, for people.
    pub fn story(&self, key: &BuildKey) -> String {
        let mut text = format!("build {key}\n");
        for event in self.events.iter().filter(|event| event.key == *key) {
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

    /// What was done to the farm, for people.
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

/// Seconds with their fraction, without the part that all share.
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
