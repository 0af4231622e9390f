//! Configuration of the services, and the state that they share.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use callers::Caller;
use cas::Cas;
use model::Millis;
use policy::{InstanceRule, InstanceRules, zones::Zones};
use tonic::{
    Status,
    codegen::http::Extensions,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

use crate::{
    budget::Budget,
    fault::{busy, status_of},
    limits::Limits,
    log_streams::{LiveRead, LogWrite},
    uploads::Uploads,
    zone::seen_by_call,
};

/// Time limit for reading the id of the store, which may be in an object store or on another machine.
const ID_TIMEOUT: Duration = Duration::from_secs(2);

/// The store, instances and limits that the services use.
#[derive(Clone)]
pub struct BlobApi {
    /// The store that is served.
    pub cas: Cas,
    /// The served instances, and whether their clients may write the action cache.
    pub instances: InstanceRules,
    /// The trust zones of the farm, whose callers see only what their zone has.
    pub zones: Zones,
    pub limits: Limits,
    /// The time of the farm, for results that clients write.
    pub now: Arc<dyn Fn() -> Millis + Send + Sync>,
    /// Whether this endpoint also executes actions; announced in the capabilities.
    pub executes: bool,
    /// Reader of log streams and of live action output, if there is one.
    pub live: Option<Arc<dyn LiveRead>>,
    /// Writer of log streams, if there is one.
    pub log_writes: Option<Arc<dyn LogWrite>>,
}

impl fmt::Debug for BlobApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobApi").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// State that all services of one API share.
pub(crate) struct Shared {
    pub(crate) api: BlobApi,
    pub(crate) budget: Arc<Budget>,
    pub(crate) uploads: Arc<Uploads>,
    /// The id of the store as the value of a header, once it was read.
    store_id: OnceLock<MetadataValue<Ascii>>,
}

impl Shared {
    pub(crate) fn new(api: BlobApi) -> Arc<Self> {
        let limits = api.limits;
        Arc::new(Self {
            api,
            budget: Arc::new(Budget::new(limits.memory_bytes)),
            uploads: Arc::new(Uploads::new(limits)),
            store_id: OnceLock::new(),
        })
    }

    /// Returns the id of the store as the value of a header; `None` if it has none. An id that cannot be read now is an
    /// error: a client that finds no id does not compare the store with its own.
    pub(crate) async fn store_id(&self) -> Result<Option<MetadataValue<Ascii>>, Status> {
        if let Some(known) = self.store_id.get() {
            return Ok(Some(known.clone()));
        }
        let Ok(found) = tokio::time::timeout(ID_TIMEOUT, self.cas().id()).await else {
            return Err(busy("the store did not report its id within 2 s; try again"));
        };
        let found = found.map_err(|error| status_of(&error))?;
        let value = found.and_then(|id| MetadataValue::<Ascii>::try_from(id.to_string()).ok());
        Ok(value.map(|value| self.store_id.get_or_init(|| value).clone()))
    }

    /// The whole store, whatever the caller may see of it.
    fn cas(&self) -> &Cas {
        &self.api.cas
    }

    /// The store as the caller of a call sees it.
    pub(crate) fn seen_by(&self, extensions: &Extensions, headers: &MetadataMap) -> Result<Cas, Status> {
        self.seen_by_caller(&Caller::of(extensions), headers)
    }

    /// The same for a caller that is known.
    pub(crate) fn seen_by_caller(&self, caller: &Caller, headers: &MetadataMap) -> Result<Cas, Status> {
        seen_by_call(&self.api.cas, &self.api.zones, (caller, headers), None)
    }

    /// Returns the rule of the instance that a request names.
    pub(crate) fn instance(&self, name: &str) -> Result<&InstanceRule, Status> {
        reapi::instance::check(name)?;
        self.api.instances.rule(name).map_err(|_| {
            Status::invalid_argument(format!("unknown instance {name:?}; check the instance name"))
        })
    }
}
