//! Place of a build in the queue, polled while it is watched and waits.
//!
//! It is not on the bus: the places of a thousand waiting builds change with every start. Each watcher polls, less
//! often the longer the wait.

use std::{fmt, time::Duration};

use bus::EventKind;
use futures::{FutureExt as _, future::BoxFuture};
use model::{BuildKey, Millis, Sequence, StartBasis, State, WhyReply};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::debug;

use crate::{Client, ClientError, Watch, WatchBody, WatchEvent, WatchFilter, WatchKind};

/// Wait before the first poll: most builds start sooner.
const FIRST: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Fraction of the remaining wait after which the place is polled again.
const PART: u32 = 8;
/// How long a place may be unknown before this is reported: an index that is rebuilt is soon available.
const UNKNOWN_AFTER: Duration = Duration::from_secs(4);
/// A prediction that moves by less than this is not reported.
const STEADY: Duration = Duration::from_secs(2);
/// A prediction that moves by less than this fraction of the remaining wait is not reported either.
const STEADY_PART: u32 = 5;

/// Place of a build in its group's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueuePlace {
    /// Position in the queue; 1 is the next to start.
    pub place: u64,
    /// Number of builds in that queue.
    pub queued: u64,
    /// Why the build waits, in a sentence for people.
    pub reason: String,
    /// Expected start time; absent if it cannot be predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_ms: Option<Millis>,
    /// Basis of `expected_start_ms`; absent without a prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_by: Option<StartBasis>,
    /// Whether the previously reported expected start has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
}

/// Item of a followed build.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// An event that is stored in the stream.
    Event(WatchEvent),
    /// The build waits, and its place or its expected start has changed.
    Queue(QueuePlace),
    /// The build waits, and its place has been unknown for some seconds, for this reason.
    Unplaced(String),
}

/// The events of one build as they come, and its place in the queue while it waits. Dropping it ends it.
#[derive(Debug)]
pub struct Following {
    watch: Watch,
    poller: PlacePoller,
    filter: WatchFilter,
    /// Whether it was checked if the build is already waiting.
    checked_wait: bool,
}

impl Client {
    /// Like `watch`, with the build's place in the queue while it waits, and only with what `filter` wants.
    pub fn follow(&self, key: &BuildKey, after: Sequence, filter: &WatchFilter) -> Following {
        // The states determine whether the build waits.
        let mut read = filter.event_kinds();
        if !read.contains(&EventKind::Lifecycle) {
            read.push(EventKind::Lifecycle);
        }
        Following {
            watch: self.watch(key, after, &read),
            poller: PlacePoller::new(self.clone(), key.clone()),
            filter: filter.clone(),
            checked_wait: false,
        }
    }
}

impl Following {
    /// Makes it fail when the bus does not answer for `limit`, instead of retrying until it does.
    #[must_use]
    pub fn giving_up_after(mut self, limit: Duration) -> Self {
        self.watch = self.watch.giving_up_after(limit);
        self
    }

    pub fn key(&self) -> &BuildKey {
        self.watch.key()
    }

    /// The next item; none after INVOCATION_FINISHED. The future may be dropped and called again without losing items.
    pub async fn next(&mut self) -> Result<Option<Followed>, ClientError> {
        if !self.checked_wait {
            let waits = self.watch.waits_already().await? && self.filter.wants(WatchKind::Queue);
            self.checked_wait = true;
            self.poller.set_waiting(waits);
        }
        loop {
            tokio::select! {
                biased;
                event = self.watch.next() => {
                    let Some(event) = event? else { return Ok(None) };
                    if let WatchBody::Lifecycle(record) = &event.body {
                        let waits = record.state() == State::Enqueued && self.filter.wants(WatchKind::Queue);
                        self.poller.set_waiting(waits);
                    }
                    if let Some(event) = self.filter.narrow(event) {
                        return Ok(Some(Followed::Event(event)));
                    }
                }
                item = self.poller.next() => return Ok(Some(item)),
            }
        }
    }
}

/// Polls the place of a build.
struct PlacePoller {
    client: Client,
    key: BuildKey,
    state: PollState,
    pause: Duration,
    reported: Option<QueuePlace>,
    /// Number of consecutive reports that it is late.
    late: u32,
    /// Time since when its place is unknown.
    unknown_since: Option<Instant>,
    /// Whether the unknown place was reported.
    unknown_reported: bool,
}

enum PollState {
    Idle,
    /// Poll again at this time.
    Scheduled(Instant),
    Running(BoxFuture<'static, Result<WhyReply, ClientError>>),
}

impl fmt::Debug for PlacePoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacePoller")
            .field("pause", &self.pause)
            .field("reported", &self.reported)
            .finish_non_exhaustive()
    }
}

impl PlacePoller {
    fn new(client: Client, key: BuildKey) -> Self {
        Self {
            client,
            key,
            state: PollState::Idle,
            pause: PAUSE_MIN,
            reported: None,
            late: 0,
            unknown_since: None,
            unknown_reported: false,
        }
    }

