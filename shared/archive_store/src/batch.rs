//! What a run of messages changes: rows by table. Pure: the same messages always give the same rows, and of one build's
//! states only the last one is kept.

use std::collections::{BTreeMap, BTreeSet};

use bus::{BazelEvents, BazelSubject, EventKind, EventSubject, Stored};
use model::{BuildKey, Millis, Sequence};

use crate::{
    action_rows, audit_rows,
    build_rows::{self, BuildRows},
    console_rows, event_rows,
    plain::{clean, whole},
    rows::{
        ActionRow, AuditRow, BuildRow, ConsoleRow, InvocationRow, PieceRow, PreparedRow, SetAsideRow, TaskRow,
    },
    stream::LogStream,
    tool_rows::{ToolMessage, ToolRows},
    unreadable::Unreadable,
};

/// The changes that consecutive messages of one stream make, to be written in one transaction.
pub struct Batch {
    pub(crate) stream: LogStream,
    /// What is added to positions of the stream: a stream that was created again starts at 1.
    base: i64,
    pub(crate) last: Option<(i64, Millis)>,
    pub(crate) builds: BTreeMap<BuildKey, BuildRows>,
    /// Builds that ended and whose id was published again in this batch: they count in sums only.
    pub(crate) superseded: Vec<BuildRow>,
    /// Builds of which this batch has anything.
    named: BTreeSet<BuildKey>,
    pub(crate) invocations: BTreeMap<(i64, i64), InvocationRow>,
    pub(crate) prepared: Vec<PreparedRow>,
    pub(crate) consoles: BTreeMap<(BuildKey, i64, &'static str), ConsoleRow>,
    pub(crate) pieces: Vec<PieceRow>,
    pub(crate) tasks: BTreeMap<(BuildKey, i64, String), TaskRow>,
    pub(crate) actions: BTreeMap<i64, ActionRow>,
    pub(crate) tools: ToolRows,
    pub(crate) audit: Vec<AuditRow>,
    pub(crate) set_aside: Vec<SetAsideRow>,
}

impl Batch {
    /// An empty batch of `stream`, whose positions are counted from `base`.
    pub fn new(stream: LogStream, base: i64) -> Self {
        Self {
            stream,
            base,
            last: None,
            builds: BTreeMap::new(),
            superseded: Vec::new(),
            named: BTreeSet::new(),
            invocations: BTreeMap::new(),
            prepared: Vec::new(),
            consoles: BTreeMap::new(),
            pieces: Vec::new(),
            tasks: BTreeMap::new(),
            actions: BTreeMap::new(),
            tools: ToolRows::default(),
            audit: Vec::new(),
            set_aside: Vec::new(),
        }
    }

    /// Adds a message, which follows those added before. One that cannot be read is set aside, with the reason.
    pub fn add(&mut self, stored: &Stored) {
        let position = self.position(stored.sequence);
        let added = match self.stream {
            LogStream::Events => self.add_event(stored, position),
            LogStream::Actions => self.add_action(stored, position),
            LogStream::Bazel => self.add_outside_call(stored),
            LogStream::Audit => audit_rows::row(stored, position).map(|row| self.audit.push(row)),
        };
        if let Err(error) = added {
            self.set_aside(stored, &telemetry::error_chain(&error));
        }
        self.last = Some((position, stored.at));
    }

    /// Adds nothing of a message but the reason why it cannot be archived.
    pub fn set_aside(&mut self, stored: &Stored, reason: &str) {
        let position = self.position(stored.sequence);
        self.set_aside.push(SetAsideRow {
            stream: self.stream.name(),
            position,
            subject: clean(&stored.subject, 1000),
            at_ms: whole(stored.at.0),
            size_bytes: whole(stored.payload.len() as u64),
            reason: clean(reason, 1000),
        });
        self.last = Some((position, stored.at));
    }

    /// Number of rows, for metrics.
    pub fn rows(&self) -> usize {
        let of_builds =
            self.builds.values().map(|rows| 3 + rows.properties.len() + rows.outputs.len()).sum::<usize>();
        let of_console = self.consoles.len() + self.pieces.len();
        let of_events = self.invocations.len() + self.prepared.len() + of_console + self.tasks.len();
        of_builds
            + of_events
            + self.actions.len()
            + self.tools.len()
            + self.audit.len()
            + self.set_aside.len()
    }

