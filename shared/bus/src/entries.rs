//! All kinds of values in key-value buckets, with their buckets, keys and subjects.

use std::time::Duration;

use model::{
    Environment, EnvironmentName, FarmRecord, GovernorRecord, Group, ModelNotice, Pool, PoolName, Quota,
    Quotas, ScalePlan, ScaledPool, Sequence, WorkerProperties, WorkerPropertiesId,
};
use serde::{Deserialize, Serialize};

use crate::{Buckets, BusError, Entry, EntryChange, ListedEntry, Stored, message, stream};

message!(
    ActionsFloor,
    ArchivedBlobs,
    EarlierStore,
    Environment,
    FarmRecord,
    GovernorRecord,
    ModelNotice,
    Pool,
    Quota,
    ScalePlan,
    WorkerProperties,
);

/// Declares the stream and the subject of a value: one subject, or a prefix and the type of the key that follows it.
macro_rules! entry {
    ($value:ty, $stream:ident, $subject:literal) => {
        impl Entry for $value {
            type Key = ();
            const STREAM: &str = stream::$stream;

            fn subject((): &()) -> String {
                $subject.to_owned()
            }
        }
    };
    ($value:ty, $stream:ident, $prefix:literal, $key:ty) => {
        impl Entry for $value {
            type Key = $key;
            const STREAM: &str = stream::$stream;

            fn subject(key: &$key) -> String {
                format!("{}{key}", $prefix)
            }
        }

        impl ListedEntry for $value {
            const ALL: &str = concat!($prefix, ">");

            fn key(subject: &str) -> Option<$key> {
                subject.strip_prefix($prefix)?.parse().ok()
            }
        }
    };
}

/// Position in the stream of executions after which every unfinished execution has its last record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionsFloor(pub Sequence);

/// How long the store keeps the blobs that the archive's rows name, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedBlobs {
    /// From the last change of the record that names a blob, in seconds; 0 if rows outlive their blobs.
    pub seconds: u64,
}

entry!(ActionsFloor, SETTINGS, "$KV.FOREBAY_SETTINGS.actions-floor");
entry!(ArchivedBlobs, SETTINGS, "$KV.FOREBAY_SETTINGS.archive");
entry!(Pool, SETTINGS, "$KV.FOREBAY_SETTINGS.pool.", PoolName);
entry!(WorkerProperties, SETTINGS, "$KV.FOREBAY_SETTINGS.worker.", WorkerPropertiesId);
entry!(GovernorRecord, QUOTA, "$KV.FOREBAY_QUOTA.governor");
entry!(ModelNotice, MODELS, "$KV.FOREBAY_MODELS.current");
entry!(ScalePlan, SCALE, "$KV.FOREBAY_SCALE.", ScaledPool);

impl Entry for FarmRecord {
    type Key = ();
    const STREAM: &str = stream::SETTINGS;
    const MUST_BE_READABLE: bool = true;

    fn subject((): &()) -> String {
        "$KV.FOREBAY_SETTINGS.farm".to_owned()
    }
}

/// Selects the quota of a group or the default quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaOf {
    /// The quota of a group.
    Group(Group),
    /// The default quota, which applies to groups without their own.
    Others,
}

const GROUP: &str = "$KV.FOREBAY_QUOTA.group.";
const DEFAULT: &str = "$KV.FOREBAY_QUOTA.default";

impl Entry for Quota {
    type Key = QuotaOf;
    const STREAM: &str = stream::QUOTA;

    fn subject(of: &QuotaOf) -> String {
        match of {
            QuotaOf::Group(group) => format!("{GROUP}{group}"),
            QuotaOf::Others => DEFAULT.to_owned(),
        }
    }
}

impl ListedEntry for Quota {
    const ALL: &str = "$KV.FOREBAY_QUOTA.>";

    fn key(subject: &str) -> Option<QuotaOf> {
        match subject.strip_prefix(GROUP) {
            Some(name) => name.parse().ok().map(QuotaOf::Group),
            None => (subject == DEFAULT).then_some(QuotaOf::Others),
        }
    }
}

/// Keys of environments of one group, `GROUP.NAME`, and of those of all.
const ENVIRONMENT_OF_GROUP: &str = "$KV.FOREBAY_ENVIRONMENTS.group.";
const SHARED_ENVIRONMENT: &str = "$KV.FOREBAY_ENVIRONMENTS.shared.";

impl Entry for Environment {
    type Key = EnvironmentName;
    const STREAM: &str = stream::ENVIRONMENTS;

    fn subject(name: &EnvironmentName) -> String {
        match name.group() {
            Some(group) => format!("{ENVIRONMENT_OF_GROUP}{group}.{}", name.name()),
            None => format!("{SHARED_ENVIRONMENT}{}", name.name()),
        }
    }
}

impl ListedEntry for Environment {
    const ALL: &str = "$KV.FOREBAY_ENVIRONMENTS.>";

    fn key(subject: &str) -> Option<EnvironmentName> {
        match subject.strip_prefix(ENVIRONMENT_OF_GROUP) {
            // Names of groups have no dot.
            Some(of_group) => of_group.replacen('.', "/", 1).parse().ok(),
            None => subject.strip_prefix(SHARED_ENVIRONMENT)?.parse().ok(),
        }
    }
}

