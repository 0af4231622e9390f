//! Capabilities, whole blobs, trees and chunks (statements 1 to 21 and 46 to 73).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

mod common;

use std::sync::Arc;

use common::{Blake3, Options, READ_ONLY, Server, Sha256, noise};
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    canonical, digest,
    execution::{
        self, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest, Directory,
        DirectoryNode, FindMissingBlobsRequest, GetCapabilitiesRequest, GetChunkMappingRequest,
        GetTreeRequest, GetTreeResponse, RegisterChunkMappingRequest, SpliceBlobRequest, SplitBlobRequest,
        batch_update_blobs_request, compressor, digest_function,
    },
    instance::RESERVED,
};
use tonic::{Code, Status};

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code()
}

fn update(digest: &BlobDigest, data: &[u8], compressor: i32) -> batch_update_blobs_request::Request {
    batch_update_blobs_request::Request {
        digest: Some(digest::to_proto(digest)),
        data: data.into(),
        compressor,
    }
}

fn codes(response: &execution::BatchUpdateBlobsResponse) -> Vec<Code> {
    response.responses.iter().map(|one| Code::from_i32(one.status.as_ref().unwrap().code)).collect()
}

async fn batch(
    server: &Server,
    requests: Vec<batch_update_blobs_request::Request>,
) -> Result<Vec<Code>, Status> {
    let request = BatchUpdateBlobsRequest { requests, ..Default::default() };
    Ok(codes(server.blobs().batch_update_blobs(request).await?.get_ref()))
}