    /// Position and reason of each message that is set aside.
    pub fn refused(&self) -> impl Iterator<Item = (i64, &str)> {
        self.set_aside.iter().map(|row| (row.position, row.reason.as_str()))
    }

    /// The stream of its messages.
    pub fn stream(&self) -> LogStream {
        self.stream
    }

    /// Position of the last message, counted from the base; none if the batch is empty.
    pub fn last_position(&self) -> Option<i64> {
        self.last.map(|(position, _)| position)
    }

    fn position(&self, sequence: Sequence) -> i64 {
        whole(sequence.0).saturating_add(self.base)
    }

    fn add_event(&mut self, stored: &Stored, position: i64) -> Result<(), Unreadable> {
        let EventSubject { key, kind } = stored.subject.parse()?;
        self.add_event_of(&key, kind, stored, position)?;
        self.named.insert(key);
        Ok(())
    }

    fn add_event_of(
        &mut self,
        key: &BuildKey,
        kind: EventKind,
        stored: &Stored,
        position: i64,
    ) -> Result<(), Unreadable> {
        match kind {
            EventKind::Lifecycle => {
                let record = stored.record()?;
                if record.build.key() != *key {
                    return Err(Unreadable::OtherKey { named: record.build.key().to_string() });
                }
                let place = record.queue.first_sequence.map_or(position, |first| self.position(first));
                if place == position && self.named.contains(key) {
                    self.supersede(key);
                }
                for row in build_rows::invocations(&record, place) {
                    let known = self.invocations.entry((row.place, row.attempt));
                    known.and_modify(|known| known.merge(&row)).or_insert(row);
                }
                let rows = build_rows::rows(&record, &stored.payload, place, position);
                self.builds.insert(key.clone(), rows);
            }
            EventKind::Console => {
                self.pieces.push(console_rows::piece(key, stored, position)?);
                if let Some(row) = console_rows::extent(key, stored, position)? {
                    let known = self.consoles.entry((key.clone(), row.attempt, row.output));
                    known.and_modify(|known| known.merge(&row)).or_insert(row);
                }
            }
            EventKind::Tool => match event_rows::tool(key, stored, position)? {
                event_rows::WorkerRows::Prepared(row) => self.prepared.push(row),
                event_rows::WorkerRows::Tasks(rows) => {
                    let keyed =
                        rows.into_iter().map(|row| ((key.clone(), row.attempt, row.task.clone()), row));
                    self.tasks.extend(keyed);
                }
                event_rows::WorkerRows::None => {}
            },
            EventKind::Bazel => {
                let build = BazelEvents::attempt(stored).map(|attempt| (key.id, attempt));
                self.tools.add(&ToolMessage { group: &key.group, build, stored, stream: self.stream })?;
            }
        }
        Ok(())
    }

    /// Drops the rows of an earlier build with the same id: this is the first event of another one.
    fn supersede(&mut self, key: &BuildKey) {
        if let Some(rows) = self.builds.remove(key) {
            self.invocations.retain(|(place, _), _| *place != rows.build.place);
            self.superseded.extend(Some(rows.build).filter(|build| build.outcome.is_some()));
        }
        let (group, id) = (key.group.to_string(), key.id.to_string());
        self.consoles.retain(|(of, ..), _| of != key);
        self.tasks.retain(|(of, ..), _| of != key);
        self.pieces.retain(|row| (&row.build_group, &row.build_id) != (&group, &id));
        self.prepared.retain(|row| (&row.build_group, &row.build_id) != (&group, &id));
    }

    fn add_outside_call(&mut self, stored: &Stored) -> Result<(), Unreadable> {
        match stored.subject.parse()? {
            BazelSubject::Events(group, _) => {
                self.tools.add(&ToolMessage { group: &group, build: None, stored, stream: self.stream })
            }
            // It says nothing but which blob is kept.
            BazelSubject::Blob(..) => Ok(()),
        }
    }

    fn add_action(&mut self, stored: &Stored, position: i64) -> Result<(), Unreadable> {
        let subject: bus::ActionSubject = stored.subject.parse()?;
        let record = stored.execution()?;
        if record.execution.key() != subject.0 {
            return Err(Unreadable::OtherKey { named: record.execution.key().to_string() });
        }
        let place = if record.place == Sequence(0) { position } else { self.position(record.place) };
        self.actions.insert(place, action_rows::row(&record, place, position));
        Ok(())
    }
}
