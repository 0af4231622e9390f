//! Tests of the service against a real nats-server.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::{path::Path, time::Duration};

use bus::Patience;
use bytes::Bytes;
use cas::{Cas, CasConfig, CasError};
use farm::Servers;
use model::DigestFunction;
use service::{Context, ServiceError};
use settings::Settings;
use store_bounds::StoreUsage;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const ROOM: u64 = 1 << 20;

async fn context(servers: &Servers, data: &Path) -> Context {
    let settings = Settings {
        nats_url: servers.nats_url(),
        data: data.to_owned(),
        cas_bytes_max: ROOM,
        ..Settings::default()
    };
    Context::connect(settings.service(), "cas", Patience::Wait, CancellationToken::new()).await.unwrap()
}

fn run(context: &Context) -> JoinHandle<Result<(), ServiceError>> {
    tokio::spawn(cas_service::run(context.clone(), Settings::default().cas()))
}

/// A process that writes to the folder.
async fn writer(context: &Context) -> Cas {
    let cas = Cas::open(CasConfig::new(context.data_folder("cas").unwrap())).unwrap();
    StoreUsage::join(&cas, &context.bus, context.stop.clone()).await.unwrap();
    cas
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_hear_that_the_store_is_full_from_whoever_evicts() {
    let servers = Servers::start().await;
    let data = servers.folder().join("data");
    let first = context(&servers, &data).await;
    let running = run(&first);
    let other = context(&servers, &data).await;
    let cas = writer(&other).await;
    // All blobs were stored a moment ago, so none may be evicted.
    let mut stored = 0;
    while !cas.is_full() {
        let content = Bytes::from(vec![u8::try_from(stored % 251).unwrap(); 40_000 + stored]);
        let digest = DigestFunction::Sha256.digest(&content);
        match cas.put(&digest, content).await {
            Ok(()) => stored += 1,
            Err(error) => assert!(matches!(error, CasError::Full), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(stored as u64 * 40_000 >= ROOM * 3 / 4, "{stored} blobs were stored");
    let late = writer(&other).await;
    until("a later process learns it too", || late.is_full()).await;
    // A second service waits for the lock, and evicts when the first one ends.
    let second = context(&servers, &data).await;
    let waiting = run(&second);
    first.stop.cancel();
    running.await.unwrap().unwrap();
    late.set_full(false);
    until("the second service reports it too", || late.is_full()).await;
    second.stop.cancel();
    waiting.await.unwrap().unwrap();
    other.stop.cancel();
}