/// An environment changed or was removed: read it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentChanged(pub EnvironmentName);

impl EntryChange for EnvironmentChanged {
    const LIVE: &str = "forebay.environment.live.>";

    fn of(stored: &Stored) -> Option<Self> {
        Environment::key(&stored.subject).map(Self)
    }
}

/// A change in the quota bucket.
#[derive(Debug, Clone, PartialEq)]
pub enum QuotaChange {
    /// A quota changed: read all of them again.
    Quotas,
    /// The governor made a decision.
    Governor(Box<GovernorRecord>),
}

impl EntryChange for QuotaChange {
    const LIVE: &str = "forebay.quota.live.>";

    fn of(stored: &Stored) -> Option<Self> {
        let decided = stored.subject == GovernorRecord::subject(&());
        // An unreadable record comes from another writer; reading the quotas again covers it.
        let record = decided.then(|| stored.read().ok()).flatten();
        Some(record.map_or(Self::Quotas, |record| Self::Governor(Box::new(record))))
    }
}

impl EntryChange for ModelNotice {
    const LIVE: &str = "forebay.model.live.current";

    fn of(stored: &Stored) -> Option<Self> {
        stored.read().ok()
    }
}

impl EntryChange for ScalePlan {
    const LIVE: &str = "forebay.scale.>";

    fn of(stored: &Stored) -> Option<Self> {
        stored.read().ok()
    }
}

/// URL of the store, as text, in farms older than [`FarmRecord`]; only read and removed.
#[derive(Debug, Serialize, Deserialize)]
struct EarlierStore;

entry!(EarlierStore, SETTINGS, "$KV.FOREBAY_SETTINGS.store");

/// Time for which an uncertain announcement is retried.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(30);

impl Buckets<'_> {
    /// All quotas, without those that cannot be read.
    pub async fn quotas(self) -> Result<Quotas, BusError> {
        let mut quotas = Quotas::default();
        for (of, quota) in self.all::<Quota>().await? {
            match of {
                QuotaOf::Group(group) => drop(quotas.groups.insert(group, quota)),
                QuotaOf::Others => quotas.default = Some(quota),
            }
        }
        Ok(quotas)
    }

    /// Registers a pool, so that actions that it can run wait for its executors. The properties of the latest
    /// announcement and the largest capacity ever announced apply. Returns the merged pool.
    pub async fn announce_pool(self, pool: &Pool) -> Result<Pool, BusError> {
        loop {
            let (at, known) = self.get_patiently::<Pool>(&pool.name, ANNOUNCE_PATIENCE).await?;
            let capacity = known.as_ref().map(|known| pool.capacity.max(&known.capacity));
            let merged = Pool { capacity: capacity.unwrap_or_else(|| pool.capacity.clone()), ..pool.clone() };
            if known.as_ref() == Some(&merged)
                || self.compare_and_set(&pool.name, &merged, at, ANNOUNCE_PATIENCE).await?
            {
                return Ok(merged);
            }
        }
    }

    /// Registers what a worker offers, so that builds that require it wait for such a worker.
    pub async fn announce_worker(self, properties: &WorkerProperties) -> Result<(), BusError> {
        let id = properties.id();
        let (at, known) = self.get_patiently::<WorkerProperties>(&id, ANNOUNCE_PATIENCE).await?;
        if known.is_none() {
            // The id is made of the properties: another writer has written the same.
            self.compare_and_set(&id, properties, at, ANNOUNCE_PATIENCE).await?;
        }
        Ok(())
    }

    /// All registered pools, sorted by name, from any replica.
    pub async fn pools(self) -> Result<Vec<Pool>, BusError> {
        Ok(self.all::<Pool>().await?.into_values().collect())
    }

    /// URL of the store in which earlier versions kept output files, logs, jobs and models, until its blobs are moved.
    pub async fn earlier_store(self) -> Result<Option<String>, BusError> {
        let (_, record) = self.get::<FarmRecord>(&()).await?;
        if let Some(store) = record.and_then(|record| record.store) {
            return Ok(Some(store.url));
        }
        let last = self.bus.stream(stream::SETTINGS).last(&EarlierStore::subject(&())).await?;
        let text = last.and_then(|stored| String::from_utf8(stored.payload.to_vec()).ok());
        Ok(text.filter(|url| !url.is_empty()))
    }

    /// Forgets that store, once its blobs are moved.
    pub async fn forget_earlier_store(self) -> Result<(), BusError> {
        loop {
            let (at, record) = self.get::<FarmRecord>(&()).await?;
            let Some(record) = record.filter(|record| record.store.is_some()) else { break };
            let record = FarmRecord { store: None, ..record };
            if self.compare_and_set(&(), &record, at, ANNOUNCE_PATIENCE).await? {
                break;
            }
        }
        if self.bus.stream(stream::SETTINGS).last(&EarlierStore::subject(&())).await?.is_some() {
            self.put::<EarlierStore>(&(), None).await?;
        }
        Ok(())
    }
}
