//! Watching a build: every event after a position, once, in order, as it comes.
//!
//! A watch needs no consumer on the server. It listens to the plain subjects on which the events that it wants are repeated
//! as they are stored, which may lose messages, and reads from the stream everything that it cannot prove to be complete.

mod progress;

use std::{collections::VecDeque, time::Duration};

use bus::{
    Bus, BusError, EventKind, LiveBuild, LiveConnection, LiveEvent, Reconnects, RunPlace, Stored,
    WatchedKinds,
};
use invariant::impossible;
use model::{BuildKey, ErrorCode, Sequence, State};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{ClientError, WatchEvent};
use progress::{Progress, Verdict};

/// The events of one build as they come. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    bus: Bus,
    live_connection: LiveConnection,
    key: BuildKey,
    kinds: Vec<EventKind>,
    step: Step,
    progress: Progress,
    /// Highest position announced by a live message: until it is read, the stream must be read again soon.
    announced: Sequence,
    live: Option<LiveBuild>,
    reconnects: Reconnects,
    ready: VecDeque<WatchEvent>,
    /// Time at which the stream is read again if no event comes.
    repair_at: Instant,
    /// Pause before the read after that; grows with each read.
    pause: Duration,
    /// How long it retries while the bus does not answer; absent: forever.
    gives_up_after: Option<Duration>,
    failing_since: Option<Instant>,
    /// Whether the build was already waiting when the watch began, by an event before the start position.
    waits_already: bool,
}

/// Next step of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Subscribe, and check that the build exists.
    Open,
    /// Read the stream from the cursor on.
    Backfill,
    /// Wait for a live message, a reconnection or the repair timer.
    Listen,
    Ended,
}

const BATCH: usize = 256;
const PAUSE_KNOWN_GAP: Duration = Duration::from_millis(50);
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(250);

impl Watch {
    pub(crate) fn new(
        bus: Bus,
        live_connection: LiveConnection,
        key: BuildKey,
        after: Sequence,
        kinds: &[EventKind],
    ) -> Self {
        let reconnects = live_connection.reconnects();
        let kinds = if kinds.is_empty() { EventKind::ALL.to_vec() } else { kinds.to_vec() };
        Self {
            bus,
            live_connection,
            key,
            progress: Progress::after(after, WatchedKinds::of(&kinds).completeness()),
            kinds,
            step: Step::Open,
            announced: after,
            live: None,
            reconnects,
            ready: VecDeque::new(),
            repair_at: Instant::now(),
            pause: PAUSE_MIN,
            gives_up_after: None,
            failing_since: None,
            waits_already: false,
        }
    }

    /// Makes the watch fail as soon as the bus does not answer, instead of retrying until it does.
    #[must_use]
    pub fn giving_up(self) -> Self {
        self.giving_up_after(Duration::ZERO)
    }

    /// Makes the watch fail when the bus does not answer for `limit`.
    #[must_use]
    pub fn giving_up_after(mut self, limit: Duration) -> Self {
        self.gives_up_after = Some(limit);
        self
    }

    pub fn key(&self) -> &BuildKey {
        &self.key
    }

    fn watched(&self) -> WatchedKinds {
        WatchedKinds::of(&self.kinds)
    }

