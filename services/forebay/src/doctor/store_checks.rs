//! Checks of the farm's record and its store.

use std::{collections::HashMap, path::Path};

use ::cas::{Cas, CasConfig, CasError, STORE_ID};
use bus::Bus;
use bytes::Bytes;
use model::{DigestFunction, FarmRecord, KnownStore};
use remote::{Remote, RemoteError, Source};
use service::host_name;
use settings::Settings;
use telemetry::error_chain;

use super::{
    Finding,
    address_checks::{ANSWER_TIMEOUT, SEE_LOG, START},
};

const FUNCTION: DigestFunction = DigestFunction::Sha256;
/// A constant blob, so that repeated checks leave only one small blob.
const CONTENT: &[u8] = b"forebay doctor\n";
const CHECK_STORE: &str = "check its permissions and free space";

/// Checks that the farm has a record, and that its store accepts and returns blobs.
pub(super) async fn run(bus: &Bus, settings: &Settings) -> Vec<Finding> {
    const ADVICE: &str =
        "the first service that opens the store records it: forebay serve worker gateway executor";
    let (id, cas) = match bus.farm_record().await {
        Ok((_, Some(FarmRecord { id, cas, .. }))) => (id, cas),
        Ok((_, None)) => return vec![Finding::warn("farm", "no store is recorded yet", ADVICE)],
        Err(error) => return vec![Finding::fail("farm", error_chain(&error), "see the log of nats-server")],
    };
    let Some(known) = cas else {
        return vec![Finding::warn("farm", format!("{id}; no store is recorded yet"), ADVICE)];
    };
    let farm = Finding::ok("farm", format!("{id}; store {}", known.url));
    let store = match open(&known, settings) {
        Some(Ok(cas)) => here(&cas, &known).await,
        Some(Err(error)) => Finding::fail("store", error_chain(&error), CHECK_STORE),
        None => through_gateway(bus, &known.url).await,
    };
    vec![farm, store]
}

/// Opens the store at its recorded URL; `None` if that is not accessible from this machine.
fn open(known: &KnownStore, settings: &Settings) -> Option<Result<Cas, CasError>> {
    let config = match known.url.strip_prefix("file://") {
        // The store behind the data folder, which the settings must name.
        _ if settings.cas_url == known.url => {
            CasConfig { backing: Some(known.url.clone()), ..CasConfig::new(settings.data.join("cas")) }
        }
        Some(path) if Path::new(path).join(STORE_ID).is_file() => CasConfig::new(path),
        Some(_) | None => return None,
    };
    Some(Cas::open(config.with_small_caches()))
}

/// Checks a store that this machine can open.
async fn here(cas: &Cas, known: &KnownStore) -> Finding {
    let url = &known.url;
    let checked = match cas.id().await {
        Ok(Some(id)) if id == known.id => write_and_read(cas).await,
        Ok(_) => {
            return Finding::fail(
                "store",
                format!("{url} is not the store that the bus has recorded for that URL"),
                "configure all services with one store, or replace the store of the farm with forebay up --take-over",
            );
        }
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => Finding::ok("store", format!("{url}: write and read back OK")),
        Err(error) => Finding::fail("store", format!("{url}: {}", error_chain(&error)), CHECK_STORE),
    }
}

async fn write_and_read(cas: &Cas) -> Result<(), CasError> {
    let digest = cas.put_bytes(FUNCTION, Bytes::from_static(CONTENT)).await?;
    cas.read_whole(&digest, digest.size).await.map(drop)
}

/// Checks a store of other machines.
async fn through_gateway(bus: &Bus, url: &str) -> Finding {
    let gateway = match bus.find_gateway(&host_name()).await {
        Ok(Some(gateway)) => gateway.grpc,
        Ok(None) => {
            let found = format!("{url} is not accessible from this machine, and no gateway answers");
            return Finding::warn("store", found, START);
        }
        Err(error) => return Finding::fail("store", error_chain(&error), "see the log of nats-server"),
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, send_and_read(&gateway)).await {
        Ok(Ok(())) => Finding::ok("store", format!("{url}: write and read back through {gateway} OK")),
        Ok(Err(error)) if error.is_unreachable() => Finding::unreachable(
            "store",
            format!("{url} through {gateway}: {}", error_chain(&error)),
            SEE_LOG,
        ),
        Ok(Err(error)) => {
            Finding::fail("store", format!("{url} through {gateway}: {}", error_chain(&error)), CHECK_STORE)
        }
        Err(_) => {
            let found = format!("{gateway} does not answer within {} s", ANSWER_TIMEOUT.as_secs());
            Finding::unreachable("store", found, SEE_LOG)
        }
    }
}

async fn send_and_read(gateway: &str) -> Result<(), RemoteError> {
    let remote = Remote::connect(gateway, "", FUNCTION).await?;
    let digest = FUNCTION.digest(CONTENT);
    let content = Source::Bytes(Bytes::from_static(CONTENT));
    remote.put_many(&HashMap::from([(digest, content)])).await?;
    remote.read(&digest).await.map(drop)
}
