//! Reads the logs into the state of the work.

use std::{sync::Arc, time::Duration};

use bus::{ActionSubject, ActionsFloor, Bus, BusError, EventSubject, Follower, Start, stream};
use index::{Index, IndexError};
use invariant::impossible;
use model::{Pool, ScaledPool, Sequence};
use parking_lot::Mutex;
use service::{Context, ServiceError};
use settings::AutoscalerSettings;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::{builds::Builds, executions::Executions, log_state::LogState};

const BATCH: usize = 1000;
const RETRY: Duration = Duration::from_secs(1);

/// State that one task maintains and others read; `None` until the log has been read. Cheap to clone.
pub(crate) type SharedState<T> = Arc<Mutex<Option<T>>>;

/// Tasks that are notified when something joins the queue.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Arc<Notify>>);

impl Wakes {
    pub(crate) fn add(&mut self, wake: &Arc<Notify>) {
        self.0.push(wake.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn wake(&self) {
        self.0.iter().for_each(|wake| wake.notify_one());
    }
}

/// The reason why the state could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The process that maintains the index has not built it yet.
    #[error("the index is not built yet")]
    NoIndex,
}

/// Maintains the state of the builds until the service stops, and notifies `joined` when one joins the queue.
pub(crate) async fn builds(
    context: Context,
    index: Index,
    known: SharedState<Builds>,
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

/// Maintains the state of the executions until the service stops, and notifies `joined` when one joins the queue.
pub(crate) async fn executions(
    context: Context,
    known: SharedState<Executions>,
    scaled: Arc<AutoscalerSettings>,
    joined: Wakes,
) -> Result<(), ServiceError> {
    let begin = || {
        let (bus, scaled) = (context.bus.clone(), scaled.clone());
        async move {
            let start = executions_start(&bus).await?;
            let mut executions = Executions::default();
            executions.set_pools(scaled_pools(&bus, &scaled).await?);
            Ok((executions, Follower::new(&bus, stream::ACTIONS, ActionSubject::ALL, start)))
        }
    };
    follow(&context, &known, &joined, begin).await
}

/// What the executors of the scaled pools offer, as far as these pools ever had one.
pub(crate) async fn scaled_pools(bus: &Bus, settings: &AutoscalerSettings) -> Result<Vec<Pool>, BusError> {
    let is_scaled = |of: &Pool| settings.pools.contains_key(&ScaledPool::Executors(of.name.clone()));
    Ok(bus.buckets().pools().await?.into_iter().filter(is_scaled).collect())
}

/// Reads the log, and starts over after a lost connection: the log may have been replaced.
async fn follow<T: LogState, Begun: Future<Output = Result<(T, Follower), ReadError>>>(
    context: &Context,
    known: &SharedState<T>,
    joined: &Wakes,
    begin: impl Fn() -> Begun,
) -> Result<(), ServiceError> {
    let follow = async {
        let mut reconnects = context.bus.reconnects();
        loop {
            match begin().await {
                Ok((state, mut follower)) => {
                    tokio::select! {
                        () = maintain(known, state, &mut follower, joined) => {}
                        () = reconnects.next() => {}
                    }
                    *known.lock() = None;
                }
                Err(error) => {
                    debug!(
                        error = telemetry::error_chain(&error),
                        what = T::WHAT,
                        "cannot read the queue yet, retrying"
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

/// Reads the log endlessly; publishes the state once everything stored has been read.
async fn maintain<T: LogState>(known: &SharedState<T>, begun: T, follower: &mut Follower, joined: &Wakes) {
    let mut unpublished = Some(begun);
    loop {
        follower.open().await;
        if follower.caught_up()
            && let Some(mut state) = unpublished.take()
        {
            state.read_up_to(follower.cursor());
            *known.lock() = Some(state);
            info!(what = T::WHAT, upto = %follower.cursor(), "caught up with the log");
        }
        let batch = follower.next(BATCH).await;
        let mut locked = known.lock();
        let Some(state) = unpublished.as_mut().or(locked.as_mut()) else {
            impossible!("the published state of {} is gone", T::WHAT);
            return;
        };
        let mut any_joined = false;
        for stored in &batch {
            match state.apply(stored) {
                Ok(has_joined) => any_joined |= has_joined,
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "ignoring an unreadable record");
                }
            }
        }
        state.read_up_to(follower.cursor());
        if any_joined {
            joined.wake();
        }
    }
}

/// The unfinished builds of the index with their current records, and the position to continue reading from.
async fn unfinished_builds(bus: &Bus, index: &Index) -> Result<(Builds, Sequence), ReadError> {
    let health = index.health().await?.filter(|health| health.ready).ok_or(ReadError::NoIndex)?;
    let (_, last) = bus.stream(stream::EVENTS).positions().await?;
    if health.watermark > last {
        // The index is of a log that no longer exists.
        return Err(ReadError::NoIndex);
    }
    let mut builds = Builds::default();
    let mut found = bus.records().latest_many_stored(&index.unfinished().await?).await?;
    found.sort_by_key(|stored| stored.sequence);
    for stored in found {
        if let Err(error) = builds.apply(&stored) {
            warn!(error = telemetry::error_chain(&error), "ignoring an unreadable record of a build");
        }
    }
    Ok((builds, health.watermark))
}

/// Starts after the position that schedulers record, if the log has it, else with the last record of every execution.
async fn executions_start(bus: &Bus) -> Result<Start, BusError> {
    let (_, floor) = bus.buckets().get::<ActionsFloor>(&()).await?;
    let (_, last) = bus.stream(stream::ACTIONS).positions().await?;
    let floor = floor.map(|ActionsFloor(floor)| floor).filter(|floor| *floor <= last);
    Ok(floor.map_or(Start::LastOfEachSubject, Start::After))
}
