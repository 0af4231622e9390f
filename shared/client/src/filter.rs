//! Which events of a build a watcher wants.

use build_events::{EventName, Summary};
use bus::{BazelEvents, EventContent, EventKind};
use bytes::BytesMut;
use model::{OutputStream, TaskId, TaskReport, ToolEvent};

use crate::{WatchBody, WatchEvent, WatchKind};

/// The events of a build that a watcher wants. Only those of these kinds leave the bus; each of the other parts narrows
/// the events of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchFilter {
    /// Kinds of events; empty: all.
    pub kinds: Vec<WatchKind>,
    /// The only output stream whose output is wanted.
    pub stream: Option<OutputStream>,
    /// The only tasks whose reports are wanted, and no other event of the worker; empty: all its events.
    pub tasks: Vec<TaskId>,
    /// The only build events of Bazel that are wanted; empty: all. Those that are in the store, because they are large,
    /// cannot be told apart, and come whatever they are.
    pub build_events: Vec<EventName>,
}

impl WatchFilter {
    pub fn of_kinds(kinds: &[WatchKind]) -> Self {
        Self { kinds: kinds.to_vec(), ..Self::default() }
    }

    pub fn wants(&self, kind: WatchKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// The kinds of stored events to read.
    pub(crate) fn event_kinds(&self) -> Vec<EventKind> {
        EventKind::ALL.into_iter().filter(|kind| self.wants((*kind).into())).collect()
    }

    /// The wanted part of an event; none if there is none.
    pub(crate) fn narrow(&self, event: WatchEvent) -> Option<WatchEvent> {
        if !self.wants(event.kind().into()) {
            return None;
        }
        let body = match event.body {
            WatchBody::Lifecycle(record) => WatchBody::Lifecycle(record),
            WatchBody::Console(chunk) => {
                let is_wanted = self.stream.is_none_or(|stream| stream == chunk.stream);
                WatchBody::Console(is_wanted.then_some(chunk)?)
            }
            WatchBody::Frame(mut frame) => {
                frame.only = self.stream;
                WatchBody::Frame(frame)
            }
            WatchBody::Tool(tool) => WatchBody::Tool(self.narrow_tool(tool)?),
            WatchBody::Bazel(events) => WatchBody::Bazel(self.narrow_bazel(events)?),
        };
        Some(WatchEvent { body, ..event })
    }

    fn narrow_tool(&self, tool: ToolEvent) -> Option<ToolEvent> {
        if self.tasks.is_empty() {
            return Some(tool);
        }
        let ToolEvent::TasksEnded { attempt, ended, tasks, reports, running, preliminary } = tool else {
            return None;
        };
        let is_wanted = |report: &TaskReport| self.tasks.contains(&report.id);
        let wanted =
            |reports: Vec<TaskReport>| -> Vec<TaskReport> { reports.into_iter().filter(is_wanted).collect() };
        let (reports, preliminary) = (wanted(reports), wanted(preliminary));
        let is_empty = reports.is_empty() && preliminary.is_empty();
        (!is_empty).then_some(ToolEvent::TasksEnded { attempt, ended, tasks, reports, running, preliminary })
    }

    fn narrow_bazel(&self, events: BazelEvents) -> Option<BazelEvents> {
        let EventContent::Inline(packed) = &events.content else { return Some(events) };
        if self.build_events.is_empty() {
            return Some(events);
        }
        let all = build_events::unpack(packed.clone()).unwrap_or_default();
        let wanted = all.into_iter().filter(|event| self.build_events.contains(&Summary::of(event).name));
        let mut kept = BytesMut::new();
        wanted.for_each(|event| build_events::pack(&mut kept, event));
        (!kept.is_empty()).then(|| BazelEvents { content: EventContent::Inline(kept.freeze()), ..events })
    }
}

#[cfg(test)]
mod tests {
    use build_events::service::{BuildEvent, Event, OrderedBuildEvent, StreamFinished};
    use bus::ConsoleChunk;
    use bytes::Bytes;
    use model::{Attempt, Sequence, TaskStatus};

    use super::*;

    fn event(body: WatchBody) -> WatchEvent {
        WatchEvent { position: Sequence(4), invocation: None, body }
    }

    fn output(stream: OutputStream) -> WatchEvent {
        let data = Bytes::from_static(b"x\n");
        event(WatchBody::Console(ConsoleChunk {
            stream,
            attempt: Attempt(1),
            offset: 0,
            dropped: None,
            data,
        }))
    }

    fn ended(ids: &[&str]) -> WatchEvent {
        let report = |id: &&str| TaskReport::new(id.parse().unwrap(), TaskStatus::Succeeded);
        let reports = ids.iter().map(report).collect();
        let (running, preliminary) = (None, Vec::new());
        let attempt = Attempt(1);
        let ended = ToolEvent::TasksEnded { attempt, ended: 2, tasks: 9, reports, running, preliminary };
        event(WatchBody::Tool(ended))
    }

    #[test]
    fn without_parts_a_filter_wants_everything() {
        let all = WatchFilter::default();
        for event in [output(OutputStream::Stderr), ended(&["a", "b"])] {
            assert_eq!(all.narrow(event.clone()), Some(event));
        }
        assert_eq!(all.event_kinds(), EventKind::ALL);
        assert_eq!(WatchFilter::of_kinds(&[WatchKind::Queue]).event_kinds(), []);
    }

    #[test]
    fn a_stream_narrows_output_and_nothing_else() {
        let filter = WatchFilter { stream: Some(OutputStream::Stderr), ..WatchFilter::default() };
        assert_eq!(filter.narrow(output(OutputStream::Stdout)), None);
        for event in [output(OutputStream::Stderr), ended(&["a"])] {
            assert_eq!(filter.narrow(event.clone()), Some(event));
        }
    }

    #[test]
    fn tasks_narrow_the_reports_of_the_worker() {
        let filter = WatchFilter { tasks: vec!["b".parse().unwrap()], ..WatchFilter::default() };
        assert_eq!(filter.narrow(ended(&["a", "b", "c"])), Some(ended(&["b"])));
        assert_eq!(filter.narrow(ended(&["a"])), None);
        let prepared = ToolEvent::WorkspacePrepared { attempt: Attempt(1), wall_seconds: 0.5 };
        assert_eq!(filter.narrow(event(WatchBody::Tool(prepared))), None);
        assert!(filter.narrow(output(OutputStream::Stdout)).is_some());
    }

    #[test]
    fn names_narrow_build_events() {
        let ordered = |sequence_number, inner| OrderedBuildEvent {
            sequence_number,
            event: Some(BuildEvent { event_time: None, event: Some(inner) }),
            ..OrderedBuildEvent::default()
        };
        let enqueued = ordered(1, Event::BuildEnqueued(Bytes::default()));
        let finished = ordered(2, Event::ComponentStreamFinished(StreamFinished::default()));
        let bazel = |all: &[&OrderedBuildEvent]| {
            let mut packed = BytesMut::new();
            for event in all {
                build_events::pack(&mut packed, (*event).clone());
            }
            let content = EventContent::Inline(packed.freeze());
            let tool = "call".parse().unwrap();
            event(WatchBody::Bazel(BazelEvents { tool, first: 1, last: 2, complete: true, content }))
        };
        let filter = WatchFilter { build_events: vec![EventName::StreamFinished], ..WatchFilter::default() };
        assert_eq!(filter.narrow(bazel(&[&enqueued, &finished])), Some(bazel(&[&finished])));
        assert_eq!(filter.narrow(bazel(&[&enqueued])), None);
    }
}
