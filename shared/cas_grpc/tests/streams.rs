//! `ByteStream` (statements 22 to 45).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use cas_grpc::Limits;
use common::{Blake3, Options, Server, Sha256, noise, pieces};
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    execution::{RequestMetadata, ToolDetails},
    metadata::{REQUEST_METADATA, RESOURCE_NAME},
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
async fn s22_s23_s24_s25_names_to_read() {
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
        for bad in ["compressed-blobs/identity", "compressed-blobs/deflate", "compressed-blobs/x", "nothing"]
        {
            assert_eq!(code(server.read(&format!("{bad}/{digest}"), 0, 0).await), Code::InvalidArgument);
        }
        let other = format!("other/blobs/{digest}");
        assert_eq!(code(server.read(&other, 0, 0).await), Code::InvalidArgument);
    }
    let absent = Sha256.digest(b"absent");
    assert_eq!(code(server.read(&format!("blobs/{absent}"), 0, 0).await), Code::NotFound);
    // The right hash with the wrong size (12), and a bogus empty blob.
    let digest = Sha256.digest(&content);
    for size in [0, 99_999, 100_001] {
        let wrong = BlobDigest { size, ..digest };
        assert_eq!(code(server.read(&format!("blobs/{wrong}"), 0, 0).await), Code::NotFound, "{size}");
        assert!(!server.has(&wrong).await);
    }
}

