//! Identity of stores: the bus has a record of the farm's stores, each store contains its id, and a service whose
//! store differs from the recorded one does not start.

use std::time::Duration;

use bus::{Bus, Patience};
use cas::{Cas, CasError};
use invariant::Present as _;
use model::{FarmRecord, KnownStore, StoreId};
use policy::{Claim, Joining, joining, joining_through_gateway};
use tracing::{debug, info, warn};

use crate::{OtherStore, StartError};

/// How long a write with unknown outcome is retried.
const PATIENCE: Duration = Duration::from_secs(30);
const TRIES: u32 = 20;
/// Pause between two tries if the bus or the store does not answer.
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

/// Waits until a store answers that is read through a gateway, and returns its id; fails at once without patience.
async fn answered(cas: &Cas, patience: Patience) -> Result<Option<StoreId>, StartError> {
    let mut reported = false;
    loop {
        match cas.id().await {
            Ok(Some(id)) => return Ok(Some(id)),
            Ok(None) => {
                warn!(url = cas.url(), "the store reports no id: it is not compared with the farm's store");
                return Ok(None);
            }
            Err(error @ CasError::Unreachable { .. }) if patience == Patience::Wait => {
                if !std::mem::replace(&mut reported, true) {
                    warn!(error = telemetry::error_chain(&error), "waiting for the store");
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Records `cas` as the farm's store, or checks that it is the recorded one. With patience, waits for the gateway of a
/// store that is read through one.
pub async fn join_store(bus: &Bus, cas: &Cas, claim: Claim, patience: Patience) -> Result<(), StartError> {
    let reported = if cas.is_remote() { answered(cas, patience).await? } else { None };
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
        let known = record.cas.as_ref();
        let (found, decision) = if cas.is_remote() {
            (reported, joining_through_gateway(known, reported, claim))
        } else {
            let found = cas.id().await?;
            (found, joining(known, found, &url, claim))
        };
        match decision {
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
            // Workers and executors wait for a process that may.
            Joining::MakeKnown if !bus.buckets().may_write::<FarmRecord>(&()).await => {
                debug!("waiting until the store of the farm is recorded");
                tokio::time::sleep(PAUSE).await;
            }
            Joining::MakeKnown => {
                let id = match found {
                    Some(id) => id,
                    None => cas.id_or(StoreId::generate()).await?,
                };
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
