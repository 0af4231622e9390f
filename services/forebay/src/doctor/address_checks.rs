//! Checks that the gateways and stores recorded on the bus are reachable.

use std::{path::Path, time::Duration};

use ::cas::{Cas, CasConfig};
use bus::Bus;
use model::{DigestFunction, GatewayAddress, KnownStore, StoreId};
use remote::Remote;
use service::host_name;
use settings::Settings;
use store::Store;
use telemetry::error_chain;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::Finding;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const START: &str = "start one: forebay serve gateway";
const SEE_LOG: &str = "check that the gateway runs and its address is reachable from here; see its log";

/// Checks the record of the farm, and its gateways.
pub(super) async fn run(bus: &Bus, settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![farm(bus, settings).await];
    findings.extend(gateways(bus).await);
    findings
}

async fn farm(bus: &Bus, settings: &Settings) -> Finding {
    let record = match bus.farm_record().await {
        Ok((_, Some(record))) => record,
        Ok((_, None)) => {
            let advice =
                "the first service that opens a store records it: forebay serve worker gateway executor";
            return Finding::warn("farm", "no store is recorded yet", advice);
        }
        Err(error) => return Finding::fail("farm", error_chain(&error), "see the log of nats-server"),
    };
    let store = match &record.store {
        Some(known) if Store::is_there(&known.url) => {
            let found = match Store::open(&known.url) {
                Ok(store) => store.id().await.map_err(|error| error_chain(&error)),
                Err(error) => Err(error_chain(&error)),
            };
            compare("store", known, found)
        }
        Some(_) | None => None,
    };
    let cas = match &record.cas {
        Some(known) => here(known, settings).await.and_then(|found| compare("cas", known, found)),
        None => None,
    };
    if let Some(other) = store.or(cas) {
        return other;
    }
    let text = |known: &Option<KnownStore>| {
        known.as_ref().map_or_else(|| "not recorded yet".to_owned(), |known| known.url.clone())
    };
    let found = format!("{}; store {}, cas {}", record.id, text(&record.store), text(&record.cas));
    Finding::ok("farm", found)
}

/// The id of the content-addressable store at its recorded URL; `None` if that is not accessible from this machine.
async fn here(known: &KnownStore, settings: &Settings) -> Option<Result<Option<StoreId>, String>> {
    let config = match known.url.strip_prefix("file://") {
        Some(path) if Path::new(path).join("store-id").is_file() => CasConfig::new(path),
        // An object store, which the settings must name.
        _ if settings.cas_url == known.url => {
            CasConfig { backing: Some(known.url.clone()), ..CasConfig::new(settings.data.join("cas")) }
        }
        _ => return None,
    };
    Some(match Cas::open(config) {
        Ok(cas) => cas.id().await.map_err(|error| error_chain(&error)),
        Err(error) => Err(error_chain(&error)),
    })
}

/// A finding if the store is not the one recorded on the bus.
fn compare(
    check: &'static str,
    known: &KnownStore,
    found: Result<Option<StoreId>, String>,
) -> Option<Finding> {
    let advice =
        "configure all services with one store, or replace the store of the farm with forebay up --take-over";
    match found {
        Ok(Some(id)) if id == known.id => None,
        Ok(_) => {
            let found = format!("{} is not the store that the bus has recorded for that URL", known.url);
            Some(Finding::fail(check, found, advice))
        }
        Err(error) => Some(Finding::fail(check, error, "check its permissions and free space")),
    }
}

async fn gateways(bus: &Bus) -> Vec<Finding> {
    let found = match bus.gateways(&host_name()).await {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::fail("gateway", error_chain(&error), "see the log of nats-server")];
        }
    };
    if found.is_empty() {
        let none = "none is reachable from this machine";
        return vec![Finding::warn("gateway", format!("{none}; jobs and actions wait"), START)];
    }
    let checks = found.iter().map(gateway);
    futures::future::join_all(checks).await
}

async fn gateway(address: &GatewayAddress) -> Finding {
    let GatewayAddress { grpc, http } = address;
    let called = async {
        let remote = Remote::connect(grpc, "", DigestFunction::Sha256).await;
        let remote = remote.map_err(|error| format!("{grpc}: {}", error_chain(&error)))?;
        remote.capabilities().await.map_err(|error| format!("{grpc}: {}", error_chain(&error)))?;
        healthy(http).await.map_err(|error| format!("{http}/healthz: {error}"))
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, called).await {
        Ok(Ok(())) => Finding::ok("gateway", format!("answers at {grpc} and {http}")),
        Ok(Err(error)) => Finding::unreachable("gateway", error, SEE_LOG),
        Err(_) => {
            let found = format!("{grpc} or {http} does not answer within {} s", ANSWER_TIMEOUT.as_secs());
            Finding::unreachable("gateway", found, SEE_LOG)
        }
    }
}

/// Checks the health endpoint of the HTTP API.
async fn healthy(http: &str) -> std::io::Result<()> {
    let address = http.strip_prefix("http://").unwrap_or(http);
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let first = text.lines().next().unwrap_or_default();
    if first.contains(" 200 ") {
        return Ok(());
    }
    Err(std::io::Error::other(format!("unexpected answer {first:?}")))
}
