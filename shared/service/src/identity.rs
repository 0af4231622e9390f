//! Identity of stores: the bus has a record of the farm's stores, each store contains its id, and a service whose
//! store differs from the recorded one does not start.

use std::time::Duration;

use bus::{Bus, SettingKey};
use cas::Cas;
use invariant::Present as _;
use model::{FarmRecord, KnownStore, StoreId};
use policy::{Claim, Joining, joining};
use store::Store;
use tracing::{debug, info};

use crate::{OtherStore, StartError};

/// How long a write with unknown outcome is retried.
const PATIENCE: Duration = Duration::from_secs(30);
const TRIES: u32 = 20;
/// Pause between two tries if the bus does not answer.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
enum FarmStore<'a> {
    Store(&'a Store),
    Cas(&'a Cas),
}

impl FarmStore<'_> {
    fn url(self) -> String {
        match self {
            Self::Store(store) => store.url().to_owned(),
            Self::Cas(cas) => cas.url(),
        }
    }

    async fn id(self) -> Result<Option<StoreId>, StartError> {
        Ok(match self {
            Self::Store(store) => store.id().await?,
            Self::Cas(cas) => cas.id().await?,
        })
    }

    async fn id_or(self, id: StoreId) -> Result<StoreId, StartError> {
        Ok(match self {
            Self::Store(store) => store.id_or(id).await?,
            Self::Cas(cas) => cas.id_or(id).await?,
        })
    }

    fn known_in(self, record: &mut FarmRecord) -> &mut Option<KnownStore> {
        match self {
            Self::Store(_) => &mut record.store,
            Self::Cas(_) => &mut record.cas,
        }
    }

    async fn mismatch(self, bus: &Bus, record: &FarmRecord, known: &str) -> OtherStore {
        let (what, remedy) = match self {
            Self::Store(_) => (
                "store",
                format!("use --store {known}, if it is reachable from here, or connect to another NATS"),
            ),
            Self::Cas(_) => ("content-addressable store", cas_remedy(bus).await),
        };
        let remedy = format!("{remedy}; `forebay up --take-over` assigns this store to the farm");
        let farm = format!("farm {}", record.id);
        OtherStore { what, url: self.url(), farm, known: known.to_owned(), remedy }
    }
}

async fn cas_remedy(bus: &Bus) -> String {
    let found = bus.find_gateway(&host_name()).await;
    let found = found
        .inspect_err(|error| debug!(error = telemetry::error_chain(error), "cannot look for a gateway"))
        .ok()
        .flatten();
    let gateway = found.map_or_else(|| "grpc://HOST:PORT of a gateway".to_owned(), |gateway| gateway.grpc);
    format!(
        "read blobs from the farm (set cas_url, in the environment FOREBAY_CAS_URL={gateway}), or use the same data \
         folder or object store"
    )
}

/// Records `store` as the farm's, or checks that it is the recorded one.
pub async fn join_store(bus: &Bus, store: &Store, claim: Claim) -> Result<(), StartError> {
    join(bus, FarmStore::Store(store), claim).await
}

/// The same for the content-addressable store. A store whose blobs are in another farm's, over the Remote Execution
/// API, has no id to compare.
pub async fn join_cas(bus: &Bus, cas: &Cas, claim: Claim) -> Result<(), StartError> {
    if cas.is_remote() {
        return Ok(());
    }
    join(bus, FarmStore::Cas(cas), claim).await
}

async fn join(bus: &Bus, store: FarmStore<'_>, claim: Claim) -> Result<(), StartError> {
    for tried in 1..=TRIES {
        let (at, record) = match bus.farm_record().await {
            Ok(found) => found,
            // A nats-server that is just restarting answers again soon.
            Err(error) if tried < TRIES => {
                debug!(error = telemetry::error_chain(&error), "cannot read the farm's identity, retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut record = record.unwrap_or_default();
        let url = store.url();
        let known = store.known_in(&mut record).clone();
        // The record of a bus from before farms had records has only the URL of its store.
        if let (None, FarmStore::Store(_), Claim::Join) = (&known, store, claim)
            && let Some(earlier) = bus.setting(SettingKey::Store).await?
            && earlier != url
        {
            return Err(store.mismatch(bus, &record, &earlier).await.into());
        }
        match joining(known.as_ref(), store.id().await?, &url, claim) {
            Joining::Member => return Ok(()),
            Joining::Restore(id) => {
                store.id_or(id).await?;
                return Ok(());
            }
            Joining::Refused => {
                let known =
                    known.map(|known| known.url).present("the store of a farm that refuses another one");
                return Err(store.mismatch(bus, &record, &known).await.into());
            }
            Joining::MakeKnown => {
                let id = store.id_or(StoreId::generate()).await?;
                *store.known_in(&mut record) = Some(KnownStore { url: url.clone(), id });
                if bus.write_farm_record(&record, at, PATIENCE).await? {
                    info!(farm = %record.id, url, "recorded the store as the farm's");
                    return Ok(());
                }
            }
        }
    }
    Err(bus::BusError::Timeout { what: "recording the store of the farm".to_owned() }.into())
}

/// Host name of this machine.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "unknown".to_owned())
}