    /// Sets whether the build waits from now on.
    fn set_waiting(&mut self, waits: bool) {
        (self.pause, self.reported, self.late) = (PAUSE_MIN, None, 0);
        (self.unknown_since, self.unknown_reported) = (None, false);
        self.state = if waits { PollState::Scheduled(Instant::now() + FIRST) } else { PollState::Idle };
    }

    /// The next place to report. The future may be dropped and called again.
    async fn next(&mut self) -> Followed {
        loop {
            match &mut self.state {
                PollState::Idle => std::future::pending().await,
                PollState::Scheduled(until) => {
                    tokio::time::sleep_until(*until).await;
                    let (client, key) = (self.client.clone(), self.key.clone());
                    self.state = PollState::Running(async move { client.why(&key).await }.boxed());
                }
                PollState::Running(reply) => {
                    let reply = reply.await;
                    let news = self.handle_reply(reply, self.client.bus().now());
                    self.state = PollState::Scheduled(Instant::now() + self.pause);
                    if let Some(news) = news {
                        return news;
                    }
                }
            }
        }
    }

    /// Schedules the next poll; returns the place if it is worth reporting.
    fn handle_reply(&mut self, reply: Result<WhyReply, ClientError>, now: Millis) -> Option<Followed> {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.unknown(&error),
        };
        (self.unknown_since, self.unknown_reported) = (None, false);
        let waiting = reply.waiting?;
        let late = self.reported.as_ref().is_some_and(|reported| has_passed(reported, Duration::ZERO, now));
        let place = QueuePlace {
            place: waiting.place,
            queued: waiting.queued,
            reason: reply.reason,
            expected_start_ms: waiting.expected_start_ms,
            expected_by: waiting.expected_by,
            late,
        };
        if let Some(start) = place.expected_start_ms {
            self.pause = (start.since(now) / PART).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        // Report less and less often while nothing else changes.
        let grace = STEADY.saturating_mul(1 << self.late.min(5));
        let is_news =
            |reported: &QueuePlace| has_passed(reported, grace, now) || is_news(reported, &place, now);
        if self.reported.as_ref().is_some_and(|reported| !is_news(reported)) {
            return None;
        }
        self.late = if late { self.late.saturating_add(1) } else { 0 };
        self.reported = Some(place.clone());
        Some(Followed::Queue(place))
    }

    /// The place is unknown: reported once, if that lasts.
    fn unknown(&mut self, error: &ClientError) -> Option<Followed> {
        debug!(build = %self.key, %error, "cannot read the place in the queue, retrying");
        let since = *self.unknown_since.get_or_insert_with(Instant::now);
        self.pause = self.pause.min(UNKNOWN_AFTER);
        if self.unknown_reported || since.elapsed() < UNKNOWN_AFTER {
            return None;
        }
        self.unknown_reported = true;
        Some(Followed::Unplaced(error.to_string()))
    }
}

/// Whether the reported start has passed by at least `grace`.
fn has_passed(reported: &QueuePlace, grace: Duration, now: Millis) -> bool {
    reported.expected_start_ms.is_some_and(|at| at.after(grace) < now)
}

fn is_news(reported: &QueuePlace, place: &QueuePlace, now: Millis) -> bool {
    if reported.place != place.place {
        return true;
    }
    match (reported.expected_start_ms, place.expected_start_ms) {
        (Some(before), Some(start)) => {
            let moved = start.since(before).max(before.since(start));
            moved > STEADY.max(start.since(now) / STEADY_PART)
        }
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_000_000);

    fn place(place: u64, starts_in_ms: Option<u64>) -> QueuePlace {
        let expected_start_ms = starts_in_ms.map(|ms| Millis(NOW.0 + ms));
        QueuePlace {
            place,
            queued: 9,
            reason: String::new(),
            expected_start_ms,
            expected_by: None,
            late: false,
        }
    }

    #[test]
    fn news_is_another_place_or_another_time() {
        let reported = place(3, Some(60_000));
        assert!(is_news(&reported, &place(2, Some(60_000)), NOW));
        assert!(is_news(&reported, &place(3, None), NOW));
        assert!(is_news(&reported, &place(3, Some(80_000)), NOW));
        assert!(!is_news(&reported, &place(3, Some(70_000)), NOW), "a sixth of the wait");
        assert!(!is_news(&place(1, Some(500)), &place(1, Some(2400)), NOW), "less than two seconds");
        assert!(!is_news(&place(3, None), &place(3, None), NOW));
    }

    #[test]
    fn a_start_has_passed_when_its_time_and_the_grace_are_over() {
        let reported = place(1, Some(0));
        let after = |seconds: u64| Millis(NOW.0 + seconds * 1000);
        assert!(
            !has_passed(&reported, Duration::ZERO, NOW) && has_passed(&reported, Duration::ZERO, after(1))
        );
        assert!(!has_passed(&reported, STEADY, after(2)) && has_passed(&reported, STEADY, after(3)));
        assert!(!has_passed(&place(1, None), Duration::ZERO, after(999)));
    }
}
