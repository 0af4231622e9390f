//! `ByteStream`: resumed, refused and parallel uploads, and the limits of their memory and disk space.

use std::sync::Arc;

use crate::common::{Blake3, Options, Server, Sha256, noise, pieces};
use bytes::Bytes;
use cas_grpc::Limits;
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    execution::{RequestMetadata, ToolDetails},
    metadata::REQUEST_METADATA,
    stream::WriteRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, metadata::MetadataValue};

fn upload(digest: &BlobDigest) -> String {
    format!("main/uploads/6f1c/blobs/{digest}")
}

fn upload_zstd(digest: &BlobDigest) -> String {
    format!("main/uploads/6f1c/compressed-blobs/zstd/{digest}")
}

fn packed(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 3).unwrap()
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(packed).unwrap()
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code()
}

#[tokio::test]
async fn instances_share_their_blobs() {
    let server = Server::start().await;
    let content = noise(100_000, 1);
    for function in [Sha256, Blake3] {
        let digest = server.put_as(&content, function).await;
        for instance in ["", "main/", "a/b/c/"] {
            let plain = server.read(&format!("{instance}blobs/{digest}"), 0, 0).await.unwrap();
            assert!(plain == content);
            let zstd = format!("{instance}compressed-blobs/zstd/{digest}");
            assert!(unpacked(&server.read(&zstd, 0, 0).await.unwrap()) == content);
        }
    }
}

#[tokio::test]
async fn the_first_and_last_request_of_a_write_may_have_no_data() {
    let server = Server::start().await;
    let content = noise(200_000, 4);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    let mut requests = vec![WriteRequest { resource_name: name.clone(), ..Default::default() }];
    for piece in pieces(&name, &content, 50_000, 0, false) {
        let offset = piece.write_offset;
        requests.push(WriteRequest { write_offset: offset, ..Default::default() });
        requests.push(piece);
    }
    requests.push(WriteRequest { write_offset: 200_000, finish_write: true, ..Default::default() });
    assert_eq!(server.send(requests).await.unwrap().committed_size, 200_000);
    assert!(server.has(&digest).await);
}

#[tokio::test]
async fn one_upload_is_written_by_many_at_once_in_mixed_encodings() {
    let server = Arc::new(Server::start().await);
    let content = noise(3_000_000, 5);
    let digest = Sha256.digest(&content);
    let packed = packed(&content);
    let writes = (0..8).map(|index| {
        let (server, content, packed) = (Arc::clone(&server), content.clone(), packed.clone());
        async move {
            match index % 2 {
                0 => server.write(&upload(&digest), &content, 100_000).await,
                _ => server.write(&upload_zstd(&digest), &packed, 100_000).await,
            }
        }
    });
    for committed in futures::future::join_all(writes).await {
        committed.unwrap();
    }
    assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
}

#[tokio::test]
async fn g10_a_refused_write_leaves_nothing() {
    let server = Server::start().await;
    for length in [100, 300_000] {
        let content = noise(length, 7);
        let digest = Sha256.digest(&content);
        let mut other = content.clone();
        other[length / 2] ^= 1;
        assert_eq!(code(server.write(&upload(&digest), &other, 50_000).await), Code::InvalidArgument);
        let shorter = &content[..length - 1];
        assert_eq!(code(server.write(&upload(&digest), shorter, 50_000).await), Code::InvalidArgument);
        let longer = [content.clone(), vec![0; 1 << 20]].concat();
        assert_eq!(code(server.write(&upload(&digest), &longer, 50_000).await), Code::InvalidArgument);
        for bad in [packed(&other), packed(&longer), packed(shorter), b"garbage".to_vec()] {
            assert_eq!(code(server.write(&upload_zstd(&digest), &bad, 50_000).await), Code::InvalidArgument);
        }
        let cut = &packed(&content)[..20];
        assert_eq!(code(server.write(&upload_zstd(&digest), cut, 50_000).await), Code::InvalidArgument);
        assert!(!server.has(&digest).await);
        assert_eq!(server.query(&upload(&digest)).await.unwrap().committed_size, 0);
        // The blob can be written immediately after all that.
        server.write(&upload(&digest), &content, 50_000).await.unwrap();
    }
}

#[tokio::test]
async fn g10_a_decompression_bomb_is_stopped_at_the_size_of_its_digest() {
    let server = Server::start().await;
    let bomb = packed(&vec![0; 512 << 20]);
    let digest = BlobDigest { size: 100_000, ..Sha256.digest(b"bomb") };
    assert_eq!(code(server.write(&upload_zstd(&digest), &bomb, 10_000).await), Code::InvalidArgument);
    assert_eq!(walk(&server.folder.path().join("cas/cas")), 0, "nothing is stored");
}

