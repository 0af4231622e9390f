//! Capabilities, whole blobs, trees and chunks: exact answers, and requests that are refused as a whole.

use std::sync::Arc;

use crate::common::{Blake3, Options, READ_ONLY, Server, Sha256, noise};
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    canonical, digest,
    execution::{
        self, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest, Directory,
        DirectoryNode, FindMissingBlobsRequest, GetCapabilitiesRequest, GetChunkMappingRequest,
        GetTreeRequest, GetTreeResponse, RegisterChunkMappingRequest, SplitBlobRequest,
        batch_update_blobs_request, compressor,
    },
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
async fn each_instance_announces_what_is_served() {
    for executes in [false, true] {
        let server = Server::with(Options { executes, ..Options::default() }).await;
        for (name, update_enabled) in [("", true), ("a/b/c", true), (READ_ONLY, false)] {
            let request = GetCapabilitiesRequest { instance_name: name.into() };
            let said = server.capabilities().get_capabilities(request).await.unwrap().into_inner();
            let cache = said.cache_capabilities.unwrap();
            assert_eq!(cache.action_cache_update_capabilities.unwrap().update_enabled, update_enabled);
            assert_eq!(cache.digest_functions, [1, 9]);
            assert_eq!(cache.supported_compressors, [1]);
            assert_eq!(cache.supported_batch_update_compressors, [1]);
            assert!(cache.max_cas_blob_size_bytes > 0);
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
async fn an_unknown_or_invalid_instance_is_an_invalid_argument() {
    let server = Server::start().await;
    let digest = digest::to_proto(&server.put(b"content").await);
    for name in ["other", "a//b", "a/blobs"] {
        let request = FindMissingBlobsRequest {
            instance_name: name.into(),
            blob_digests: vec![digest.clone()],
            ..Default::default()
        };
        assert_eq!(code(server.blobs().find_missing_blobs(request).await), Code::InvalidArgument, "{name}");
        let blob_digest = Some(digest.clone());
        let request = SplitBlobRequest { instance_name: name.into(), blob_digest, ..Default::default() };
        assert_eq!(code(server.blobs().split_blob(request).await), Code::InvalidArgument, "{name}");
    }
}

#[tokio::test]
async fn one_malformed_digest_refuses_the_whole_batch() {
    let server = Server::start().await;
    let good = digest::to_proto(&server.put(b"content").await);
    let with = |hash: &str, size_bytes| execution::Digest { hash: hash.into(), size_bytes };
    let hash = good.hash.as_str();
    // The last hash is as long as a SHA-1.
    for bad in [with(&hash.to_uppercase(), 7), with("", 7), with(hash, -1), with(&hash[..40], 7)] {
        let request =
            BatchReadBlobsRequest { digests: vec![good.clone(), bad.clone()], ..Default::default() };
        assert_eq!(code(server.blobs().batch_read_blobs(request).await), Code::InvalidArgument, "{bad:?}");
        let request = batch_update_blobs_request::Request { digest: Some(bad), ..Default::default() };
        assert_eq!(code(batch(&server, vec![request]).await), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_digest_without_a_function_is_not_a_blake3_digest() {
    let server = Server::start().await;
    let digests = vec![digest::to_proto(&server.put_as(b"by blake", Blake3).await)];
    let request = FindMissingBlobsRequest { blob_digests: digests.clone(), ..Default::default() };
    let answer = server.blobs().find_missing_blobs(request).await.unwrap().into_inner();
    assert_eq!(answer.missing_blob_digests, digests);
}

#[tokio::test]
async fn missing_blobs_are_named_once_and_in_order() {
    let server = Server::start().await;
    let here = server.put(b"here").await;
    let (one, two) = (Sha256.digest(b"one"), Sha256.digest(b"two"));
    let missing = server.missing(&[one, here, Sha256.empty(), two, one, here]).await;
    assert_eq!(missing, [digest::to_proto(&one), digest::to_proto(&two)]);
}

#[tokio::test]
async fn a_size_of_0_does_not_make_a_digest_the_empty_blob() {
    let server = Server::start().await;
    for bogus in [
        BlobDigest { size: 0, ..Sha256.digest(b"absent") },
        BlobDigest { size: 0, ..server.put(b"here").await },
    ] {
        assert_eq!(server.missing(&[bogus]).await, [digest::to_proto(&bogus)]);
        assert_eq!(code(server.read(&format!("blobs/{bogus}"), 0, 0).await), Code::NotFound);
    }
}

#[tokio::test]
async fn a_request_and_its_answer_may_be_larger_than_4_mib() {
    let server = Server::start().await;
    // About 7 MiB each way.
    let mut digests: Vec<_> = (0..100_000_u32).map(|index| Sha256.digest(&index.to_be_bytes())).collect();
    digests.push(server.put(b"here").await);
    let missing = server.missing(&digests).await;
    assert_eq!(missing.len(), 100_000);
}

#[tokio::test]
async fn a_wrong_compressed_blob_of_a_batch_is_refused_alone() {
    let server = Server::start().await;
    let blobs: Vec<_> = (0..3).map(|seed| noise(1000, 40 + seed)).collect();
    let digests: Vec<_> = blobs.iter().map(|blob| Sha256.digest(blob)).collect();
    let zstd = |blob: &[u8]| zstd::bulk::compress(blob, 3).unwrap();
    let requests = vec![
        update(&digests[0], &zstd(&blobs[0]), 1),
        update(&digests[1], &zstd(&blobs[0]), 1),
        update(&digests[2], b"garbage", 1),
        update(&digests[0], &blobs[0], 0),
    ];
    let bad = Code::InvalidArgument;
    assert_eq!(batch(&server, requests).await.unwrap(), [Code::Ok, bad, bad, Code::Ok]);
    assert_eq!(server.missing(&digests).await.len(), 2, "all but the first");
}

#[tokio::test]
async fn a_full_store_accepts_the_blobs_that_it_has() {
    let server = Server::start().await;
    let here = server.put(b"here").await;
    server.cas.set_full(true);
    let requests = vec![update(&Sha256.digest(b"new"), b"new", 0), update(&here, b"here", 0)];
    assert_eq!(batch(&server, requests).await.unwrap(), [Code::ResourceExhausted, Code::Ok]);
}

#[tokio::test]
async fn a_compressed_blob_counts_with_its_own_size_in_a_batch() {
    let server = Server::start().await;
    let large = noise(2 << 20, 50);
    let digest = Sha256.digest(&large);
    let packed = zstd::bulk::compress(&large, 3).unwrap();
    let twice = vec![update(&digest, &packed, 1), update(&digest, &packed, 1)];
    assert_eq!(code(batch(&server, twice).await), Code::InvalidArgument);
    assert!(!server.has(&digest).await);
    assert_eq!(batch(&server, vec![update(&digest, &packed, 1)]).await.unwrap(), [Code::Ok]);
}

#[tokio::test]
async fn a_batch_read_answers_in_order_and_compresses_what_gets_smaller() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let content = noise(10_000, 60);
        let (here, small) =
            (server.put_as(&content, function).await, server.put_as(b"small", function).await);
        let asked = [here, function.digest(b"absent"), small, function.empty(), here];
        let answer = read(&server, &asked, &[compressor::Value::Zstd]).await.unwrap();
        let got: Vec<_> = answer.responses.iter().map(|one| one.status.as_ref().unwrap().code).collect();
        assert_eq!(got, [0, 5, 0, 0, 0]);
        assert_eq!(answer.responses[0].compressor, 1);
        assert_eq!(zstd::stream::decode_all(&*answer.responses[0].data).unwrap(), content);
        assert_eq!((answer.responses[2].compressor, &*answer.responses[2].data), (0, &b"small"[..]));
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
async fn a_tree_comes_in_one_page_without_what_is_missing() {
    let server = Server::start().await;
    let absent = Sha256.digest(b"absent");
    let leaf = put_directory(&server, &[]).await;
    let middle = put_directory(&server, &[("gone", absent), ("leaf", leaf)]).await;
    let root = put_directory(&server, &[("gone", absent), ("middle", middle)]).await;
    let pages = tree(&server, &root, 0, "").await.unwrap();
    assert_eq!(pages.len(), 1);
    assert_eq!((pages[0].directories.len(), pages[0].next_page_token.as_str()), (3, ""));
    let (again, _) = canonical::encode(&pages[0].directories[0], Sha256);
    assert_eq!(again, root, "the bytes of a directory hash to its digest");
    // The empty directory is the empty blob.
    assert_eq!(tree(&server, &Sha256.empty(), 0, "").await.unwrap()[0].directories.len(), 1);
    assert_eq!(code(tree(&server, &root, -1, "").await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_tree_continues_from_the_token_of_any_page() {
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
    assert_eq!(code(tree(&server, &children[0].1, 1, &token).await), Code::InvalidArgument);
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
async fn the_chunk_mapping_of_a_blob_is_its_split() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let blob = server.put_as(&noise(6 << 20, 70), function).await;
        let chunks = split(&server, &blob).await.unwrap();
        assert!(chunks.len() > 3);
        let request = GetChunkMappingRequest {
            blob_digest: Some(digest::to_proto(&blob)),
            digest_function: digest::value(function).into(),
            ..Default::default()
        };
        let mapping = server.blobs().get_chunk_mapping(request).await.unwrap().into_inner();
        let mapping: Vec<_> = mapping.map(|message| message.unwrap().chunk_digests).concat().await;
        assert_eq!(mapping, chunks.iter().map(digest::to_proto).collect::<Vec<_>>());
    }
    let small = server.put(&noise(1 << 20, 71)).await;
    assert_eq!(split(&server, &small).await.unwrap(), [small]);
}

#[tokio::test]
async fn a_chunk_mapping_is_registered_in_a_stream_of_messages() {
    let server = Server::start().await;
    let (one, two) = (noise(300_000, 80), noise(500_000, 81));
    let (first, second) = (server.put(&one).await, server.put(&two).await);
    let whole = [one.clone(), two, one].concat();
    let blob = Sha256.digest(&whole);
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
    assert!(server.read(&format!("blobs/{blob}"), 0, 0).await.unwrap() == whole);
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