async fn read(
    server: &Server,
    digests: &[BlobDigest],
    compressors: &[compressor::Value],
) -> Result<BatchReadBlobsResponse, Status> {
    let request = BatchReadBlobsRequest {
        digests: digests.iter().map(digest::to_proto).collect(),
        acceptable_compressors: compressors.iter().map(|value| (*value).into()).collect(),
        digest_function: digests.first().map_or(0, |first| digest::value(first.function).into()),
        ..Default::default()
    };
    server.blobs().batch_read_blobs(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn s1_to_s11_capabilities() {
    for executes in [false, true] {
        let server = Server::with(Options { executes, ..Options::default() }).await;
        for (name, update_enabled) in [("", true), ("a/b/c", true), (READ_ONLY, false)] {
            let request = GetCapabilitiesRequest { instance_name: name.into() };
            let said = server.capabilities().get_capabilities(request).await.unwrap().into_inner();
            let cache = said.cache_capabilities.unwrap();
            assert_eq!(cache.action_cache_update_capabilities.unwrap().update_enabled, update_enabled);
            assert_eq!(cache.digest_functions, [1, 9]);
            assert_eq!(cache.supported_compressors, [1]);
            assert!(cache.max_batch_total_size_bytes > 3 << 20 && cache.max_batch_total_size_bytes < 4 << 20);
            assert!(cache.split_blob_support && cache.splice_blob_support);
            assert_eq!(cache.fast_cdc_2020_params.unwrap().avg_chunk_size_bytes, 512 << 10);
            assert_eq!(said.execution_capabilities.is_some(), executes);
            if let Some(execution) = said.execution_capabilities {
                assert!(execution.exec_enabled);
                assert!(execution.digest_functions.contains(&execution.digest_function));
                let range = execution.execution_priority_capabilities.unwrap().priorities[0];
                assert!(range.min_priority < 0 && range.max_priority > 0);
                assert_eq!(execution.supported_node_properties, ["mtime", "unix_mode"]);
            }
            let (low, high) = (said.low_api_version.unwrap(), said.high_api_version.unwrap());
            assert_eq!((low.major, low.minor, high.major, high.minor), (2, 0, 2, 11));
        }
    }
}

#[tokio::test]
async fn s16_s17_instance_names() {
    let server = Server::start().await;
    let digest = server.put(b"content").await;
    let bad = RESERVED.iter().map(|word| format!("a/{word}")).chain(["other".into(), "a//b".into()]);
    for name in bad {
        let request = GetCapabilitiesRequest { instance_name: name.clone() };
        assert_eq!(code(server.capabilities().get_capabilities(request).await), Code::InvalidArgument);
        let request = FindMissingBlobsRequest {
            instance_name: name.clone(),
            blob_digests: vec![digest::to_proto(&digest)],
            ..Default::default()
        };
        assert_eq!(code(server.blobs().find_missing_blobs(request).await), Code::InvalidArgument);
        let request = BatchReadBlobsRequest { instance_name: name.clone(), ..Default::default() };
        assert_eq!(code(server.blobs().batch_read_blobs(request).await), Code::InvalidArgument);
        let request = BatchUpdateBlobsRequest { instance_name: name.clone(), ..Default::default() };
        assert_eq!(code(server.blobs().batch_update_blobs(request).await), Code::InvalidArgument);
        let root_digest = Some(digest::to_proto(&digest));
        let request = GetTreeRequest { instance_name: name.clone(), root_digest, ..Default::default() };
        assert_eq!(code(server.blobs().get_tree(request).await), Code::InvalidArgument);
        let blob_digest = Some(digest::to_proto(&digest));
        let request = SplitBlobRequest { instance_name: name, blob_digest, ..Default::default() };
        assert_eq!(code(server.blobs().split_blob(request).await), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn s12_to_s15_digests() {
    let server = Server::start().await;
    let good = digest::to_proto(&server.put(b"content").await);
    let with = |hash: &str, size_bytes| execution::Digest { hash: hash.into(), size_bytes };
    let hash = good.hash.as_str();
    let bad = [
        with(&hash.to_uppercase(), 7),
        with(&hash[1..], 7),
        with(&hash.replace('0', "g").replace('a', "h"), 7),
        with("", 7),
        with(hash, -1),
        // A hash as long as a SHA-1: mixed functions.
        with(&hash[..40], 7),
    ];
    for bad in bad {
        let request =
            FindMissingBlobsRequest { blob_digests: vec![good.clone(), bad.clone()], ..Default::default() };
        assert_eq!(code(server.blobs().find_missing_blobs(request).await), Code::InvalidArgument, "{bad:?}");
        let request =
            BatchReadBlobsRequest { digests: vec![good.clone(), bad.clone()], ..Default::default() };
        assert_eq!(code(server.blobs().batch_read_blobs(request).await), Code::InvalidArgument, "{bad:?}");
        let request = batch_update_blobs_request::Request { digest: Some(bad), ..Default::default() };
        assert_eq!(code(batch(&server, vec![request]).await), Code::InvalidArgument);
    }
    let sha1 = vec![with(&hash[..40], 7)];
    for function in [0, digest_function::Value::Sha1.into(), 99] {
        let request = FindMissingBlobsRequest {
            blob_digests: sha1.clone(),
            digest_function: function,
            ..Default::default()
        };
        assert_eq!(code(server.blobs().find_missing_blobs(request).await), Code::InvalidArgument);
    }
    // SHA-256 may be named or omitted, BLAKE3 must be named.
    let blake = server.put_as(b"by blake", Blake3).await;
    assert!(server.has(&blake).await);
    let request =
        FindMissingBlobsRequest { blob_digests: vec![digest::to_proto(&blake)], ..Default::default() };
    assert_eq!(
        server.blobs().find_missing_blobs(request).await.unwrap().get_ref().missing_blob_digests.len(),
        1
    );
}

#[tokio::test]
async fn s20_s46_s48_find_missing() {
    let server = Server::start().await;
    let here = server.put(b"here").await;
    let (one, two) = (Sha256.digest(b"one"), Sha256.digest(b"two"));
    let missing = server.missing(&[one, here, Sha256.empty(), two, one, here]).await;
    assert_eq!(missing, [digest::to_proto(&one), digest::to_proto(&two)]);
    assert_eq!(server.missing(&[Blake3.empty()]).await, []);
    // A size of 0 does not make it the empty blob.
    let bogus = BlobDigest { size: 0, ..one };
    assert_eq!(server.missing(&[bogus]).await, [digest::to_proto(&bogus)]);
    assert_eq!(server.read(&format!("blobs/{here}"), 0, 0).await.unwrap(), b"here");
}

#[tokio::test]
async fn s49_a_hundred_thousand_digests() {
    let server = Server::start().await;
    let mut digests: Vec<_> = (0..100_000_u32).map(|index| Sha256.digest(&index.to_be_bytes())).collect();
    digests.push(server.put(b"here").await);
    let missing = server.missing(&digests).await;
    assert_eq!(missing.len(), 100_000);
}

#[tokio::test]
async fn s50_s51_s52_s56_each_blob_of_a_batch_for_itself() {
    let server = Server::start().await;
    let blobs: Vec<_> = (0..8).map(|seed| noise(1000, 40 + seed)).collect();
    let digests: Vec<_> = blobs.iter().map(|blob| Sha256.digest(blob)).collect();
    let zstd = |blob: &[u8]| zstd::bulk::compress(blob, 3).unwrap();
    let requests = vec![
        update(&digests[0], &blobs[0], 0),
        update(&digests[1], &blobs[0], 0),
        update(&digests[2], &zstd(&blobs[2]), 1),
        update(&digests[3], &zstd(&blobs[2]), 1),
        update(&digests[4], b"garbage", 1),
        update(&digests[5], &blobs[5], 2),
        update(&digests[6], &blobs[6], 77),
        update(&BlobDigest { size: 999, ..digests[7] }, &blobs[7], 0),
        update(&digests[0], &blobs[0], 0),
        update(&Sha256.empty(), b"", 0),
    ];
    let bad = Code::InvalidArgument;
    let expected = [Code::Ok, bad, Code::Ok, bad, bad, bad, bad, bad, Code::Ok, Code::Ok];
    assert_eq!(batch(&server, requests).await.unwrap(), expected);
    let missing = server.missing(&digests).await;
    assert_eq!(missing.len(), 6, "all but the first and the third");
    server.cas.set_full(true);
    let requests = vec![update(&digests[1], &blobs[1], 0), update(&digests[0], &blobs[0], 0)];
    assert_eq!(batch(&server, requests).await.unwrap(), [Code::ResourceExhausted, Code::Ok]);
}

#[tokio::test]
async fn s9_s55_batches_that_are_too_large() {
    let server = Server::start().await;
    let large = noise(2 << 20, 50);
    let digest = Sha256.digest(&large);
    let twice = vec![update(&digest, &large, 0), update(&digest, &large, 0)];
    assert_eq!(code(batch(&server, twice).await), Code::InvalidArgument);
    let packed = zstd::bulk::compress(&large, 3).unwrap();
    let twice = vec![update(&digest, &packed, 1), update(&digest, &packed, 1)];
    assert_eq!(code(batch(&server, twice).await), Code::InvalidArgument);
    assert!(!server.has(&digest).await);
    assert_eq!(batch(&server, vec![update(&digest, &large, 0)]).await.unwrap(), [Code::Ok]);
    assert_eq!(code(read(&server, &[digest, digest], &[]).await), Code::InvalidArgument);
    assert_eq!(read(&server, &[digest], &[]).await.unwrap().responses[0].data, large);
}

#[tokio::test]
async fn s53_s54_s56_batch_reads() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let content = noise(10_000, 60);
        let (here, small) =
            (server.put_as(&content, function).await, server.put_as(b"small", function).await);
        let absent = function.digest(b"absent");
        let asked = [here, absent, small, function.empty(), here];
        let answer = read(&server, &asked, &[]).await.unwrap();
        let got: Vec<_> = answer.responses.iter().map(|one| one.status.as_ref().unwrap().code).collect();
        assert_eq!(got, [0, 5, 0, 0, 0]);
        assert!(answer.responses.iter().all(|one| one.compressor == 0));
        assert_eq!(answer.responses[0].data, content);
        assert_eq!(answer.responses[4].data, content);
        let answer = read(&server, &asked, &[compressor::Value::Zstd]).await.unwrap();
        assert_eq!(answer.responses[0].compressor, 1);
        assert_eq!(zstd::stream::decode_all(&*answer.responses[0].data).unwrap(), content);
        assert_eq!((answer.responses[2].compressor, &*answer.responses[2].data), (0, &b"small"[..]));
        let answer = read(&server, &asked, &[compressor::Value::Deflate]).await.unwrap();
        assert_eq!((answer.responses[0].compressor, &answer.responses[0].data), (0, &content));
    }
}

async fn tree(
    server: &Server,
    root: &BlobDigest,
    page_size: i32,
    token: &str,
) -> Result<Vec<GetTreeResponse>, Status> {
    let request = GetTreeRequest {
        root_digest: Some(digest::to_proto(root)),
        page_size,
        page_token: token.into(),
        digest_function: digest::value(root.function).into(),
        ..Default::default()
    };
    let mut pages = server.blobs().get_tree(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(page) = pages.message().await? {
        all.push(page);
    }
    Ok(all)
}

async fn put_directory(server: &Server, children: &[(&str, BlobDigest)]) -> BlobDigest {
    let node = |(name, digest): &(&str, BlobDigest)| DirectoryNode {
        name: (*name).into(),
        digest: Some(digest::to_proto(digest)),
    };
    let directory = Directory { directories: children.iter().map(node).collect(), ..Directory::default() };
    server.put(&directory.encode_to_vec()).await
}

#[tokio::test]
async fn s57_s58_s61_trees_with_something_missing() {
    let server = Server::start().await;
    let absent = Sha256.digest(b"absent");
    assert_eq!(code(tree(&server, &absent, 0, "").await), Code::NotFound);
    let leaf = put_directory(&server, &[]).await;
    let middle = put_directory(&server, &[("gone", absent), ("leaf", leaf)]).await;
    let root = put_directory(&server, &[("gone", absent), ("middle", middle)]).await;
    let pages = tree(&server, &root, 0, "").await.unwrap();
    assert_eq!(pages.len(), 1);
    assert_eq!((pages[0].directories.len(), pages[0].next_page_token.as_str()), (3, ""));
    let (again, _) = canonical::encode(&pages[0].directories[0], Sha256);
    assert_eq!(again, root, "the bytes of a directory hash to its digest (21)");
    let no_directory = server.put(b"this is no directory").await;
    assert_eq!(code(tree(&server, &no_directory, 0, "").await), Code::InvalidArgument);
    // The empty directory is the empty blob (20).
    assert_eq!(tree(&server, &Sha256.empty(), 0, "").await.unwrap()[0].directories.len(), 1);
    assert_eq!(code(tree(&server, &root, -1, "").await), Code::InvalidArgument);
}

#[tokio::test]
async fn s59_pages_and_their_tokens() {
    let server = Server::start().await;
    let names: Vec<_> = (0..40).map(|index| format!("{index:02}")).collect();
    let mut children = Vec::new();
    for name in &names {
        let leaf = put_directory(&server, &[(name, Sha256.empty())]).await;
        children.push((name.as_str(), leaf));
    }
    let root = put_directory(&server, &children).await;
    let whole: Vec<_> =
        tree(&server, &root, 0, "").await.unwrap().into_iter().flat_map(|page| page.directories).collect();
    assert_eq!(whole.len(), 42);
    for size in [1_u8, 7, 42] {
        let pages = tree(&server, &root, size.into(), "").await.unwrap();
        assert!(pages.iter().all(|page| page.directories.len() <= size.into()));
        assert_eq!(pages.last().unwrap().next_page_token, "");
        let mut seen = Vec::new();
        for page in &pages {
            seen.extend(page.directories.clone());
            if page.next_page_token.is_empty() {
                break;
            }
            let rest = tree(&server, &root, 0, &page.next_page_token).await.unwrap();
            let rest = rest.into_iter().flat_map(|page| page.directories);
            let all: Vec<_> = seen.iter().cloned().chain(rest).collect();
            assert_eq!(all, whole);
        }
        assert_eq!(seen, whole);
    }
    let token = tree(&server, &root, 1, "").await.unwrap()[0].next_page_token.clone();
    for foreign in ["nonsense", "1", "1.00000000000000000000000000000000", &token[1..]] {
        assert_eq!(code(tree(&server, &root, 1, foreign).await), Code::InvalidArgument, "{foreign}");
    }
    assert_eq!(code(tree(&server, &children[0].1, 1, &token).await), Code::InvalidArgument);
}

#[tokio::test]
async fn s60_a_diamond_ends_quickly() {
    let server = Server::start().await;
    let mut below = Sha256.empty();
    for _ in 0..30 {
        below = put_directory(&server, &[("a", below), ("b", below)]).await;
    }
    let pages = tree(&server, &below, 0, "").await.unwrap();
    assert_eq!(pages.iter().map(|page| page.directories.len()).sum::<usize>(), 31);
}

async fn split(server: &Server, blob: &BlobDigest) -> Result<Vec<BlobDigest>, Status> {
    let request = SplitBlobRequest {
        blob_digest: Some(digest::to_proto(blob)),
        digest_function: digest::value(blob.function).into(),
        ..Default::default()
    };
    let answer = server.blobs().split_blob(request).await?.into_inner();
    assert_eq!(answer.chunking_function, 1);
    Ok(answer.chunk_digests.iter().map(|chunk| digest::from_proto(chunk, blob.function).unwrap()).collect())
}

#[tokio::test]
async fn s62_to_s66_s71_s73_splitting() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let content = noise(6 << 20, 70);
        let blob = server.put_as(&content, function).await;
        let chunks = split(&server, &blob).await.unwrap();
        assert!(chunks.len() > 3);
        let sizes = &chunks[..chunks.len() - 1];
        assert!(sizes.iter().all(|chunk| (128 << 10..=2 << 20).contains(&chunk.size)));
        assert_eq!(server.missing(&chunks).await, []);
        let mut joined = Vec::new();
        for chunk in &chunks {
            joined.extend(server.read(&format!("blobs/{chunk}"), 0, 0).await.unwrap());
        }
        assert!(joined == content);
        let request = GetChunkMappingRequest {
            blob_digest: Some(digest::to_proto(&blob)),
            digest_function: digest::value(function).into(),
            ..Default::default()
        };
        let mapping = server.blobs().get_chunk_mapping(request).await.unwrap().into_inner();
        let mapping: Vec<_> = mapping.map(|message| message.unwrap().chunk_digests).concat().await;
        assert_eq!(mapping, chunks.iter().map(digest::to_proto).collect::<Vec<_>>());
    }
    assert_eq!(code(split(&server, &Sha256.digest(b"absent")).await), Code::NotFound);
    let small = server.put(&noise(1 << 20, 71)).await;
    assert_eq!(split(&server, &small).await.unwrap(), [small]);
}

async fn splice(server: &Server, blob: &BlobDigest, chunks: &[BlobDigest]) -> Result<BlobDigest, Status> {
    let request = SpliceBlobRequest {
        blob_digest: Some(digest::to_proto(blob)),
        chunk_digests: chunks.iter().map(digest::to_proto).collect(),
        digest_function: digest::value(blob.function).into(),
        ..Default::default()
    };
    let answer = server.blobs().splice_blob(request).await?.into_inner();
    digest::required(answer.blob_digest.as_ref(), blob.function, "blob_digest")
}

#[tokio::test]
async fn s67_s68_s70_splicing() {
    let server = Server::start().await;
    let (one, two) = (noise(300_000, 80), noise(500_000, 81));
    let whole = [one.clone(), two.clone()].concat();
    let (blob, first, second) = (Sha256.digest(&whole), server.put(&one).await, Sha256.digest(&two));
    assert_eq!(code(splice(&server, &blob, &[first, second]).await), Code::NotFound);
    server.put(&two).await;
    assert_eq!(code(splice(&server, &blob, &[second, first]).await), Code::InvalidArgument);
    assert_eq!(code(splice(&server, &blob, &[first]).await), Code::InvalidArgument);
    assert!(!server.has(&blob).await);
    assert_eq!(splice(&server, &blob, &[first, second]).await.unwrap(), blob);
    assert!(server.read(&format!("blobs/{blob}"), 0, 0).await.unwrap() == whole);
    // The same in a stream of messages.
    let again = [whole.clone(), one.clone()].concat();
    let blob = Sha256.digest(&again);
    let requests: Vec<_> = [first, second, first]
        .iter()
        .enumerate()
        .map(|(index, chunk)| RegisterChunkMappingRequest {
            blob_digest: (index == 0).then(|| digest::to_proto(&blob)),
            chunk_digests: vec![digest::to_proto(chunk)],
            digest_function: i32::from(index == 0),
            ..Default::default()
        })
        .collect();
    let answer = server.blobs().register_chunk_mapping(stream::iter(requests)).await.unwrap();
    assert_eq!(answer.into_inner().blob_digest, Some(digest::to_proto(&blob)));
    assert!(server.has(&blob).await);
}

#[tokio::test]
async fn calls_share_a_bounded_memory() {
    let limits = cas_grpc::Limits { memory_bytes: 12 << 20, ..cas_grpc::Limits::default() };
    let server = Arc::new(Server::with(Options { limits, ..Options::default() }).await);
    let calls = (0..40).map(|seed| {
        let server = Arc::clone(&server);
        async move {
            let content = noise(3 << 20, 100 + seed);
            let digest = Sha256.digest(&content);
            assert_eq!(batch(&server, vec![update(&digest, &content, 0)]).await.unwrap(), [Code::Ok]);
            assert!(read(&server, &[digest], &[]).await.unwrap().responses[0].data == content);
        }
    });
    stream::iter(calls).buffer_unordered(16).collect::<Vec<()>>().await;
}
