//! What a watcher of a build subscribes to and reads: only the kinds of events that it wants.

use futures::{StreamExt as _, future::try_join_all, stream::SelectAll};
use model::{BuildKey, Sequence};

use crate::{
    Bus, BusError, EventKind, EventSubject, LiveConnection, Signals, Stored, StoredStream, Tail, stream,
};

/// Number of events that are read at once to find the last one.
const BATCH: usize = 256;

/// Kinds of events of a build: the changes of its state, which say when it ends, and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedKinds {
    console: bool,
    tool: bool,
    bazel: bool,
}

/// What proves that no wanted event is missing before a live one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// All events of a worker come, and they are counted.
    Count,
    /// One kind of a worker's events comes: each names the previous one on its subject, and the start of its attempt.
    Previous,
    /// Nothing: events on several subjects come that do not name each other.
    Unknown,
}

impl WatchedKinds {
    pub const ALL: Self = Self { console: true, tool: true, bazel: true };

    /// These kinds and the changes of state.
    pub fn of(kinds: &[EventKind]) -> Self {
        let has = |kind| kinds.contains(&kind);
        Self { console: has(EventKind::Console), tool: has(EventKind::Tool), bazel: has(EventKind::Bazel) }
    }

    /// The kinds without the changes of state.
    pub(crate) fn kinds(self) -> Vec<EventKind> {
        let all = [
            (self.console, EventKind::Console),
            (self.tool, EventKind::Tool),
            (self.bazel, EventKind::Bazel),
        ];
        let wanted: Vec<EventKind> =
            all.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, kind)| kind).collect();
        if wanted.is_empty() { vec![EventKind::Lifecycle] } else { wanted }
    }

    /// How a watcher of these kinds knows that it has missed none.
    pub fn completeness(self) -> Completeness {
        match (self.console, self.tool, self.bazel) {
            (true, true, _) => Completeness::Count,
            (_, _, false) => Completeness::Previous,
            (_, _, true) => Completeness::Unknown,
        }
    }

    /// Ends of the subjects that have these kinds and no other.
    fn ends(self) -> Vec<&'static str> {
        match (self.console, self.tool, self.bazel) {
            (true, true, true) => vec![">"],
            (true, true, false) => vec!["*"],
            (console, tool, bazel) => {
                let ends = [(true, "lifecycle"), (console, "console"), (tool, "tool"), (bazel, "bazel.*")];
                ends.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, end)| end).collect()
            }
        }
    }

    /// The filters for stored events of one build.
    fn stored(self, key: &BuildKey) -> Vec<String> {
        let filter = |end| format!("forebay.build.event.{}.{}.{end}", key.group, key.id);
        self.ends().into_iter().map(filter).collect()
    }

    /// The plain subjects on which the server republishes events of one build as it stores them.
    fn live(self, key: &BuildKey) -> Vec<String> {
        let subject = |end| format!("forebay.build.live.{}.{}.{end}", key.group, key.id);
        self.ends().into_iter().map(subject).collect()
    }
}

impl LiveConnection {
    /// Subscribes to the events of a build from now on.
    pub async fn live_build(&self, key: &BuildKey, kinds: WatchedKinds) -> Result<LiveBuild, BusError> {
        let subscribed =
            try_join_all(kinds.live(key).into_iter().map(|subject| self.client.subscribe(subject)));
        let subscribers = subscribed.await.map_err(BusError::failed(format!("listening to build {key}")))?;
        Ok(LiveBuild(subscribers.into_iter().collect()))
    }
}

/// The events of one build as they are stored. Some may be lost, and those of different kinds may be swapped.
#[derive(Debug)]
pub struct LiveBuild(SelectAll<async_nats::Subscriber>);

/// A message on a build's live subject.
#[derive(Debug)]
pub enum LiveEvent {
    /// An event, and the position of the previous one on the same subject.
    Stored(Stored, Sequence),
    /// It cannot be read; the stream contains it.
    Unreadable,
}

impl LiveBuild {
    /// The next message; `None` after the connection was closed. May be dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Option<LiveEvent> {
        let message = self.0.next().await?;
        let event = Stored::from_live(message);
        Some(event.map_or(LiveEvent::Unreadable, |(stored, previous)| LiveEvent::Stored(stored, previous)))
    }
}

impl Bus {
    /// Signals that the state of some build changed, from now on. Some changes may be lost.
    pub async fn builds_changed(&self) -> Result<Signals, BusError> {
        self.signals_on("forebay.build.live.*.*.lifecycle".to_owned()).await
    }

    /// Position of the last console output of a build; 0 if there is none.
    ///
    /// # Errors
    ///
    /// Fails if the stream cannot be read.
    pub async fn last_console(&self, key: &BuildKey) -> Result<Sequence, BusError> {
        let subject = EventSubject { key: key.clone(), kind: EventKind::Console }.to_string();
        if self.reads(stream::EVENTS).await {
            let stored = self.stream(stream::EVENTS).last(&subject).await?;
            return Ok(stored.map_or(Sequence(0), |stored| stored.sequence));
        }
        let (mut last, mut from) = (Sequence(0), Sequence(0));
        let kinds = WatchedKinds::of(&[EventKind::Console]);
        loop {
            let Tail { events, more } = self.read_events(key, kinds, from, BATCH).await?;
            let of_console = events.iter().filter(|stored| stored.subject == subject);
            last = of_console.map(|stored| stored.sequence).max().unwrap_or(last);
            match events.last() {
                Some(stored) if more => from = Sequence(stored.sequence.0.saturating_add(1)),
                Some(_) | None => return Ok(last),
            }
        }
    }

