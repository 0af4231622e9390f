//! Occupancy models, loaded as they are published.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use model::{Build, Digest, Esu, ExecutorType, ModelNotice, ToolCall};
use occupancy::{BuildFacts, DecodeError, OccupancyModel, Refusal, judge};
use service::{Context, ServiceError};
use store::{Store, StoreError};
use tracing::{info, warn};

const RETRY: Duration = Duration::from_secs(5);
/// Bytes of a model at most.
const SIZE_MAX: u64 = 256 << 20;

/// The model in use; none before the first. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Models(Arc<RwLock<Option<Arc<Loaded>>>>);

/// A model that estimates.
pub(crate) struct Loaded {
    model: OccupancyModel,
    /// Of its content. A version does not tell models apart: one that replaces an unreadable notice has version 1 again.
    digest: Digest,
    /// Executor types that builds with targets of a rule used.
    pub(crate) types_by_rule: BTreeMap<String, BTreeSet<ExecutorType>>,
}

/// Why a model that was published is not used.
#[derive(Debug, thiserror::Error)]
enum Unused {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Loaded {
    /// The version that was published.
    pub(crate) fn version(&self) -> u64 {
        self.model.report().version
    }

    /// What `build`, which asks its tool for `call`, is expected to occupy of `kind`; `None`: the model does not know the
    /// type.
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
    /// The one in use.
    pub(crate) fn current(&self) -> Option<Arc<Loaded>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn take(&self, store: &Store, notice: ModelNotice) {
        let current = self.current();
        if current.as_ref().is_some_and(|current| current.digest == notice.digest) {
            return;
        }
        let version = notice.version;
        match load(store, &notice, current.as_deref()).await {
            Ok(model) => {
                info!(version, builds = notice.builds, "builds are estimated by another occupancy model");
                let ModelNotice { digest, types_by_rule, .. } = notice;
                let loaded = Arc::new(Loaded { model, digest, types_by_rule });
                *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
            }
            Err(error) => {
                warn!(version, error = telemetry::error_chain(&error), "an occupancy model is not used");
            }
        }
    }
}

async fn load(
    store: &Store,
    notice: &ModelNotice,
    current: Option<&Loaded>,
) -> Result<OccupancyModel, Unused> {
    let content = store.read(&notice.digest, SIZE_MAX).await?;
    let model = OccupancyModel::decode(&content)?;
    judge(model.report(), current.map(|current| current.model.report()))?;
    Ok(model)
}

/// Loads what is published until the service stops.
pub(crate) async fn follow(context: Context, store: Store, models: Models) -> Result<(), ServiceError> {
    let what = "following occupancy models";
    let changes = context.bus.model_changes().await;
    let mut changes = changes.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        match context.bus.current_model().await {
            Ok((_, Some(notice))) => models.take(&store, notice).await,
            // The next one is told.
            Ok((_, None)) => {}
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "the occupancy model is looked for again soon");
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
                Some(notice) => models.take(&store, notice).await,
                None => return Err(ServiceError::failed(what, "the subscription ended")),
            }
        }
    }
}
