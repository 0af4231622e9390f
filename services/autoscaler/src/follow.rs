//! Reading the logs into what is known of the work.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bus::{ActionSubject, Bus, BusError, EventSubject, Follower, SettingKey, Start, Stored, stream};
use index::{Index, IndexError};
use model::Sequence;
use service::{Context, ServiceError};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::{builds::Builds, executions::Executions};

const BATCH: usize = 1000;
const RETRY: Duration = Duration::from_secs(1);

/// What one task knows and others ask; `None` until all of it was read. Cheap to clone.
pub(crate) struct Known<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Known<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is told that something joined the queue.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Arc<Notify>>);

impl Wakes {
    pub(crate) fn add(&mut self, who: &Arc<Notify>) {
        self.0.push(who.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn wake(&self) {
        self.0.iter().for_each(|who| who.notify_one());
    }
}

/// Why what is known could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// Redis.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Whoever keeps the index has not built it yet.
    #[error("the index is not built yet")]
    NoIndex,
}

/// What is read from a log.
pub(crate) trait Read: Send {
    /// As people call it.
    const WHAT: &str;

    /// Takes a record; says whether something joined the queue. What is older than what is known changes nothing.
    fn take(&mut self, stored: &Stored) -> Result<bool, BusError>;

    /// All up to here was read.
    fn read_up_to(&mut self, sequence: Sequence);
}

/// Keeps the builds known until the service stops, and wakes `joined` when one joins the queue.
pub(crate) async fn builds(
    context: Context,
    index: Index,
    known: Known<Builds>,
    joined: Wakes,
) -> Result<(), ServiceError> {
    let begin = || {
        let (bus, index) = (context.bus.clone(), index.clone());
        async move {
            let (builds, from) = unfinished_builds(&bus, &index).await?;
            let start = Start::After(from);
            Ok((builds, Follower::new(&bus, stream::EVENTS, EventSubject::LIFECYCLES, start)))
        }
    };
    follow(&context, &known, &joined, begin).await
}

/// Likewise the executions.
pub(crate) async fn executions(
    context: Context,
    known: Known<Executions>,
    joined: Wakes,
) -> Result<(), ServiceError> {
    let begin = || {
        let bus = context.bus.clone();
        async move {
            let start = executions_start(&bus).await?;
            Ok((Executions::default(), Follower::new(&bus, stream::ACTIONS, ActionSubject::ALL, start)))
        }
    };
    follow(&context, &known, &joined, begin).await
}

/// Begins to read, and begins anew when the connection was lost: behind it may be another log.
async fn follow<T: Read, Begun: Future<Output = Result<(T, Follower), ReadError>>>(
    context: &Context,
    known: &Known<T>,
    joined: &Wakes,
    begin: impl Fn() -> Begun,
) -> Result<(), ServiceError> {
    let follow = async {
        let mut reconnects = context.bus.reconnects();
        loop {
            match begin().await {
                Ok((read, mut follower)) => {
                    tokio::select! {
                        () = keep(known, read, &mut follower, joined) => {}
                        () = reconnects.next() => {}
                    }
                    *known.lock() = None;
                }
                Err(error) => {
                    debug!(
                        error = telemetry::error_chain(&error),
                        what = T::WHAT,
                        "what waits is not known yet"
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    tokio::select! {
        () = context.stop.cancelled() => Ok(()),
        () = follow => Ok(()),
    }
}

/// Reads on for ever; what is known is shown once all that was stored is read.
async fn keep<T: Read>(known: &Known<T>, begun: T, follower: &mut Follower, joined: &Wakes) {
    let mut all = Some(begun);
    loop {
        follower.open().await;
        if follower.caught_up()
            && let Some(mut read) = all.take()
        {
            read.read_up_to(follower.cursor());
            *known.lock() = Some(read);
            info!(what = T::WHAT, upto = %follower.cursor(), "the log is read");
        }
        let batch = follower.next(BATCH).await;
        let mut locked = known.lock();
        let Some(into) = all.as_mut().or(locked.as_mut()) else { return };
        let mut more = false;
        for stored in &batch {
            match into.take(stored) {
                Ok(one) => more |= one,
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "a record counts for nothing");
                }
            }
        }
        into.read_up_to(follower.cursor());
        if more {
            joined.wake();
        }
    }
}

/// The builds that are unfinished by the index, as the log has them now, and from where on to read what followed.
async fn unfinished_builds(bus: &Bus, index: &Index) -> Result<(Builds, Sequence), ReadError> {
    let health = index.health().await?.filter(|health| health.ready).ok_or(ReadError::NoIndex)?;
    let (_, last) = bus.stream_positions(stream::EVENTS).await?;
    if health.watermark > last {
        // Of a log that is no more.
        return Err(ReadError::NoIndex);
    }
    let subjects: Vec<String> =
        index.unfinished().await?.iter().map(|key| EventSubject::lifecycle(key).to_string()).collect();
    let mut builds = Builds::default();
    let mut found = bus.last_of_many(stream::EVENTS, &subjects).await?;
    found.sort_by_key(|stored| stored.sequence);
    for stored in found {
        if let Err(error) = builds.take(&stored) {
            warn!(error = telemetry::error_chain(&error), "a build counts for nothing");
        }
    }
    Ok((builds, health.watermark))
}

/// Behind the position that schedulers write down where that fits the log, else with the last record of every execution.
async fn executions_start(bus: &Bus) -> Result<Start, BusError> {
    let floor = bus.setting(SettingKey::ActionsFloor).await?.and_then(|text| text.parse().ok()).map(Sequence);
    let (_, last) = bus.stream_positions(stream::ACTIONS).await?;
    Ok(floor.filter(|floor| *floor <= last).map_or(Start::LastOfEachSubject, Start::After))
}