#[tokio::test]
async fn a_write_of_all_bytes_without_finish_write_is_refused() {
    let server = Server::start().await;
    let content = noise(300_000, 8);
    let digest = Sha256.digest(&content);
    let all = server.send(pieces(&upload(&digest), &content, 50_000, 0, false)).await;
    assert_eq!(code(all), Code::InvalidArgument);
    assert!(!server.has(&digest).await);
    assert_eq!(code(server.send(vec![]).await), Code::InvalidArgument);
}

#[tokio::test]
async fn an_upload_is_resumed_where_it_broke_off() {
    let server = Server::start().await;
    let content = noise(3_000_000, 9);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    assert_eq!(server.query(&name).await.unwrap().committed_size, 0);
    server.send(pieces(&name, &content[..1_200_000], 100_000, 0, false)).await.unwrap();
    let status = server.query(&name).await.unwrap();
    assert_eq!((status.committed_size, status.complete), (1_200_000, false));
    // Gaps, overlaps and other names are refused.
    for offset in [1_199_999, 1_200_001, -1] {
        let requests = pieces(&name, b"more", 100, offset, false);
        assert_eq!(code(server.send(requests).await), Code::InvalidArgument, "{offset}");
    }
    let elsewhere = format!("a/b/c/uploads/6f1c/blobs/{digest}");
    let requests = pieces(&elsewhere, &content[1_200_000..], 100_000, 1_200_000, true);
    assert_eq!(code(server.send(requests).await), Code::InvalidArgument);
    let requests = pieces(&name, &content[1_200_000..], 100_000, 1_200_000, true);
    assert_eq!(server.send(requests).await.unwrap().committed_size, 3_000_000);
    let status = server.query(&name).await.unwrap();
    assert_eq!((status.committed_size, status.complete), (3_000_000, true));
    assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
}

