//! Jobs of requests: read, checked, kept in the store.

use std::sync::Arc;

use bus::{Bus, BusError};
use bytes::Bytes;
use model::{BuildJob, Graph, InvalidJob, Job, JobLimits, JobSource, StoredJob};
use policy::graph::{Unreachable, reachable};
use store::{Store, StoreError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Takes jobs in hand. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<Inner>);

struct Inner {
    bus: Bus,
    store: Store,
    limits: JobLimits,
    /// One permit for each KiB of JSON of jobs in hand: read, a job takes some ten times as much memory.
    room: Semaphore,
}

/// KiB of JSON of jobs in hand at once.
const ROOM: u32 = 64 << 10;

/// A job that will never be right.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadJob {
    /// Something is wrong with it.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// No pool can ever run it.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// What is in the store is no job.
    #[error("job: the JSON in the store cannot be read: {0}")]
    Unreadable(serde_json::Error),
    /// It is not in the store, or too large, or damaged.
    #[error("job: {}", telemetry::error_chain(.0))]
    Stored(StoreError),
    /// It is too large.
    #[error("job: it has {size} bytes as JSON, at most {most} are taken")]
    TooLarge {
        /// Bytes.
        size: usize,
        /// At most.
        most: usize,
    },
}

/// Why a job cannot be taken now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotNow {
    /// What the farm can run is not known yet.
    #[error("{0}")]
    NoPool(Unreachable),
    /// The store.
    #[error("the job cannot be kept")]
    Store(#[source] StoreError),
    /// The check was stopped with the service.
    #[error("the job was not checked")]
    Stopped(#[source] tokio::task::JoinError),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Why a job is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    /// For good.
    #[error(transparent)]
    Bad(#[from] BadJob),
    /// For now.
    #[error(transparent)]
    NotNow(#[from] NotNow),
}

impl Jobs {
    pub(crate) fn new(bus: Bus, store: Store, limits: JobLimits) -> Self {
        Self(Arc::new(Inner { bus, store, limits, room: Semaphore::new(ROOM as usize) }))
    }

    /// The job as a build has it: checked, able to run here, and in the store.
    pub(crate) async fn take(&self, source: JobSource) -> Result<BuildJob, NotTaken> {
        let Inner { bus, store, limits, .. } = self.0.as_ref();
        let limits = *limits;
        let (content, stored, _room) = match source {
            JobSource::Inline(job) => {
                let content = Bytes::from(job.to_json());
                let room = self.room_for(content.len() as u64).await;
                (content, None, room)
            }
            JobSource::Stored(StoredJob { digest }) => {
                let size = store.size(&digest).await.map_err(NotTaken::of_store)?;
                let room = self.room_for(size.min(limits.bytes_max as u64)).await;
                let content = store.read(&digest, limits.bytes_max as u64).await;
                (content.map_err(NotTaken::of_store)?, Some(digest), room)
            }
        };
        if content.len() > limits.bytes_max {
            return Err(BadJob::TooLarge { size: content.len(), most: limits.bytes_max }.into());
        }
        // A large one takes a second of this thread, which others need.
        let read = content.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let job: Job = serde_json::from_slice(&read).map_err(BadJob::Unreadable)?;
            Ok::<_, BadJob>(Graph::new(&job, &limits)?)
        });
        let graph = checked.await.map_err(NotNow::Stopped)??;
        let pools = bus.pools().await.map_err(NotNow::Bus)?;
        reachable(&graph, &pools).map_err(|error| match error {
            Unreachable::NothingRegistered { .. } => NotTaken::NotNow(NotNow::NoPool(error)),
            Unreachable::Refused { .. } => NotTaken::Bad(BadJob::Unreachable(error)),
        })?;
        let tasks = graph.len() as u64;
        let digest = match stored {
            Some(digest) => digest,
            None => store.put(content).await.map_err(NotNow::Store)?,
        };
        Ok(BuildJob { digest, tasks })
    }

    /// Waits until there is room for a job of so many bytes.
    async fn room_for(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let wanted = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, ROOM);
        // It is never closed.
        self.0.room.acquire_many(wanted).await.ok()
    }
}

impl NotTaken {
    /// What was asked for and is not there will not come; what cannot be read may be read later.
    fn of_store(error: StoreError) -> Self {
        match error {
            StoreError::Missing { .. } | StoreError::TooLarge { .. } | StoreError::Damaged { .. } => {
                Self::Bad(BadJob::Stored(error))
            }
            StoreError::Unsupported { .. }
            | StoreError::Folder { .. }
            | StoreError::Failed { .. }
            | StoreError::File { .. }
            | StoreError::NoRoom { .. }
            | StoreError::Write { .. } => Self::NotNow(NotNow::Store(error)),
        }
    }
}