#[tokio::test]
async fn s26_s27_offsets_and_limits() {
    let server = Server::start().await;
    for length in [1000, 3 << 20] {
        let content = noise(length, 2);
        let name = format!("blobs/{}", server.put(&content).await);
        let end = i64::try_from(length).unwrap();
        for (offset, limit) in
            [(0, 0), (0, 1), (1, 0), (17, 300), (end - 1, 0), (end - 1, 5), (end, 0), (0, end)]
        {
            let from = usize::try_from(offset).unwrap();
            let count = if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap() };
            let expected = &content[from..from.saturating_add(count).min(length)];
            assert!(server.read(&name, offset, limit).await.unwrap() == expected, "{offset} {limit}");
        }
        assert_eq!(code(server.read(&name, end + 1, 0).await), Code::OutOfRange);
        assert_eq!(code(server.read(&name, -1, 0).await), Code::OutOfRange);
        assert_eq!(code(server.read(&name, 0, -1).await), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn s28_s29_s30_compressed_reads_count_in_uncompressed_bytes() {
    let server = Server::start().await;
    let content = noise(2_000_000, 3);
    let name = format!("compressed-blobs/zstd/{}", server.put(&content).await);
    for offset in [0_u32, 1, 1_000_000, 1_999_999, 2_000_000] {
        let read = server.read(&name, offset.into(), 0).await.unwrap();
        assert!(unpacked(&read) == content[offset as usize..], "{offset}");
    }
    assert_eq!(code(server.read(&name, 0, 7).await), Code::InvalidArgument);
    assert_eq!(code(server.read(&name, 2_000_001, 0).await), Code::OutOfRange);
}

#[tokio::test]
async fn s31_s32_s45_writes_of_all_kinds() {
    let server = Server::start().await;
    let mut seed = 10;
    for length in [1, 1000, 70_000, 1_500_000, 5 << 20] {
        for piece in [777, 65_536, 3 << 20] {
            if length / piece > 2000 {
                continue;
            }
            for (function, tail) in [(Sha256, ""), (Blake3, "/some/meta/data")] {
                seed += 1;
                let content = noise(length, seed);
                let digest = function.digest(&content);
                let committed = server.write(&format!("{}{tail}", upload(&digest)), &content, piece).await;
                assert_eq!(committed.unwrap(), i64::try_from(length).unwrap());
                assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
                seed += 1;
                let content = noise(length, seed);
                let (digest, packed) = (function.digest(&content), packed(&content));
                let committed =
                    server.write(&format!("{}{tail}", upload_zstd(&digest)), &packed, piece).await;
                assert_eq!(committed.unwrap(), i64::try_from(packed.len()).unwrap());
                assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
            }
        }
    }
}

#[tokio::test]
async fn s45_empty_pieces_and_a_last_request_without_data() {
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
async fn s33_one_blob_by_many_at_once_in_mixed_encodings() {
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
    // The same uuid for another blob.
    let other = noise(90_000, 6);
    server.write(&upload(&Sha256.digest(&other)), &other, 10_000).await.unwrap();
    assert!(server.read(&format!("blobs/{digest}"), 0, 0).await.unwrap() == content);
}

#[tokio::test]
async fn s34_s35_what_does_not_match_is_refused_and_not_seen() {
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
async fn s35_a_bomb_is_stopped_at_the_size_that_was_said() {
    let server = Server::start().await;
    let bomb = packed(&vec![0; 512 << 20]);
    let digest = BlobDigest { size: 100_000, ..Sha256.digest(b"bomb") };
    assert_eq!(code(server.write(&upload_zstd(&digest), &bomb, 10_000).await), Code::InvalidArgument);
}

#[tokio::test]
async fn s36_without_finish_write_nothing_is_stored() {
    let server = Server::start().await;
    let content = noise(300_000, 8);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    let partial = server.send(pieces(&name, &content[..200_000], 50_000, 0, false)).await.unwrap();
    assert_eq!(partial.committed_size, 200_000);
    assert!(!server.has(&digest).await);
    let all = server.send(pieces(&name, &content, 50_000, 0, false)).await;
    assert_eq!(code(all), Code::InvalidArgument);
    assert!(!server.has(&digest).await);
    assert_eq!(code(server.send(vec![]).await), Code::InvalidArgument);
}

#[tokio::test]
async fn s37_s42_an_upload_is_resumed_where_it_broke_off() {
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
async fn s37_a_compressed_upload_is_resumed_at_an_uncompressed_offset() {
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
async fn s37_offsets_within_a_stream_follow_each_other() {
    let server = Server::start().await;
    let content = noise(200_000, 11);
    let digest = Sha256.digest(&content);
    for wrong in [0, 99_999, 100_001] {
        let mut requests = pieces(&upload(&digest), &content, 100_000, 0, true);
        requests[1].write_offset = wrong;
        assert_eq!(code(server.send(requests).await), Code::InvalidArgument);
    }
    assert!(!server.has(&digest).await);
}

#[tokio::test]
async fn s42_a_client_that_vanishes_leaves_nothing_visible_and_comes_back() {
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
async fn s38_s39_what_is_there_is_answered_at_once() {
    let server = Server::start().await;
    let content = noise(6_000_000, 13);
    let digest = server.put(&content).await;
    for piece in [65_536, 3_000_000] {
        assert_eq!(server.write(&upload(&digest), &content, piece).await.unwrap(), 6_000_000);
        assert_eq!(server.write(&upload_zstd(&digest), &packed(&content), piece).await.unwrap(), -1);
    }
    // Only the resource name, with nothing after it.
    let first = pieces(&upload(&digest), &content[..10], 10, 0, false);
    assert_eq!(server.send(first).await.unwrap().committed_size, 6_000_000);
    // The empty blob is always there (20).
    for function in [Sha256, Blake3] {
        let empty = function.empty();
        assert_eq!(server.write(&upload(&empty), b"", 10).await.unwrap(), 0);
        assert_eq!(server.read(&format!("blobs/{empty}"), 0, 0).await.unwrap(), b"");
        let zstd = server.read(&format!("compressed-blobs/zstd/{empty}"), 0, 0).await.unwrap();
        assert_eq!(unpacked(&zstd), b"");
    }
}

#[tokio::test]
async fn s40_some_tools_count_uncompressed() {
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
async fn s43_s44_names_that_disagree() {
    let server = Server::start().await;
    let content = noise(100_000, 14);
    let digest = Sha256.digest(&content);
    let name = upload(&digest);
    for (header, good) in [(name.clone(), true), (format!("{name}/x"), false)] {
        let requests = pieces(&name, &content, 10_000, 0, true);
        let mut request = Request::new(stream::iter(requests).boxed());
        request.metadata_mut().insert(RESOURCE_NAME, header.parse().unwrap());
        assert_eq!(server.send_as(request).await.is_ok(), good);
    }
    let other = noise(100_000, 15);
    let mut requests = pieces(&upload(&Sha256.digest(&other)), &other, 10_000, 0, true);
    requests[3].resource_name = name;
    assert_eq!(code(server.send(requests).await), Code::InvalidArgument);
    let mut requests = pieces(&upload(&Sha256.digest(&other)), &other, 10_000, 0, true);
    let again = requests[0].resource_name.clone();
    requests[3].resource_name = again;
    server.send(requests).await.unwrap();
}

#[tokio::test]
async fn s10_s31_what_cannot_be_written() {
    let server = Server::with(Options { blob_bytes_max: Some(1 << 20), ..Options::default() }).await;
    let digest = BlobDigest { size: (1 << 20) + 1, ..Sha256.digest(b"large") };
    assert_eq!(code(server.write(&upload(&digest), b"begin", 10).await), Code::InvalidArgument);
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
