//! Tests of the service against a real nats-server.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::{fs, path::Path, time::Duration};

use bus::{Message as _, Patience, RequestSubject, Written, stream};
use bytes::Bytes;
use cas::{Cas, CasConfig, CasError};
use farm::Servers;
use model::{
    BlobDigest, Build, BuildId, BuildJob, BuildRecord, BuildRequest, Digest, DigestFunction, JobSource,
    Priority, RequestLimits, Sequence, StoredJob,
};
use service::{Context, ServiceError};
use settings::Settings;
use store_bounds::{StoreUsage, store_rooms};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const ROOM: u64 = 1 << 20;

async fn context(servers: &Servers, data: &Path) -> Context {
    context_with(servers, data, Settings::default()).await
}

async fn context_with(servers: &Servers, data: &Path, settings: Settings) -> Context {
    let settings =
        Settings { nats_url: servers.nats_url(), data: data.to_owned(), cas_bytes_max: ROOM, ..settings };
    Box::pin(Context::connect(settings.service("cas"), "cas", Patience::Wait, CancellationToken::new()))
        .await
        .unwrap()
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
    servers.create_streams().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_missed_that_there_is_space_hears_it_after_a_refused_write() {
    let servers = Servers::start().await;
    servers.create_streams().await;
    let data = servers.folder().join("data");
    let first = context(&servers, &data).await;
    let running = run(&first);
    let other = context(&servers, &data).await;
    let cas = writer(&other).await;
    let evicts =
        async { while store_rooms(&other.bus, Duration::from_millis(200)).await.unwrap().is_empty() {} };
    tokio::time::timeout(Duration::from_secs(20), evicts).await.unwrap();
    cas.set_full(true);
    let put = async {
        while cas.put_bytes(DigestFunction::Sha256, Bytes::from_static(b"content")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), put).await.unwrap();
    first.stop.cancel();
    running.await.unwrap().unwrap();
    other.stop.cancel();
}

/// Stores a job and returns its digest.
async fn job(cas: &Cas, content: &'static str) -> BlobDigest {
    cas.put_bytes(DigestFunction::Sha256, Bytes::from_static(content.as_bytes())).await.unwrap()
}

/// Publishes a request that names a job. No enqueuer runs, so it waits.
async fn publish(context: &Context, job: &BlobDigest) {
    let stored = StoredJob { digest: Digest::from_sha256(job.hash), size_bytes: Some(job.size) };
    let request = BuildRequest { job: Some(JobSource::Stored(stored)), ..BuildRequest::default() };
    let subject = RequestSubject { group: "g".parse().unwrap(), priority: Priority::Batch }.to_string();
    context.bus.jetstream().publish(subject, request.to_json()).await.unwrap().await.unwrap();
}

/// Writes the record of a build that names a job.
async fn write(context: &Context, job: &BlobDigest) {
    let limits = RequestLimits {
        attempts: 1,
        attempts_max: 1,
        request_bytes_max: 1 << 20,
        executor_types: ["x86".parse().unwrap()].into(),
        ..RequestLimits::default()
    };
    let request = BuildRequest {
        id: Some(BuildId::generate()),
        command: vec!["true".to_owned()],
        ..BuildRequest::default()
    };
    let now = context.bus.now();
    let accepted = request.validate(&"g".parse().unwrap(), None, None, &limits, now).unwrap();
    let named = BuildJob { digest: Digest::from_sha256(job.hash), size_bytes: Some(job.size), tasks: 1 };
    let record = BuildRecord::enqueued(Build { job: Some(named), ..accepted.build });
    let written = context.bus.transition(&record, Sequence(0), Duration::from_secs(10)).await.unwrap();
    assert!(matches!(written, Written::Won(_)), "{written:?}");
}

/// Whether a blob is kept for requests or records.
fn is_kept(context: &Context, blob: &BlobDigest) -> bool {
    kept_until(context, blob).is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_requests_and_records_name_is_kept_also_after_the_event_stream_was_created_again() {
    let servers = Servers::start().await;
    servers.create_streams().await;
    let data = servers.folder().join("data");
    // Streams are read several times per second.
    let often = || Settings { cas_keep_seconds: 1, cas_keep_min_seconds: 1, ..Settings::default() };
    let first = context_with(&servers, &data, often()).await;
    let cas = writer(&first).await;
    let running = run(&first);
    let waiting = job(&cas, "waiting").await;
    publish(&first, &waiting).await;
    until("what a waiting request names is kept", || is_kept(&first, &waiting)).await;
    for content in ["1", "2", "3"] {
        let queued = job(&cas, content).await;
        write(&first, &queued).await;
        until("what a record names is kept", || is_kept(&first, &queued)).await;
    }
    first.bus.jetstream().delete_stream(stream::EVENTS).await.unwrap();
    servers.create_streams().await;
    let second = context_with(&servers, &data, often()).await;
    let later = job(&cas, "later").await;
    write(&second, &later).await;
    until("what a record of the new stream names is kept", || is_kept(&second, &later)).await;
    first.stop.cancel();
    running.await.unwrap().unwrap();
}

/// Until which day a blob is kept, counted from 1970-01-01.
fn kept_until(context: &Context, blob: &BlobDigest) -> Option<u64> {
    let hex = blob.hex();
    let name = format!("cas/sha256/{}/{hex}-{}", &hex[..2], blob.size);
    let days = fs::read_dir(context.data_folder("cas").unwrap().join("kept")).into_iter().flatten();
    let days = days.flatten().filter(|day| day.path().join(&name).exists());
    days.filter_map(|day| day.file_name().to_str()?.parse().ok()).max()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_records_name_is_kept_as_long_as_an_archive_keeps_its_rows() {
    let servers = Servers::start().await;
    servers.create_streams().await;
    let data = servers.folder().join("data");
    let settings = Settings { cas_keep_seconds: 1, cas_keep_min_seconds: 1, ..Settings::default() };
    let context = context_with(&servers, &data, settings).await;
    let cas = writer(&context).await;
    let running = run(&context);
    let named = job(&cas, "named").await;
    write(&context, &named).await;
    let today = context.bus.now().0 / 86_400_000;
    let kept_for = |days: u64| {
        let kept = kept_until(&context, &named).map(|until| until - today);
        kept.is_some_and(|kept| (days..=days + 2).contains(&kept))
    };
    until("without an archive it is kept for 30 days", || kept_for(30)).await;
    // Also what was named before the archive started.
    let archived = bus::ArchivedBlobs { seconds: 400 * 86_400 };
    context.bus.buckets().put(&(), Some(&archived)).await.unwrap();
    until("with an archive it is kept as long as the rows", || kept_for(400)).await;
    let shorter = bus::ArchivedBlobs { seconds: 300 * 86_400 };
    context.bus.buckets().put(&(), Some(&shorter)).await.unwrap();
    until("after the retention of rows became shorter it is kept as long", || kept_for(300)).await;
    context.stop.cancel();
    running.await.unwrap().unwrap();
}
