//! Identity of stores: the bus has a record of the farm's stores, each store contains its id, and a service whose
//! store differs from the recorded one does not start.

use std::time::Duration;

use bus::Bus;
use cas::Cas;
use invariant::Present as _;
use model::{FarmRecord, KnownStore, StoreId};
use policy::{Claim, Joining, joining};
use tracing::{debug, info};

use crate::{OtherStore, StartError};

/// How long a write with unknown outcome is retried.
const PATIENCE: Duration = Duration::from_secs(30);
const TRIES: u32 = 20;
/// Pause between two tries if the bus does not answer.
const PAUSE: Duration = Duration::from_millis(500);

async fn mismatch(bus: &Bus, cas: &Cas, record: &FarmRecord, known: &str) -> OtherStore {
    let remedy =
        format!("{}; `forebay up --take-over` assigns this store to the farm", remedy_for(bus).await);
    OtherStore { url: cas.url(), farm: format!("farm {}", record.id), known: known.to_owned(), remedy }
}

/// What the operator of a service without the farm's store can do.
pub(crate) async fn remedy_for(bus: &Bus) -> String {
    let found = bus.gateways().find(&host_name()).await;
    let found = found
        .inspect_err(|error| debug!(error = telemetry::error_chain(error), "cannot look for a gateway"))
        .ok()
        .flatten();
    let gateway = found.map_or_else(|| "grpc://HOST:PORT of a gateway".to_owned(), |gateway| gateway.grpc);
    format!(
        "name the farm's store with --store (cas_url) if it is reachable from here, or read blobs from the farm (in the \
         environment FOREBAY_CAS_URL={gateway}), or connect to another NATS"
    )
}

/// Records `cas` as the farm's store, or checks that it is the recorded one. A store whose blobs are in another farm's,
/// over the Remote Execution API, has no id to compare.
pub async fn join_store(bus: &Bus, cas: &Cas, claim: Claim) -> Result<(), StartError> {
    if cas.is_remote() {
        return Ok(());
    }
    for tried in 1..=TRIES {
        let (at, record) = match bus.buckets().get::<FarmRecord>(&()).await {
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
        let url = cas.url();
        match joining(record.cas.as_ref(), cas.id().await?, &url, claim) {
            Joining::Member => return Ok(()),
            Joining::Restore(id) => {
                cas.id_or(id).await?;
                return Ok(());
            }
            Joining::Refused => {
                let known = record.cas.as_ref().map(|known| known.url.clone());
                let known = known.present("the store of a farm that refuses another one");
                return Err(mismatch(bus, cas, &record, &known).await.into());
            }
            Joining::MakeKnown => {
                let id = cas.id_or(StoreId::generate()).await?;
                record.cas = Some(KnownStore { url: url.clone(), id });
                if bus.buckets().compare_and_set(&(), &record, at, PATIENCE).await? {
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
