//! The one way into the queue.

use std::time::Duration;

use bus::{Bus, BusError, Written};
use model::{Accepted, BuildRecord, Phase, Sequence};
use telemetry::metrics::{Counter, count};

use crate::estimate::{Estimator, NoQuota};

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
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Writes BUILD_ENQUEUED, once for one id however often it is asked for.
pub(crate) async fn enqueue(
    bus: &Bus,
    estimator: &Estimator,
    accepted: Accepted,
    patience: Duration,
) -> Result<Enqueued, NotEnqueued> {
    let build = estimator.estimate(accepted);
    estimator.check_quota(&build.group)?;
    for pattern in &build.outputs {
        globset::Glob::new(pattern).map_err(NotEnqueued::Glob)?;
    }
    let record = BuildRecord::enqueued(build);
    let size = bus::encode(bus::Encoding::Json, &record).len();
    if size > RECORD_BYTES_MAX {
        return Err(NotEnqueued::TooLarge { size });
    }
    let build = &record.build;
    match bus.transition(&record, Sequence(0), patience).await? {
        Written::Won(sequence) => {
            count(Counter::BuildsEnqueued, &[], 1);
            Ok(Enqueued { sequence, duplicate: false })
        }
        Written::Lost(Some(found)) if found.1.build.request_digest == build.request_digest => {
            Ok(Enqueued { sequence: first_position(found.0, &found.1), duplicate: true })
        }
        Written::Lost(_) => Err(NotEnqueued::Conflict { id: build.id, group: build.group.clone() }),
    }
}

fn first_position(sequence: Sequence, record: &BuildRecord) -> Sequence {
    match (record.queue.first_sequence, &record.phase) {
        (Some(first), _) => first,
        (None, Phase::Enqueued | Phase::InProgress { .. } | Phase::Finished { .. }) => sequence,
    }
}
