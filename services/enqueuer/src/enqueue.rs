//! The one way into the queue.

use std::time::Duration;

use bus::{Bus, BusError, Written};
use model::{Accepted, Build, BuildRecord, ErrorCode, Phase, RequestLimits, Sequence};
use telemetry::metrics::{Counter, count};

use crate::{
    estimate::{Estimator, NoQuota},
    jobs::{BadJob, Jobs, NotNow, NotTaken},
};

/// A build that is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enqueued {
    /// Position of its first BUILD_ENQUEUED.
    pub(crate) sequence: Sequence,
    /// Whether it was there before.
    pub(crate) duplicate: bool,
}

/// Bytes of a record: with the list of its outputs it must fit a message of 1 MiB.
const RECORD_BYTES_MAX: usize = 400 << 10;

/// Why a build was not queued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotEnqueued {
    /// The id is another build's.
    #[error("build {id} of group {group} exists already and asks for something else")]
    Conflict {
        /// Which.
        id: model::BuildId,
        /// In which group.
        group: model::Group,
    },
    /// An output glob that cannot be understood.
    #[error("field outputs cannot be understood: {0}")]
    Glob(globset::Error),
    /// Its record would leave no room for its result.
    #[error("the build's record has {size} bytes, at most {RECORD_BYTES_MAX} are taken")]
    TooLarge {
        /// Bytes.
        size: usize,
    },
    /// Its group may run nothing.
    #[error(transparent)]
    NoQuota(#[from] NoQuota),
    /// Its job can never be run.
    #[error(transparent)]
    Job(BadJob),
    /// Its job cannot be taken now.
    #[error(transparent)]
    JobNotNow(NotNow),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl NotEnqueued {
    /// For programs: whether the same request may be queued later, and if not, why not.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict { .. } => ErrorCode::Conflict,
            Self::Glob(_) | Self::TooLarge { .. } | Self::NoQuota(_) | Self::Job(_) => {
                ErrorCode::InvalidRequest
            }
            Self::JobNotNow(_) | Self::Bus(_) => ErrorCode::Unavailable,
        }
    }
}

/// The way into the queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Intake {
    bus: Bus,
    estimator: Estimator,
    jobs: Jobs,
}

impl Intake {
    pub(crate) fn new(bus: Bus, estimator: Estimator, jobs: Jobs) -> Self {
        Self { bus, estimator, jobs }
    }

    /// What requests are checked against.
    pub(crate) fn limits(&self) -> &RequestLimits {
        self.estimator.limits()
    }

    /// Writes BUILD_ENQUEUED, once for one id however often it is asked for.
    pub(crate) async fn enqueue(
        &self,
        mut accepted: Accepted,
        patience: Duration,
    ) -> Result<Enqueued, NotEnqueued> {
        if let Some(job) = accepted.job.take() {
            match self.jobs.take(job).await {
                Ok(job) => accepted.build.job = Some(job),
                // It may have been taken before, when the farm had what is missing now.
                Err(why) => return self.find(&accepted.build).await?.ok_or_else(|| why.into()),
            }
        }
        let build = self.estimator.estimate(accepted);
        self.estimator.check_quota(&build.group)?;
        for pattern in &build.outputs {
            globset::Glob::new(pattern).map_err(NotEnqueued::Glob)?;
        }
        let record = BuildRecord::enqueued(build);
        let size = bus::encode(bus::Encoding::Json, &record).len();
        if size > RECORD_BYTES_MAX {
            return Err(NotEnqueued::TooLarge { size });
        }
        match self.bus.transition(&record, Sequence(0), patience).await? {
            Written::Won(sequence) => {
                count(Counter::BuildsEnqueued, &[], 1);
                Ok(Enqueued { sequence, duplicate: false })
            }
            Written::Lost(found) => {
                let BuildRecord { build, .. } = record;
                let enqueued = found.and_then(|found| same(&build, *found));
                enqueued.ok_or(NotEnqueued::Conflict { id: build.id, group: build.group })
            }
        }
    }

    /// The build, if it is queued already.
    async fn find(&self, build: &Build) -> Result<Option<Enqueued>, NotEnqueued> {
        Ok(self.bus.latest(&build.key()).await?.and_then(|found| same(build, found)))
    }
}

/// The place of `build`, if that is what was found.
fn same(build: &Build, (sequence, record): (Sequence, BuildRecord)) -> Option<Enqueued> {
    let is_same = record.build.request_digest == build.request_digest;
    is_same.then(|| Enqueued { sequence: first_position(sequence, &record), duplicate: true })
}

impl From<NotTaken> for NotEnqueued {
    fn from(why: NotTaken) -> Self {
        match why {
            NotTaken::Bad(bad) => Self::Job(bad),
            NotTaken::NotNow(not_now) => Self::JobNotNow(not_now),
        }
    }
}

fn first_position(sequence: Sequence, record: &BuildRecord) -> Sequence {
    match (record.queue.first_sequence, &record.phase) {
        (Some(first), _) => first,
        (None, Phase::Enqueued | Phase::InProgress { .. } | Phase::Finished { .. }) => sequence,
    }
}
