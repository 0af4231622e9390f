//! The rows that build events of Bazel give.

use std::collections::BTreeMap;

use build_events::{Fact, Target, TestRun};
use bus::{BazelEvents, EventContent, Stored};
use model::{Attempt, BuildId, Group};
use sha2::{Digest as _, Sha256};

use crate::{
    plain::{INDEXED_MAX, clean, whole},
    rows::{TargetRow, TestRow, ToolInvocationRow},
    stream::LogStream,
    unreadable::Unreadable,
};

/// Maximum length in characters of texts that are in no index.
const TEXT_MAX: usize = 2000;
/// Bits of a place below its time: one for the stream, the others for the position.
const PLACE_BITS: u32 = 20;

/// What messages say about calls of build tools.
#[derive(Default)]
pub(crate) struct ToolRows {
    pub(crate) invocations: BTreeMap<i64, ToolInvocationRow>,
    pub(crate) targets: BTreeMap<(i64, String, String), TargetRow>,
    pub(crate) tests: BTreeMap<TestKey, TestRow>,
}

/// Call, label, run, shard, attempt and configuration.
type TestKey = (i64, String, i64, i64, i64, String);

/// A message with build events.
pub(crate) struct ToolMessage<'a> {
    pub(crate) group: &'a Group,
    /// Build that made the call.
    pub(crate) build: Option<(BuildId, Attempt)>,
    pub(crate) stored: &'a Stored,
    pub(crate) stream: LogStream,
}

impl ToolRows {
    /// Number of rows, for metrics.
    pub(crate) fn len(&self) -> usize {
        self.invocations.len() + self.targets.len() + self.tests.len()
    }

    /// Adds what the events in a message say.
    pub(crate) fn add(&mut self, message: &ToolMessage<'_>) -> Result<(), Unreadable> {
        let stored = message.stored;
        let found = BazelEvents::read(stored).ok_or(Unreadable::Headers)?;
        let packed = match found.content {
            EventContent::Inline(packed) => packed,
            EventContent::Blob(blob) => return Err(Unreadable::NoBlob { blob: blob.to_string() }),
        };
        let events = build_events::unpack(packed)?;
        let call = call(message.group, found.tool.as_str());
        let place = place(stored, message.stream);
        let mut row = ToolInvocationRow {
            build_id: message.build.map(|(id, _)| id.to_string()),
            build_attempt: message.build.map(|(_, attempt)| i64::from(attempt.0)),
            last_number: whole(found.last),
            complete: i64::from(found.complete),
            ..ToolInvocationRow::new(call, place, message.group.to_string(), found.tool.to_string())
        };
        for fact in events.iter().filter_map(build_events::fact) {
            self.add_fact(&mut row, fact);
        }
        self.invocations.entry(call).and_modify(|known| known.merge(&row)).or_insert(row);
        Ok(())
    }

    fn add_fact(&mut self, row: &mut ToolInvocationRow, fact: Fact) {
        let text = |text: &str| Some(clean(text, TEXT_MAX)).filter(|text| !text.is_empty());
        let time = |at: Option<i64>| at.filter(|at| *at >= 0);
        match fact {
            Fact::Started { command, version, at_ms } => {
                (row.command, row.version) = (text(&command), text(&version));
                row.started_ms = time(at_ms);
            }
            Fact::Patterns(patterns) => row.patterns = text(&patterns.join(" ")),
            Fact::Workspace { user, host } => {
                row.tool_user = user.as_deref().and_then(text);
                row.tool_host = host.as_deref().and_then(text);
            }
            Fact::Finished { exit_name, exit_code, at_ms } => {
                (row.exit_name, row.exit_code) = (text(&exit_name), Some(i64::from(exit_code)));
                row.finished_ms = time(at_ms);
            }
            Fact::Configured { target, kind, test_size, tags } => {
                let found = self.target(row.call, &target);
                (found.kind, found.test_size) = (text(&kind), test_size);
                found.tags = text(&tags.join(" "));
            }
            Fact::Completed { target, success } => {
                self.target(row.call, &target).end(if success { "built" } else { "failed" });
            }
            Fact::Aborted { target, reason } => self.target(row.call, &target).end(reason),
            Fact::TestSummary { target, status } => {
                self.target(row.call, &target).test_status = Some(status);
            }
            Fact::Test(run) => self.test(row, &run),
        }
    }

