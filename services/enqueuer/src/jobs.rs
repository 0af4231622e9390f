//! Jobs of requests: reading, checking and storing them.

use std::sync::Arc;

use bus::{Bus, BusError};
use bytes::Bytes;
use cas::CasError;
use invariant::impossible;
use model::{
    BuildJob, Digest, DigestFunction, Graph, Group, InvalidJob, Job, JobLimits, JobSource, StoredJob,
};
use policy::environments::NoEnvironment;
use policy::graph::{Unreachable, asked_environments, reachable};
use service::{EnvironmentError, Environments};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::{Store, StoreError};

/// Accepts jobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<Inner>);

struct Inner {
    bus: Bus,
    store: Store,
    limits: JobLimits,
    environments: Environments,
    /// One permit for each KiB of JSON of jobs in progress: a parsed job takes about ten times as much memory.
    memory: Semaphore,
}

/// Limit on the JSON of jobs in progress, in KiB.
const JSON_KIB_MAX: u32 = 64 << 10;

/// A job that can never be accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadJob {
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// No pool can ever run it.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// A task asks for an environment that has no image.
    #[error("job: {0}")]
    Environment(NoEnvironment),
    /// The stored content is not a job.
    #[error("job: invalid JSON in the store: {0}")]
    Unreadable(serde_json::Error),
    /// It is not in the store, or too large, or damaged.
    #[error("job: {}", telemetry::error_chain(.0))]
    Stored(CasError),
    #[error("job: it has {size} bytes as JSON, the limit is {most}")]
    TooLarge { size: usize, most: usize },
}

/// The reason why a job cannot be accepted now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotNow {
    /// The pools of the farm are not known yet.
    #[error("{0}")]
    NoPool(Unreachable),
    /// The store returned an error.
    #[error("cannot store the job")]
    Store(#[source] StoreError),
    /// The service stopped during the check.
    #[error("the check of the job was aborted")]
    Stopped(#[source] tokio::task::JoinError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// The reason why a job is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// It can never be accepted.
    #[error(transparent)]
    Bad(#[from] BadJob),
    /// It cannot be accepted now.
    #[error(transparent)]
    NotNow(#[from] NotNow),
}

impl Jobs {
    pub(crate) fn new(bus: Bus, store: Store, (limits, environments): (JobLimits, Environments)) -> Self {
        Self(Arc::new(Inner {
            bus,
            store,
            limits,
            environments,
            memory: Semaphore::new(JSON_KIB_MAX as usize),
        }))
    }

    /// Reads a job of a group and returns it in the form of a build's job: checked, able to run on this farm, and stored.
    pub(crate) async fn accept(&self, source: JobSource, group: &Group) -> Result<BuildJob, NotAccepted> {
        let Inner { bus, store, limits, environments, .. } = self.0.as_ref();
        let limits = *limits;
        let store = store.of_group(group);
        let (content, stored, _memory) = match source {
            JobSource::Inline(job) => {
                let content = Bytes::from(job.to_json());
                let memory = self.reserve_memory(content.len() as u64).await;
                (content, None, memory)
            }
            JobSource::Stored(StoredJob { digest, size_bytes }) => {
                let blob = store.resolve(&digest, size_bytes).await.map_err(NotAccepted::of_store)?;
                let memory = self.reserve_memory(blob.size.min(limits.bytes_max as u64)).await;
                let content = store.read_whole(&blob, limits.bytes_max as u64).await;
                (content.map_err(NotAccepted::of_store)?, Some(blob), memory)
            }
        };
        if content.len() > limits.bytes_max {
            return Err(BadJob::TooLarge { size: content.len(), most: limits.bytes_max }.into());
        }
        // A large job takes a second of CPU time, so it is parsed off the async threads.
        let read = content.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let job: Job = serde_json::from_slice(&read).map_err(BadJob::Unreadable)?;
            Ok::<_, BadJob>(Graph::new(&job, &limits)?)
        });
        let graph = checked.await.map_err(NotNow::Stopped)??;
        let (offers, _) = service::offers(bus).await.map_err(NotNow::Bus)?;
        let images = environments.images(group, asked_environments(&graph)).await;
        let images = images.map_err(NotAccepted::of_environment)?;
        reachable(&graph, &offers, &|name: &str| images.get(name).cloned()).map_err(|error| match error {
            Unreachable::NothingRegistered { .. } => NotAccepted::NotNow(NotNow::NoPool(error)),
            Unreachable::Refused { .. } => NotAccepted::Bad(BadJob::Unreachable(error)),
        })?;
        let tasks = graph.len() as u64;
        let blob = match stored {
            Some(blob) => blob,
            None => store.put_bytes(DigestFunction::Sha256, content).await.map_err(NotNow::Store)?,
        };
        Ok(BuildJob { digest: Digest::from_sha256(blob.hash), size_bytes: Some(blob.size), tasks })
    }

    /// Waits until a job of this many bytes fits the limit.
    async fn reserve_memory(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, JSON_KIB_MAX);
        let permit = self.0.memory.acquire_many(kib).await;
        permit.inspect_err(|error| impossible!("the semaphore of jobs: {error}")).ok()
    }
}

impl NotAccepted {
    fn of_environment(error: EnvironmentError) -> Self {
        match error {
            EnvironmentError::None(none) => Self::Bad(BadJob::Environment(none)),
            EnvironmentError::Bus(error) => Self::NotNow(NotNow::Bus(error)),
        }
    }

    /// A missing blob will not appear later; a failed read may succeed later.
    fn of_store(error: StoreError) -> Self {
        match error {
            StoreError::Failed(error) if error.is_about_content() => Self::Bad(BadJob::Stored(error)),
            StoreError::Failed(_) | StoreError::NoAnswer { .. } => Self::NotNow(NotNow::Store(error)),
        }
    }
}
