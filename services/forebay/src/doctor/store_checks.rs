//! Checks of the farm's record and its store.

use std::{collections::HashMap, path::Path};

use ::cas::{Cas, CasConfig, CasError, STORE_ID};
use bus::Bus;
use bytes::Bytes;
use model::{BuildId, DigestFunction, FarmRecord, KnownStore};
use remote::{Remote, RemoteError, Source};
use service::host_name;
use settings::Settings;
use telemetry::error_chain;
use tempfile::TempDir;

use super::{
    Finding,
    address_checks::{ANSWER_TIMEOUT, SEE_LOG, START},
};

const FUNCTION: DigestFunction = DigestFunction::Sha256;
const CHECK_STORE: &str = "check its permissions and free space";

/// Checks that the farm has a record, and that its store accepts and returns blobs.
pub(super) async fn run(bus: &Bus, settings: &Settings) -> Vec<Finding> {
    const ADVICE: &str =
        "the first service that opens the store records it: forebay serve worker gateway executor";
    let (id, cas) = match bus.buckets().get::<FarmRecord>(&()).await {
        Ok((_, Some(FarmRecord { id, cas, .. }))) => (id, cas),
        Ok((_, None)) => return vec![Finding::warn("farm", "no store is recorded yet", ADVICE)],
        Err(error) => return vec![Finding::fail("farm", error_chain(&error), "see the log of nats-server")],
    };
    let Some(known) = cas else {
        return vec![Finding::warn("farm", format!("{id}; no store is recorded yet"), ADVICE)];
    };
    let farm = Finding::ok("farm", format!("{id}; store {}", known.url));
    let store = match open(&known, settings) {
        Some(Ok(opened)) => here(&opened.cas, &known).await,
        Some(Err(error)) => Finding::fail("store", error_chain(&error), CHECK_STORE),
        None => through_gateway(bus, &known.url).await,
    };
    vec![farm, store]
}

/// A store that doctor opened itself.
struct Opened {
    cas: Cas,
    /// Local tier of an object store, removed with this value.
    _local: Option<TempDir>,
}

/// Opens the store at its recorded URL; `None` if that is not accessible from this machine.
fn open(known: &KnownStore, settings: &Settings) -> Option<Result<Opened, CasError>> {
    match known.url.strip_prefix("file://") {
        Some(folder) => Path::new(folder).join(STORE_ID).is_file().then(|| open_folder(folder)),
        // Only a machine whose settings name the object store is expected to have access to it.
        None => (settings.cas_url == known.url).then(|| open_objects(&known.url)),
    }
}

fn open_folder(folder: &str) -> Result<Opened, CasError> {
    let cas = Cas::open(CasConfig::new(folder).with_small_caches())?;
    Ok(Opened { cas, _local: None })
}

fn open_objects(url: &str) -> Result<Opened, CasError> {
    let local = tempfile::tempdir().map_err(|source| {
        let path = std::env::temp_dir().display().to_string();
        CasError::Disk { what: "creating a folder in", path, source }
    })?;
    let config = CasConfig { backing: Some(url.to_owned()), ..CasConfig::new(local.path()) };
    let cas = Cas::open(config.with_small_caches())?;
    Ok(Opened { cas, _local: Some(local) })
}

/// Checks a store that this machine can open.
async fn here(cas: &Cas, known: &KnownStore) -> Finding {
    let url = &known.url;
    match tokio::time::timeout(ANSWER_TIMEOUT, write_and_read(cas, known)).await {
        Ok(Ok(true)) => {
            Finding::ok("store", format!("{url}: the blob of this check is stored, and was read back"))
        }
        Ok(Ok(false)) => Finding::fail(
            "store",
            format!("{url} is not the store that the bus has recorded for that URL"),
            "configure all services with one store, or replace the store of the farm with forebay up --take-over",
        ),
        Ok(Err(error)) => Finding::fail("store", format!("{url}: {}", error_chain(&error)), CHECK_STORE),
        Err(_) => {
            let found = format!("{url} does not answer within {} s", ANSWER_TIMEOUT.as_secs());
            Finding::unreachable("store", found, "check that it is reachable from this machine")
        }
    }
}

/// Writes a blob and reads it back if the store is the recorded one; `false` if it is another one.
async fn write_and_read(cas: &Cas, known: &KnownStore) -> Result<bool, CasError> {
    if cas.id().await?.is_none_or(|id| id != known.id) {
        return Ok(false);
    }
    let digest = cas.put_bytes(FUNCTION, new_content()).await?;
    cas.read_whole(&digest, digest.size).await?;
    Ok(true)
}

/// Checks a store of other machines.
async fn through_gateway(bus: &Bus, url: &str) -> Finding {
    let gateway = match bus.gateways().find(&host_name()).await {
        Ok(Some(gateway)) => gateway.grpc,
        Ok(None) => {
            let found = format!("{url} is not accessible from this machine, and no gateway answers");
            return Finding::warn("store", found, START);
        }
        Err(error) => return Finding::fail("store", error_chain(&error), "see the log of nats-server"),
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, send_and_read(&gateway)).await {
        Ok(Ok(())) => Finding::ok(
            "store",
            format!("{url}: the blob of this check is stored, and was read back through {gateway}"),
        ),
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
    let content = new_content();
    let digest = FUNCTION.digest(&content);
    remote.put_many(&HashMap::from([(digest, Source::Bytes(content))])).await?;
    remote.read(&digest).await.map(drop)
}

/// Content that no store has: a store does not write what it has.
fn new_content() -> Bytes {
    format!("forebay doctor {}\n", BuildId::generate()).into()
}

#[cfg(test)]
mod tests {
    use model::StoreId;

    use super::{KnownStore, STORE_ID, Settings, new_content, open};

    #[test]
    fn every_check_writes_a_blob() {
        assert_ne!(new_content(), new_content());
    }

    #[test]
    fn a_check_creates_no_store_and_no_data_folder() {
        let machine = tempfile::tempdir().unwrap();
        let (data, store) = (machine.path().join("data"), machine.path().join("store"));
        let opened = |url: &str| {
            let known = KnownStore { url: url.to_owned(), id: StoreId::generate() };
            let settings = Settings { cas_url: url.to_owned(), data: data.clone(), ..Settings::default() };
            open(&known, &settings).map(Result::unwrap)
        };
        let folder = format!("file://{}", store.display());
        assert!(opened(&folder).is_none() && !store.exists());
        assert!(opened("memory:///").is_some());
        std::fs::create_dir(&store).unwrap();
        std::fs::write(store.join(STORE_ID), "").unwrap();
        assert_eq!(opened(&folder).unwrap().cas.config().root, store);
        assert!(!data.exists());
    }
}