#[tokio::test]
async fn a_compressed_upload_is_resumed_at_an_uncompressed_offset() {
    let server = Server::start().await;
    let content = noise(3_000_000, 10);
    let digest = Sha256.digest(&content);
    let name = upload_zstd(&digest);
    let first = packed(&content[..1_000_000]);
    server.send(pieces(&name, &first, 10_000, 0, false)).await.unwrap();
    assert_eq!(server.query(&name).await.unwrap().committed_size, 1_000_000);
    let rest = packed(&content[1_000_000..]);
    let committed = server.send(pieces(&name, &rest, 10_000, 1_000_000, true)).await.unwrap();
    assert_eq!(committed.committed_size, i64::try_from(rest.len()).unwrap());
    assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing_visible_and_comes_back() {
    let server = Server::start().await;
    let content = noise(4_000_000, 12);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    let (sender, receiver) = mpsc::channel(4);
    let mut client = reapi::stream::ByteStreamClient::new(server.connect().await);
    let call = tokio::spawn(async move { client.write(ReceiverStream::new(receiver)).await });
    for piece in pieces(&name, &content[..2_000_000], 100_000, 0, false) {
        sender.send(piece).await.unwrap();
    }
    while server.query(&name).await.unwrap().committed_size < 2_000_000 {
        tokio::task::yield_now().await;
    }
    // While it is being written, another stream takes it over.
    let requests = pieces(&name, &content[2_000_000..3_000_000], 100_000, 2_000_000, false);
    assert_eq!(server.send(requests).await.unwrap().committed_size, 3_000_000);
    assert_eq!(code(call.await.unwrap()), Code::Aborted);
    drop(sender);
    // The same with a stream whose connection ends with the call.
    let (sender, receiver) = mpsc::channel(4);
    let mut client = reapi::stream::ByteStreamClient::new(server.connect().await);
    let call = tokio::spawn(async move { client.write(ReceiverStream::new(receiver)).await });
    for piece in pieces(&name, &content[3_000_000..3_500_000], 100_000, 3_000_000, false) {
        sender.send(piece).await.unwrap();
    }
    while server.query(&name).await.unwrap().committed_size < 3_500_000 {
        tokio::task::yield_now().await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(!server.has(&digest).await);
    let requests = pieces(&name, &content[3_500_000..], 100_000, 3_500_000, true);
    assert_eq!(server.send(requests).await.unwrap().committed_size, 4_000_000);
    assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
}

#[tokio::test]
async fn broken_uploads_are_kept_within_bounds() {
    let limits = Limits {
        broken_uploads: 2,
        broken_upload_keep: std::time::Duration::from_millis(300),
        ..Limits::default()
    };
    let server = Server::with(Options { limits, ..Options::default() }).await;
    let contents: Vec<_> = (0..3).map(|seed| noise(200_000, 20 + seed)).collect();
    let names: Vec<_> = contents.iter().map(|content| upload(&Sha256.digest(content))).collect();
    for (name, content) in names.iter().zip(&contents) {
        server.send(pieces(name, &content[..100_000], 50_000, 0, false)).await.unwrap();
    }
    // The first was dropped to make space for the third; the others expire.
    assert_eq!(server.query(&names[0]).await.unwrap().committed_size, 0);
    assert_eq!(server.query(&names[2]).await.unwrap().committed_size, 100_000);
    while server.query(&names[2]).await.unwrap().committed_size > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let temporary = std::fs::read_dir(server.folder.path().join("cas/tmp")).unwrap().count();
    assert_eq!(temporary, 0);
}

#[tokio::test]
async fn a_write_of_a_present_blob_is_answered_at_its_first_request() {
    let server = Server::start().await;
    let content = noise(6_000_000, 13);
    let digest = server.put(&content).await;
    let first = pieces(&upload(&digest), &content[..10], 10, 0, false);
    assert_eq!(server.send(first).await.unwrap().committed_size, 6_000_000);
    for function in [Sha256, Blake3] {
        assert_eq!(server.write(&upload(&function.empty()), b"", 10).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn some_tools_count_uncompressed_bytes() {
    let server = Server::start().await;
    for (tool, uncompressed, seed) in [("siso", true, 30), ("bazel", false, 31)] {
        let content = noise(400_000, seed);
        let (digest, packed) = (Sha256.digest(&content), packed(&content));
        for present in [false, true] {
            let requests = pieces(&upload_zstd(&digest), &packed, 100_000, 0, true);
            let mut request = Request::new(stream::iter(requests).boxed());
            let tool_details = Some(ToolDetails { tool_name: tool.into(), tool_version: "1".into() });
            let said = RequestMetadata { tool_details, ..Default::default() };
            let value = MetadataValue::from_bytes(&said.encode_to_vec());
            request.metadata_mut().insert_bin(REQUEST_METADATA, value);
            let committed = server.send_as(request).await.unwrap().committed_size;
            let expected = match (uncompressed, present) {
                (true, _) => 400_000,
                (false, false) => i64::try_from(packed.len()).unwrap(),
                (false, true) => -1,
            };
            assert_eq!(committed, expected, "{tool} {present}");
        }
    }
}

#[tokio::test]
async fn names_that_cannot_be_written() {
    let server = Server::start().await;
    let digest = Sha256.digest(b"x");
    for bad in [
        format!("blobs/{digest}"),
        format!("uploads/u/compressed-blobs/deflate/{digest}"),
        format!("other/uploads/u/blobs/{digest}"),
        String::new(),
    ] {
        assert_eq!(code(server.write(&bad, b"x", 10).await), Code::InvalidArgument, "{bad:?}");
        assert_eq!(code(server.query(&bad).await), Code::InvalidArgument, "{bad:?}");
    }
}

#[tokio::test]
async fn a_full_store_refuses_writes_in_each_encoding() {
    let server = Server::start().await;
    let digest = Sha256.digest(b"x");
    server.cas.set_full(true);
    let full = server.write(&upload(&digest), b"x", 10).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(reapi::status::retry_delay(&reapi::status::rpc_status(&full)).is_some());
    assert_eq!(code(server.write(&upload_zstd(&digest), &packed(b"x"), 10).await), Code::ResourceExhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_uploads_share_one_connection_and_its_windows() {
    let server = Arc::new(Server::start().await);
    let content = Bytes::from(noise(2_500_000, 16));
    let writes = (0..160_u32).map(|index| {
        let (server, content) = (Arc::clone(&server), content.clone());
        async move {
            let own = [&index.to_be_bytes()[..], &content].concat();
            let digest = Sha256.digest(&own);
            match index % 4 {
                0 => server.write(&upload_zstd(&digest), &packed(&own), 300_000).await,
                _ => server.write(&upload(&digest), &own, 300_000).await,
            }
        }
    });
    for committed in futures::future::join_all(writes).await {
        committed.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_partial_uploads_are_reaped_by_idle_time() {
    const BEGUN: u64 = 500;
    let patience = std::time::Duration::from_millis(500);
    let limits = Limits {
        broken_uploads: 1000,
        broken_upload_keep: patience,
        pause_max: patience,
        ..Limits::default()
    };
    let options = Options { limits, in_flight_bytes: Some(8 << 20), ..Options::default() };
    let server = Server::with(options).await;
    let files = || std::fs::read_dir(server.folder.path().join("cas/tmp")).unwrap().count();
    let name = |n: u64| upload(&BlobDigest { size: 1 << 20, ..Sha256.digest(&n.to_le_bytes()) });
    // Half of them end their streams, the others leave them open and send nothing more.
    let mut open = Vec::new();
    for n in 0..BEGUN {
        let part = pieces(&name(n), &vec![7; 20_000], 20_000, 0, false);
        if n % 2 == 0 {
            server.send(part).await.unwrap();
            continue;
        }
        let mut client = reapi::stream::ByteStreamClient::new(server.shared());
        let part = stream::iter(part).chain(stream::pending());
        open.push(tokio::spawn(async move { client.write(part).await }));
    }
    assert!(files() > 0, "parts are on the disk");
    for call in open {
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    // What they sent may be resumed for a while; then nothing is left of it, on the disk or in memory.
    let begun = std::time::Instant::now();
    while files() > 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{} files are left", files());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for n in [0, 1, BEGUN - 1] {
        assert_eq!(server.query(&name(n)).await.unwrap().committed_size, 0);
    }
    let content = noise(8 << 20, 40);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    let whole = server.write(&name, &content, 1 << 20);
    let whole = tokio::time::timeout(std::time::Duration::from_secs(20), whole);
    whole.await.expect("the memory of uploads is free again").unwrap();
}

#[tokio::test]
async fn g9_reads_beyond_a_blob_and_hostile_names_are_refused() {
    let server = Server::start().await;
    let digest = server.put(&noise(1000, 50)).await;
    let name = format!("main/blobs/{digest}");
    for (offset, limit, expected) in [
        (-1, 0, Code::OutOfRange),
        (i64::MIN, 0, Code::OutOfRange),
        (1001, 0, Code::OutOfRange),
        (i64::MAX, 0, Code::OutOfRange),
        (i64::MAX, i64::MAX, Code::OutOfRange),
        (0, -1, Code::InvalidArgument),
        (0, i64::MIN, Code::InvalidArgument),
    ] {
        assert_eq!(code(server.read(&name, offset, limit).await), expected, "{offset} {limit}");
    }
    // A limit may be beyond the end.
    assert_eq!(server.read(&name, 1, i64::MAX).await.unwrap().len(), 999);
    assert_eq!(server.read(&name, 1000, 1).await.unwrap().len(), 0);
    let (hex, size) = (digest.hex(), digest.size);
    for hostile in [
        format!("main/blobs/../{hex}/{size}"),
        format!("../blobs/{hex}/{size}"),
        format!("main/%2e%2e/blobs/{hex}/{size}"),
        format!("main/blobs/%2e%2e%2f{hex}/{size}"),
        format!("main/blobs/{hex}\0/{size}"),
        format!("main\0/blobs/{hex}/{size}"),
        format!("main/blobs/{hex}/{size}\0"),
        format!("main/blobs/{hex}/-{size}"),
        format!("main/blobs/{hex}/+{size}"),
        format!("main/blobs/{hex}/99999999999999999999999"),
        format!("main/blobs/{hex}/0x3e8"),
        format!("main/blobs/{hex}//{size}"),
        format!("{}/blobs/{hex}/{size}", "a".repeat(10_000)),
        format!("main/blobs/{}/{size}", "a".repeat(10_000)),
        format!("main/blobs//etc/passwd/{size}"),
    ] {
        assert_eq!(code(server.read(&hostile, 0, 0).await), Code::InvalidArgument, "{hostile:?}");
        let write = hostile.replacen("/blobs/", "/uploads/6f1c/blobs/", 1);
        if !hostile.ends_with('\0') {
            assert_eq!(code(server.write(&write, b"x", 10).await), Code::InvalidArgument, "{write:?}");
        }
    }
}

#[tokio::test]
async fn g10_digests_that_are_not_spelt_as_they_must_be_are_refused() {
    let server = Server::start().await;
    let content = noise(1000, 51);
    let digest = Sha256.digest(&content);
    let hex = digest.hex();
    for (hash, size) in [
        (hex.to_uppercase(), 1000),
        (hex[..63].to_owned(), 1000),
        (format!("{hex}0"), 1000),
        (format!("{}g", &hex[..63]), 1000),
        (String::new(), 1000),
        (hex.clone(), 999),
        (hex.clone(), 1001),
        (hex.clone(), 0),
    ] {
        for encoding in ["blobs", "compressed-blobs/zstd"] {
            let sent = if encoding == "blobs" { content.clone() } else { packed(&content) };
            let name = format!("main/uploads/6f1c/{encoding}/{hash}/{size}");
            assert_eq!(code(server.write(&name, &sent, 400).await), Code::InvalidArgument, "{name}");
        }
    }
    assert!(!server.has(&digest).await);
    let stored = walk(&server.folder.path().join("cas/cas"));
    assert_eq!(stored, 0, "nothing is stored");
}

/// The number of files below a folder.
fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}