    fn target(&mut self, call: i64, target: &Target) -> &mut TargetRow {
        let (label, aspect) = (clean(&target.label, INDEXED_MAX), clean(&target.aspect, INDEXED_MAX));
        let key = (call, label.clone(), aspect.clone());
        self.targets.entry(key).or_insert_with(|| TargetRow::new(call, label, aspect))
    }

    fn test(&mut self, of: &ToolInvocationRow, run: &TestRun) {
        let text = |text: &str| Some(clean(text, TEXT_MAX)).filter(|text| !text.is_empty());
        let row = TestRow {
            call: of.call,
            label: clean(&run.target.label, INDEXED_MAX),
            run: run.run.into(),
            shard: run.shard.into(),
            attempt: run.attempt.into(),
            configuration: clean(&run.target.configuration, INDEXED_MAX),
            place: of.place,
            status: run.status,
            cached: i64::from(run.cached),
            started_ms: run.started_ms.filter(|at| *at >= 0),
            duration_ms: run.duration_ms.filter(|took| *took >= 0),
            strategy: text(&run.strategy),
            log: text(&run.log),
        };
        let key = (row.call, row.label.clone(), row.run, row.shard, row.attempt, row.configuration.clone());
        // An event that comes again says the same.
        self.tests.entry(key).or_insert(row);
    }
}

/// Stands for a call of a tool in the tables.
pub(crate) fn call(group: &Group, tool: &str) -> i64 {
    let hash = Sha256::digest(format!("{group}/{tool}").as_bytes());
    i64::from_be_bytes(hash.first_chunk().copied().unwrap_or_default())
}

/// Orders messages of both streams by time: no two of one millisecond have the same position in their stream.
fn place(stored: &Stored, stream: LogStream) -> i64 {
    let position = whole(stored.sequence.0) & ((1 << (PLACE_BITS - 1)) - 1);
    first_place(whole(stored.at.0)) + (position << 1) + i64::from(stream == LogStream::Bazel)
}

/// The place of the first message of a millisecond.
pub(crate) fn first_place(at_ms: i64) -> i64 {
    at_ms.saturating_mul(1 << PLACE_BITS)
}

impl ToolInvocationRow {
    fn new(call: i64, place: i64, build_group: String, tool_invocation: String) -> Self {
        Self {
            call,
            place,
            build_group,
            tool_invocation,
            build_id: None,
            build_attempt: None,
            command: None,
            patterns: None,
            version: None,
            tool_user: None,
            tool_host: None,
            started_ms: None,
            finished_ms: None,
            exit_name: None,
            exit_code: None,
            last_number: 0,
            complete: 0,
        }
    }

    /// Adds what a later message says of the call.
    fn merge(&mut self, later: &Self) {
        fn set<T: Clone>(known: &mut Option<T>, later: Option<&T>) {
            if let Some(later) = later {
                *known = Some(later.clone());
            }
        }
        set(&mut self.build_id, later.build_id.as_ref());
        set(&mut self.build_attempt, later.build_attempt.as_ref());
        set(&mut self.command, later.command.as_ref());
        set(&mut self.patterns, later.patterns.as_ref());
        set(&mut self.version, later.version.as_ref());
        set(&mut self.tool_user, later.tool_user.as_ref());
        set(&mut self.tool_host, later.tool_host.as_ref());
        set(&mut self.started_ms, later.started_ms.as_ref());
        set(&mut self.finished_ms, later.finished_ms.as_ref());
        set(&mut self.exit_name, later.exit_name.as_ref());
        set(&mut self.exit_code, later.exit_code.as_ref());
        self.place = self.place.min(later.place);
        self.last_number = self.last_number.max(later.last_number);
        self.complete = self.complete.max(later.complete);
    }
}

impl TargetRow {
    fn new(call: i64, label: String, aspect: String) -> Self {
        Self { call, label, aspect, kind: None, test_size: None, tags: None, status: None, test_status: None }
    }

    /// A target that failed in one configuration has failed.
    fn end(&mut self, status: &'static str) {
        if self.status != Some("failed") {
            self.status = Some(status);
        }
    }
}
