//! The single path into the queue.

use std::{collections::BTreeMap, time::Duration};

use bus::{Bus, BusError, Message as _, Written};
use model::{
    Accepted, ApiError, BlobDigest, Build, BuildRecord, Context, ErrorCode, EstimateError, ExecutorType,
    Group, Phase, RequestLimits, Sequence,
};
use policy::{
    NoWorker,
    actions::{ENVIRONMENT_PROPERTY, IMAGE_PROPERTY},
    environments::NoEnvironment,
    require_secrets, require_services,
};
use service::{EnvironmentError, Environments};
use telemetry::metrics::{Counter, Label, count};

use crate::{
    estimate::{Estimator, NoQuota},
    jobs::{BadJob, Jobs, NotAccepted, NotNow},
    known_workers::{KnownWorkers, Unmet},
    queues::{QueueFull, Queues},
    request_trace,
    store::{Store, StoreError},
    version_file::version_file,
};

/// A build in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enqueued {
    /// Position of its first BUILD_ENQUEUED.
    pub(crate) sequence: Sequence,
    /// Whether the build had been enqueued before.
    pub(crate) duplicate: bool,
}

/// Maximum size of a record in bytes: with the list of its outputs it must fit a message of 1 MiB.
const RECORD_BYTES_MAX: usize = 400 << 10;

/// The reason why a build was not enqueued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotEnqueued {
    /// The id belongs to a different build.
    #[error("build {id} of group {group} already exists and differs from this request; use a new id")]
    Conflict { id: model::BuildId, group: model::Group },
    /// The record would leave no room for its result.
    #[error("the build's record has {size} bytes, the limit is {RECORD_BYTES_MAX}")]
    TooLarge { size: usize },
    /// Builds of groups without quota are refused.
    #[error(transparent)]
    NoQuota(#[from] NoQuota),
    #[error(
        "context: the store has no folder {0}: upload it first, as `forebay submit --dir` and `forebay cas put` do"
    )]
    NoFolder(BlobDigest),
    #[error("cannot look for the folder of the build in the store")]
    Store(#[source] StoreError),
    /// Too many builds of its group wait.
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    /// No worker can ever run it.
    #[error(transparent)]
    NoWorker(NoWorker),
    /// The environment that it requires has no image.
    #[error("requirements: {0}")]
    Environment(NoEnvironment),
    /// A requirement that has no effect there.
    #[error("requirements: {0}")]
    Misplaced(&'static str),
    #[error("services: {service} asks for the environment {name}, which is unknown")]
    UnknownEnvironment { service: model::ServiceName, name: String },
    /// Its job can never run.
    #[error(transparent)]
    Job(BadJob),
    /// Its job cannot be accepted now.
    #[error(transparent)]
    JobNotNow(NotNow),
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl NotEnqueued {
    /// The error code for clients: whether the same request may succeed later, and if not, why not.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict { .. } => ErrorCode::Conflict,
            Self::TooLarge { .. }
            | Self::NoQuota(_)
            | Self::NoFolder(_)
            | Self::NoWorker(_)
            | Self::Environment(_)
            | Self::UnknownEnvironment { .. }
            | Self::Misplaced(_)
            | Self::Job(_) => ErrorCode::InvalidRequest,
            Self::QueueFull(_) => ErrorCode::LimitReached,
            Self::Store(_) | Self::JobNotNow(_) | Self::Bus(_) => ErrorCode::Unavailable,
        }
    }

    /// The error for the client that asked.
    pub(crate) fn for_client(&self) -> ApiError {
        let why = telemetry::error_chain(self);
        match self {
            Self::QueueFull(full) => ApiError::limit_reached(why, full.retry_seconds()),
            Self::Conflict { .. }
            | Self::TooLarge { .. }
            | Self::NoQuota(_)
            | Self::NoFolder(_)
            | Self::Store(_)
            | Self::NoWorker(_)
            | Self::Environment(_)
            | Self::UnknownEnvironment { .. }
            | Self::Misplaced(_)
            | Self::Job(_)
            | Self::JobNotNow(_)
            | Self::Bus(_) => ApiError::new(self.code(), why),
        }
    }

    /// Whether the store did not answer.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(self, Self::Store(_) | Self::JobNotNow(NotNow::Store(_)))
    }
}

/// The path into the queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Intake {
    bus: Bus,
    store: Store,
    estimator: Estimator,
    jobs: Jobs,
    environments: Environments,
    workers: KnownWorkers,
    queues: Queues,
}

impl Intake {
    pub(crate) fn new(
        bus: Bus,
        store: Store,
        estimator: Estimator,
        (jobs, environments, queues): (Jobs, Environments, Queues),
    ) -> Self {
        let workers = KnownWorkers::new(bus.clone());
        Self { bus, store, estimator, jobs, environments, workers, queues }
    }

    /// Limits that requests are checked against.
    pub(crate) fn limits(&self) -> &RequestLimits {
        self.estimator.limits()
    }

    /// Accuracy of the latest estimates of occupancy by executor type.
    pub(crate) fn occupancy_error(&self) -> BTreeMap<ExecutorType, EstimateError> {
        self.estimator.occupancy_error()
    }

