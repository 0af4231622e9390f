//! The archive while its disk is full, its store is away, or its file is gone.

use std::time::Duration;

use archive_store::Store;
use bus::{BazelEvents, EventContent, EventOwner};
use farm::{Farm, Port, SOON, ServiceProcess, SmallDisk};
use model::{BlobDigest, Priority, ToolInvocationsRequest};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

use crate::archive::{caught_up, start, until_async};

/// Number of lines in the log of a service that contain `text`.
fn lines(service: &ServiceProcess, text: &str) -> usize {
    service.log_text().lines().filter(|line| line.contains(text)).count()
}

async fn logged(service: &ServiceProcess, text: &str) {
    until_async(text, Duration::from_secs(30), async || lines(service, text) > 0).await;
}

async fn build(farm: &Farm) {
    let key = farm.create("core", Priority::Batch, &["echo", "hello"]).await;
    farm.wait_finished(&key, SOON).await;
}

#[tokio::test]
async fn a_full_disk_is_logged_once_and_so_is_its_end() {
    let Some(disk) = SmallDisk::mount(12) else { return };
    let farm = Farm::all().await;
    let path = disk.path().join("archive.db");
    let archive = start(&farm, path.to_str().unwrap()).await;
    build(&farm).await;
    let store = Store::new(path.to_str().unwrap(), &farm.data()).unwrap();
    caught_up(&farm, &store).await;
    let fill = disk.fill();
    build(&farm).await;
    logged(&archive, "cannot write the archive").await;
    // Takes longer than several tries.
    for _ in 0..10 {
        build(&farm).await;
    }
    assert_eq!(lines(&archive, "written again"), 0, "{}", archive.log_text());
    std::fs::remove_file(fill).unwrap();
    logged(&archive, "written again").await;
    caught_up(&farm, &store).await;
    let counts =
        ["cannot write the archive", "written again", " archiving"].map(|text| lines(&archive, text));
    assert_eq!(counts, [1, 1, 4], "{}", archive.log_text());
}

/// Publishes a call of Bazel whose events are in a blob.
async fn publish_call(farm: &Farm, name: &str, blob: BlobDigest) {
    let content = EventContent::Blob(blob);
    let events = BazelEvents { tool: name.parse().unwrap(), first: 1, last: 2, complete: true, content };
    let owner = EventOwner::Outside("core".parse().unwrap());
    farm.bus().write_bazel_events(&owner, &events, SOON).await.unwrap();
}

/// Passes connections on `port` to the server at `url`.
async fn forward(port: u16, url: String) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    while let Ok((mut client, _)) = listener.accept().await {
        let mut server = TcpStream::connect(url.trim_start_matches("grpc://")).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    }
}

#[tokio::test]
async fn events_in_blobs_wait_for_the_store_and_others_do_not() {
    let farm = Farm::builder().with_actions().start().await;
    // Two empty events, packed.
    let file = farm.folder().join("events");
    std::fs::write(&file, [0, 0]).unwrap();
    let put = farm.cli(&["cas", "--grpc", &farm.grpc_url(), "put", file.to_str().unwrap()]).await;
    assert_eq!(put.code, 0, "{}", put.stderr);
    let blob: BlobDigest = put.stdout.split_whitespace().next().unwrap().parse().unwrap();

    let (data, port) = (TempDir::new().unwrap(), Port::reserve());
    let path = data.path().join("archive.db");
    let env = [
        ("FOREBAY_DATA", data.path().to_str().unwrap()),
        ("FOREBAY_ARCHIVE_URL", path.to_str().unwrap()),
        ("FOREBAY_CAS_URL", &format!("grpc://127.0.0.1:{}", port.number())),
    ];
    let archive = farm.spawn_with_env("archive", &env).await;
    publish_call(&farm, "stored", blob).await;
    build(&farm).await;
    let store = Store::new(path.to_str().unwrap(), data.path()).unwrap();
    caught_up(&farm, &store).await;
    logged(&archive, "the store is away").await;
    let status = store.status().await.unwrap();
    assert_eq!((status.streams[bus::stream::BAZEL].position.0, status.set_aside.len()), (0, 0));

    let forwarding = tokio::spawn(forward(port.number(), farm.grpc_url()));
    let calls = async || store.tool_invocations(&ToolInvocationsRequest::default()).await.unwrap();
    until_async("the call is archived", Duration::from_secs(30), async || {
        calls().await.tool_invocations.first().is_some_and(|call| call.id.as_str() == "stored")
    })
    .await;
    publish_call(&farm, "missing", format!("{}/9", "a".repeat(64)).parse().unwrap()).await;
    until_async("a missing blob is named", SOON, async || {
        let status = store.status().await.unwrap();
        status.set_aside.first().is_some_and(|message| message.reason.contains("does not have"))
    })
    .await;
    assert_eq!(["the store is away", "the store answers again"].map(|text| lines(&archive, text)), [1, 1]);
    forwarding.abort();
}

#[tokio::test]
async fn an_archive_whose_file_is_removed_is_rebuilt_from_the_streams() {
    let farm = Farm::all().await;
    let archive = start(&farm, "archive/gone.db").await;
    let store = Store::new("archive/gone.db", &farm.data()).unwrap();
    build(&farm).await;
    caught_up(&farm, &store).await;
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(farm.data().join(format!("archive/gone.db{end}"))).unwrap();
    }
    build(&farm).await;
    caught_up(&farm, &store).await;
    let all = model::ArchivedBuildsRequest { group: None, list: model::ListRequest::default() };
    assert_eq!(store.builds(&all).await.unwrap().builds.len(), 2);
    assert_eq!(lines(&archive, "was removed or replaced"), 1, "{}", archive.log_text());
}
