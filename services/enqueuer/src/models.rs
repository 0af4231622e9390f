//! Occupancy models, loaded when they are published.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cas::{Cas, CasError};
use model::{Build, Digest, Esu, ExecutorType, ModelNotice, ToolCall};
use occupancy::{BuildFacts, DecodeError, OccupancyModel, Refusal, judge};
use parking_lot::RwLock;
use service::{Context, ServiceError};
use tracing::{info, warn};

const RETRY: Duration = Duration::from_secs(5);
/// Maximum size of a model in bytes.
const SIZE_MAX: u64 = 256 << 20;

/// The model in use; `None` before the first one. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Models(Arc<RwLock<Option<Arc<Loaded>>>>);

/// A model that has been loaded.
pub(crate) struct Loaded {
    model: OccupancyModel,
    /// Digest of its content. The version does not identify a model: one that replaces an unreadable notice
    /// has version 1 again.
    digest: Digest,
    /// Executor types that builds with targets of a rule used.
    pub(crate) types_by_rule: BTreeMap<String, BTreeSet<ExecutorType>>,
}

/// The reason why a published model is not used.
#[derive(Debug, thiserror::Error)]
enum Unused {
    #[error(transparent)]
    Store(#[from] CasError),
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Loaded {
    /// The published version of the model.
    pub(crate) fn version(&self) -> u64 {
        self.model.report().version
    }

    /// Expected occupancy of `kind` for `build`, which passes `call` to its build tool; `None` if the model does
    /// not know the type.
    pub(crate) fn predict(&self, build: &Build, call: &ToolCall, kind: &ExecutorType) -> Option<Esu> {
        let facts = BuildFacts {
            command: &call.command,
            flags: &call.flags,
            targets: &call.targets,
            group: build.group.as_str(),
            priority: build.priority.as_str(),
        };
        self.model.predict(&facts, kind.as_str()).map(Esu::clamped)
    }
}

impl Models {
    /// The model currently in use.
    pub(crate) fn current(&self) -> Option<Arc<Loaded>> {
        self.0.read().clone()
    }

    async fn switch_to(&self, cas: &Cas, notice: ModelNotice) {
        let current = self.current();
        if current.as_ref().is_some_and(|current| current.digest == notice.digest) {
            return;
        }
        let version = notice.version;
        match load(cas, &notice, current.as_deref()).await {
            Ok(model) => {
                info!(version, builds = notice.builds, "switched to another occupancy model");
                let ModelNotice { digest, types_by_rule, .. } = notice;
                let loaded = Arc::new(Loaded { model, digest, types_by_rule });
                *self.0.write() = Some(loaded);
            }
            Err(error) => {
                warn!(version, error = telemetry::error_chain(&error), "cannot use the occupancy model");
            }
        }
    }
}

async fn load(cas: &Cas, notice: &ModelNotice, current: Option<&Loaded>) -> Result<OccupancyModel, Unused> {
    let blob = cas.resolve(&notice.digest, notice.size_bytes).await?;
    let content = cas.read_whole(&blob, SIZE_MAX).await?;
    let model = OccupancyModel::decode(&content)?;
    judge(model.report(), current.map(|current| current.model.report()))?;
    Ok(model)
}

/// Loads each published model until the service stops.
pub(crate) async fn follow(context: Context, cas: Cas, models: Models) -> Result<(), ServiceError> {
    let what = "following occupancy models";
    let changes = context.bus.buckets().changes::<ModelNotice>().await;
    let mut changes = changes.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        match context.bus.buckets().get::<ModelNotice>(&()).await {
            Ok((_, Some(notice))) => models.switch_to(&cas, notice).await,
            // There is no model yet; the subscription delivers the next one.
            Ok((_, None)) => {}
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read the occupancy model, retrying");
                tokio::select! {
                    () = context.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RETRY) => continue,
                }
            }
        }
        loop {
            let notice = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                notice = changes.next() => notice,
            };
            match notice {
                Some(notice) => models.switch_to(&cas, notice).await,
                None => return Err(ServiceError::failed(what, "the subscription ended")),
            }
        }
    }
}