    /// Reads events of a build from position `from` on, in order, at most about `batch`: all events of these kinds up to
    /// the last one that is returned.
    pub async fn read_events(
        &self,
        key: &BuildKey,
        kinds: WatchedKinds,
        from: Sequence,
        batch: usize,
    ) -> Result<Tail, BusError> {
        if !self.reads(stream::EVENTS).await {
            return self.ask_events(key, kinds, from, batch).await;
        }
        let events = self.stream(stream::EVENTS);
        match kinds.stored(key).as_slice() {
            [filter] => events.read_from(filter, from, batch).await,
            filters => events.read_merged(filters, from, batch).await,
        }
    }
}

/// What was read with one filter.
struct Read {
    events: Vec<Stored>,
    /// Position up to which it has all events.
    through: Sequence,
}

impl StoredStream<'_> {
    /// Reads messages that match one of the filters, with one read for each. What is stored between the reads, or has not
    /// reached the replica that answers one of them, is left for the next call.
    async fn read_merged(self, filters: &[String], from: Sequence, batch: usize) -> Result<Tail, BusError> {
        let (_, last) = self.positions().await?;
        let reads = filters.iter().map(|filter| self.read_through(filter, from, last, batch));
        let reads = try_join_all(reads).await?;
        let through = reads.iter().map(|read| read.through).min().unwrap_or(last);
        let mut events: Vec<Stored> = reads.into_iter().flat_map(|read| read.events).collect();
        events.retain(|stored| stored.sequence <= through);
        events.sort_by_key(|stored| stored.sequence);
        Ok(Tail { events, more: through < last })
    }

    /// Reads messages on `filter`, and finds out up to which position, at most `last`, these are all.
    async fn read_through(
        self,
        filter: &str,
        from: Sequence,
        last: Sequence,
        batch: usize,
    ) -> Result<Read, BusError> {
        let Tail { events, more } = self.read_from(filter, from, batch).await?;
        let end = events.last().map(|stored| stored.sequence);
        let through = match end {
            Some(end) if more || end >= last => end.min(last),
            // The replica that answered may be behind the leader.
            _ => {
                let next = end.map_or(from, |end| Sequence(end.0 + 1));
                let missing = self.first_from(filter, next).await?;
                missing.map_or(last, |stored| last.min(Sequence(stored.sequence.0.saturating_sub(1))))
            }
        };
        Ok(Read { events, through })
    }
}

#[cfg(test)]
mod tests {
    use super::{BuildKey, Completeness, EventKind, WatchedKinds};
    use crate::EventSubject;

    const ID: &str = "0198c5d3-0000-7000-8000-000000000001";

    /// Whether a NATS subject matches a filter.
    fn matches(filter: &str, subject: &str) -> bool {
        let (filter, subject): (Vec<&str>, Vec<&str>) =
            (filter.split('.').collect(), subject.split('.').collect());
        let fits = |(of_filter, of_subject): (&&str, &&str)| {
            matches!(*of_filter, ">" | "*") || of_filter == of_subject
        };
        (filter.len() == subject.len() || filter.last() == Some(&">") && filter.len() <= subject.len())
            && filter.iter().zip(&subject).all(fits)
    }

    #[test]
    fn filters_match_what_is_wanted_once_and_nothing_else() {
        let key = BuildKey { group: "g".parse().unwrap(), id: ID.parse().unwrap() };
        for bits in 0..8_u8 {
            let others = [EventKind::Console, EventKind::Tool, EventKind::Bazel];
            let is_set = |at: usize| bits & (1 << at) != 0;
            let kinds: Vec<EventKind> = (0..3).filter(|at| is_set(*at)).map(|at| others[at]).collect();
            let watched = WatchedKinds::of(&kinds);
            for kind in EventKind::ALL {
                let subject = match kind {
                    EventKind::Bazel => EventSubject::bazel(&key, &"call-1".parse().unwrap()),
                    EventKind::Lifecycle | EventKind::Console | EventKind::Tool => {
                        EventSubject { key: key.clone(), kind }.to_string()
                    }
                };
                let live = subject.replace(".event.", ".live.");
                let wanted = usize::from(kind == EventKind::Lifecycle || kinds.contains(&kind));
                let count = |filters: Vec<String>, subject: &str| {
                    filters.iter().filter(|filter| matches(filter, subject)).count()
                };
                assert_eq!(count(watched.stored(&key), &subject), wanted, "{watched:?} {subject}");
                assert_eq!(count(watched.live(&key), &live), wanted, "{watched:?} {live}");
            }
        }
        assert_eq!(WatchedKinds::of(&EventKind::ALL), WatchedKinds::ALL);
    }

    #[test]
    fn build_events_of_bazel_without_all_others_are_read_from_the_stream() {
        let completeness = |kinds: &[EventKind]| WatchedKinds::of(kinds).completeness();
        assert_eq!(completeness(&EventKind::ALL), Completeness::Count);
        assert_eq!(completeness(&[]), Completeness::Previous);
        assert_eq!(completeness(&[EventKind::Console]), Completeness::Previous);
        assert_eq!(completeness(&[EventKind::Console, EventKind::Bazel]), Completeness::Unknown);
    }
}