    /// Writes BUILD_ENQUEUED, exactly once for each id however often it is requested.
    pub(crate) async fn enqueue(
        &self,
        mut accepted: Accepted,
        patience: Duration,
    ) -> Result<Enqueued, NotEnqueued> {
        if let Err(full) = self.queues.check(&accepted.build.group, accepted.build.priority) {
            return self.find(&accepted.build).await?.ok_or_else(|| full.into());
        }
        if let Some(job) = accepted.job.take() {
            match self.jobs.accept(job, &accepted.build.group).await {
                Ok(job) => accepted.build.job = Some(job),
                // The build may have been accepted before, when the farm had what is missing now.
                Err(why) => return self.find(&accepted.build).await?.ok_or_else(|| why.into()),
            }
        }
        if let Err(why) = self.check_folder(&accepted.build.context, &accepted.build.group).await {
            return self.find(&accepted.build).await?.ok_or(why);
        }
        if let Err(why) = self.name_images(&mut accepted.build).await {
            return self.find(&accepted.build).await?.ok_or(why);
        }
        let Build { requirements, services, .. } = &mut accepted.build;
        require_services(requirements, services);
        require_secrets(&mut accepted.build);
        if let Err(why) = self.workers.check(&accepted.build.requirements).await {
            // The build may have been accepted before a worker of another kind became known.
            return self.find(&accepted.build).await?.ok_or_else(|| why.into());
        }
        let version_file = version_file(&self.store.of_group(&accepted.build.group), &accepted.build).await;
        let build = self.estimator.estimate(accepted, version_file.as_deref());
        self.estimator.check_quota(&build.group)?;
        let record = BuildRecord::enqueued(build);
        let size = record.to_json().len();
        if size > RECORD_BYTES_MAX {
            return Err(NotEnqueued::TooLarge { size });
        }
        match self.bus.transition(&record, Sequence(0), patience).await? {
            Written::Won(sequence) => {
                self.queues.add(&record.build.group, size);
                record_metrics(&record.build, size);
                request_trace::enqueued(&self.bus, &record.build);
                Ok(Enqueued { sequence, duplicate: false })
            }
            Written::Lost(found) => {
                let BuildRecord { build, .. } = record;
                let enqueued = found.and_then(|found| same(&build, *found));
                enqueued.ok_or(NotEnqueued::Conflict { id: build.id, group: build.group })
            }
        }
    }

    /// Puts images in place of the names of environments that a build requires and its services have. The tasks of a job ask for their own.
    async fn name_images(&self, build: &mut Build) -> Result<(), NotEnqueued> {
        for service in &mut build.services {
            let Some(name) = service.environment.take() else { continue };
            let image = self.environments.image(&build.group, &name).await?;
            let unknown = || NotEnqueued::UnknownEnvironment { service: service.name.clone(), name };
            service.image = Some(image.ok_or_else(unknown)?);
        }
        self.name_image(build).await?;
        policy::check_writable_root(&build.requirements, build.job.is_some()).map_err(NotEnqueued::Misplaced)
    }

    /// Puts the image in place of the environment that a build requires.
    async fn name_image(&self, build: &mut Build) -> Result<(), NotEnqueued> {
        let required = &build.requirements.0;
        let Some(asked) = required.get(ENVIRONMENT_PROPERTY) else { return Ok(()) };
        if let Some(image) = self.environments.image(&build.group, asked).await? {
            if build.job.is_some() {
                return Err(NotEnqueued::Misplaced(
                    "the tasks of a job name their environments themselves (env in platform)",
                ));
            }
            if required.contains_key(IMAGE_PROPERTY) {
                return Err(NotEnqueued::Misplaced(
                    "expected one image, but there are env and container-image",
                ));
            }
            build.requirements.0.remove(ENVIRONMENT_PROPERTY);
            build.requirements.0.insert(IMAGE_PROPERTY.to_owned(), image.to_string());
        }
        Ok(())
    }

    /// Checks that the store has the folder of the build. What is in it is looked up where the build runs.
    async fn check_folder(&self, context: &Context, group: &Group) -> Result<(), NotEnqueued> {
        let Context::Tree { digest, .. } = context else { return Ok(()) };
        match self.store.of_group(group).contains(digest).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotEnqueued::NoFolder(*digest)),
            Err(error) => Err(NotEnqueued::Store(error)),
        }
    }

    /// Looks up the build, if it is already enqueued.
    async fn find(&self, build: &Build) -> Result<Option<Enqueued>, NotEnqueued> {
        Ok(self.bus.records().latest(&build.key()).await?.and_then(|found| same(build, found)))
    }
}

/// Counts an accepted build, whose record has `size` bytes.
fn record_metrics(build: &Build, size: usize) {
    let priority = [(Label::Priority, build.priority.as_str())];
    count(Counter::BuildsEnqueued, &priority, 1);
    count(Counter::BuildRequestBytes, &priority, size as u64);
    count(Counter::BuildTargets, &priority, build.target_count());
}

/// The position of `build`, if the record found is the same build.
fn same(build: &Build, (sequence, record): (Sequence, BuildRecord)) -> Option<Enqueued> {
    let is_same = record.build.request_digest == build.request_digest;
    is_same.then(|| Enqueued { sequence: first_position(sequence, &record), duplicate: true })
}

impl From<EnvironmentError> for NotEnqueued {
    fn from(why: EnvironmentError) -> Self {
        match why {
            EnvironmentError::None(none) => Self::Environment(none),
            EnvironmentError::Bus(error) => Self::Bus(error),
        }
    }
}

impl From<Unmet> for NotEnqueued {
    fn from(why: Unmet) -> Self {
        match why {
            Unmet::Never(why) => Self::NoWorker(why),
            Unmet::Bus(error) => Self::Bus(error),
        }
    }
}

impl From<NotAccepted> for NotEnqueued {
    fn from(why: NotAccepted) -> Self {
        match why {
            NotAccepted::Bad(bad) => Self::Job(bad),
            NotAccepted::NotNow(not_now) => Self::JobNotNow(not_now),
        }
    }
}

fn first_position(sequence: Sequence, record: &BuildRecord) -> Sequence {
    match (record.queue.first_sequence, &record.phase) {
        (Some(first), _) => first,
        (None, Phase::Enqueued | Phase::InProgress { .. } | Phase::Finished { .. }) => sequence,
    }
}