    /// The next event; none after INVOCATION_FINISHED. The future may be dropped and called
    /// again without losing events.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let done = match self.step {
                Step::Ended => return Ok(None),
                Step::Open => self.open().await,
                Step::Backfill => self.backfill().await,
                Step::Listen => self.listen().await,
            };
            self.retry_or_fail(done).await?;
        }
    }

    /// Whether the build waits according to an event before the start position of the watch.
    pub(crate) async fn waits_already(&mut self) -> Result<bool, ClientError> {
        while self.step == Step::Open {
            let done = self.open().await;
            self.retry_or_fail(done).await?;
        }
        Ok(self.waits_already)
    }

    /// Pauses after a temporary error; returns a final one.
    async fn retry_or_fail(&mut self, done: Result<(), ClientError>) -> Result<(), ClientError> {
        match done {
            Ok(()) => self.failing_since = None,
            Err(error) if error.is_unreachable() && !self.has_given_up() => self.pause_after(&error).await,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether the bus has not answered for longer than allowed.
    fn has_given_up(&self) -> bool {
        let failing = self.failing_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.gives_up_after.is_some_and(|limit| failing >= limit)
    }

    async fn pause_after(&mut self, error: &ClientError) {
        if self.failing_since.is_none() {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            warn!(build = %self.key, %error, cause, "cannot read the build's events, retrying");
            self.failing_since = Some(Instant::now());
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }

    /// Subscribes before reading, so that no event is missed in between.
    async fn open(&mut self) -> Result<(), ClientError> {
        if self.live.is_none() {
            self.live = Some(self.live_connection.live_build(&self.key, self.watched()).await?);
        }
        let Some((position, record)) = self.bus.records().latest(&self.key).await? else {
            let message = format!("build {} not found in group {}", self.key.id, self.key.group);
            return Err(ClientError::api(ErrorCode::NotFound, message));
        };
        let ended = record.state() == State::Finished && position <= self.progress.cursor();
        self.waits_already = record.state() == State::Enqueued && position <= self.progress.cursor();
        self.step = if ended { Step::Ended } else { Step::Backfill };
        Ok(())
    }

    /// Reads one batch; the step stays the same while there is more.
    async fn backfill(&mut self) -> Result<(), ClientError> {
        let before = self.progress.cursor();
        let next = Sequence(before.0 + 1);
        let tail = self.bus.read_events(&self.key, self.watched(), next, BATCH).await?;
        for stored in &tail.events {
            if stored.sequence > self.progress.cursor() {
                self.accept(stored)?;
            }
        }
        let advanced = self.progress.cursor() > before;
        if self.step == Step::Ended || (tail.more && advanced) {
            return Ok(());
        }
        self.step = Step::Listen;
        if advanced && self.progress.cursor() >= self.announced {
            self.pause = PAUSE_MIN;
        }
        self.repair_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    async fn listen(&mut self) -> Result<(), ClientError> {
        let Some(live) = self.live.as_mut() else {
            impossible!("the watch of {} listens without a subscription", self.key);
            self.step = Step::Open;
            return Ok(());
        };
        let wakeup = tokio::select! {
            biased;
            () = self.reconnects.next() => Wakeup::Repair,
            event = live.next() => event.map_or(Wakeup::Closed, Wakeup::Event),
            () = tokio::time::sleep_until(self.repair_at) => Wakeup::Repair,
        };
        match wakeup {
            Wakeup::Event(event) => self.receive(event),
            Wakeup::Repair => {
                self.step = Step::Backfill;
                Ok(())
            }
            Wakeup::Closed => {
                self.live = None;
                self.step = Step::Open;
                let what = format!("listening to build {}", self.key);
                Err(BusError::Failed { what, source: "the connection was closed".into() }.into())
            }
        }
    }

    fn receive(&mut self, event: LiveEvent) -> Result<(), ClientError> {
        let LiveEvent::Stored(stored, previous) = event else {
            self.step = Step::Backfill;
            return Ok(());
        };
        let place = RunPlace::read(stored.headers.as_ref());
        match self.progress.classify(stored.sequence, previous, place) {
            Verdict::Old => Ok(()),
            Verdict::Next => {
                self.pause = PAUSE_MIN;
                self.repair_at = Instant::now() + self.pause;
                self.accept(&stored)
            }
            Verdict::Gap => {
                self.announced = self.announced.max(stored.sequence);
                self.pause = PAUSE_KNOWN_GAP;
                self.step = Step::Backfill;
                Ok(())
            }
        }
    }

    /// Marks an event as seen and queues it if its kind is wanted.
    fn accept(&mut self, stored: &Stored) -> Result<(), ClientError> {
        let event = WatchEvent::read(stored)?;
        let kind = event.as_ref().map(WatchEvent::kind);
        self.progress.advance(stored.sequence, kind, RunPlace::read(stored.headers.as_ref()));
        let Some(event) = event else {
            debug!(position = %stored.sequence, subject = stored.subject, "ignoring an event in an unknown format");
            return Ok(());
        };
        if event.is_last() {
            self.step = Step::Ended;
            self.live = None;
        }
        if self.kinds.contains(&event.kind()) {
            self.ready.push_back(event);
        }
        Ok(())
    }
}

enum Wakeup {
    Event(LiveEvent),
    Repair,
    Closed,
}
