//! Measures the speed on this machine: `cargo nextest run -p cas_grpc --run-ignored only --no-capture`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{Options, Server, Sha256, noise};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use reapi::{
    bytestream::ReadRequest,
    digest,
    execution::{ActionResult, BatchUpdateBlobsRequest, GetActionResultRequest, batch_update_blobs_request},
    stream::{ByteStreamClient, WriteRequest},
};

fn rate(what: &str, count: usize, unit: &str, time: Duration) {
    let rate = count as f64 / time.as_secs_f64();
    println!("{what}: {rate:.0} {unit}/s");
}

fn requests(name: &str, content: &Bytes, piece: usize) -> Vec<WriteRequest> {
    let count = content.len().div_ceil(piece);
    (0..count)
        .map(|index| WriteRequest {
            resource_name: if index == 0 { name.into() } else { String::new() },
            write_offset: i64::try_from(index * piece).unwrap(),
            finish_write: index + 1 == count,
            data: content.slice(index * piece..((index + 1) * piece).min(content.len())),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn streams() {
    const SIZE: usize = 64 << 20;
    const TIMES: u64 = 8;
    let server = Arc::new(Server::with(Options::default()).await);
    let mut client = ByteStreamClient::new(server.connect().await);
    for piece in [64 << 10, 256 << 10, 1 << 20, 2 << 20] {
        let contents: Vec<Bytes> =
            (0..TIMES).map(|seed| noise(SIZE, seed + 1000 * piece as u64).into()).collect();
        let digests: Vec<BlobDigest> = contents.iter().map(|content| Sha256.digest(content)).collect();
        let began = Instant::now();
        for (content, digest) in contents.iter().zip(&digests) {
            let name = format!("uploads/u/blobs/{digest}");
            client.write(stream::iter(requests(&name, content, piece))).await.unwrap();
        }
        rate(&format!("write 64 MiB in {piece}"), SIZE * contents.len() / 1_000_000, "MB", began.elapsed());
        let began = Instant::now();
        for digest in &digests {
            let request = ReadRequest { resource_name: format!("blobs/{digest}"), ..Default::default() };
            let mut pieces = client.read(request).await.unwrap().into_inner();
            let mut length = 0;
            while let Some(piece) = pieces.message().await.unwrap() {
                length += piece.data.len();
            }
            assert_eq!(length, SIZE);
        }
        rate("read 64 MiB", SIZE * digests.len() / 1_000_000, "MB", began.elapsed());
        let began = Instant::now();
        for digest in digests.iter().take(2) {
            let name = format!("compressed-blobs/zstd/{digest}");
            let request = ReadRequest { resource_name: name, ..Default::default() };
            let mut pieces = client.read(request).await.unwrap().into_inner();
            while pieces.message().await.unwrap().is_some() {}
        }
        rate("read 64 MiB zstd", SIZE * 2 / 1_000_000, "MB of content", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn calls() {
    let server = Arc::new(Server::with(Options::default()).await);
    let blobs: Vec<Vec<u8>> = (0..20_000).map(|seed| noise(1024, seed)).collect();
    let batches: Vec<BatchUpdateBlobsRequest> = blobs
        .chunks(100)
        .map(|blobs| BatchUpdateBlobsRequest {
            requests: blobs
                .iter()
                .map(|blob| batch_update_blobs_request::Request {
                    digest: Some(digest::to_proto(&Sha256.digest(blob))),
                    data: blob.clone(),
                    compressor: 0,
                })
                .collect(),
            ..Default::default()
        })
        .collect();
    let began = Instant::now();
    let calls = batches.into_iter().map(|batch| {
        let mut client = server.blobs();
        async move { client.batch_update_blobs(batch).await.unwrap() }
    });
    stream::iter(calls).buffer_unordered(8).for_each(|_| async {}).await;
    rate("1 KiB blobs in batches of 100", blobs.len(), "blobs", began.elapsed());

    let digests: Vec<BlobDigest> = blobs.iter().map(|blob| Sha256.digest(blob)).collect();
    for round in 0..3 {
        let began = Instant::now();
        for _ in 0..10 {
            assert!(server.missing(&digests).await.is_empty());
        }
        rate(&format!("find missing, round {round}"), digests.len() * 10, "digests", began.elapsed());
    }
    let absent: Vec<BlobDigest> = (0..20_000_u32).map(|index| Sha256.digest(&index.to_be_bytes())).collect();
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(server.missing(&absent).await.len(), absent.len());
    }
    rate("find missing, all absent", absent.len() * 5, "digests", began.elapsed());

    let action = Sha256.digest(b"action");
    let output = reapi::execution::OutputFile {
        path: "out.o".into(),
        digest: Some(digest::to_proto(&digests[0])),
        ..Default::default()
    };
    let result = ActionResult { output_files: vec![output], ..Default::default() };
    server.cas.put_action("", &action, &result).await.unwrap();
    let began = Instant::now();
    let calls = (0..60_000).map(|_| {
        let mut client = server.actions();
        let action_digest = Some(digest::to_proto(&action));
        async move {
            let request = GetActionResultRequest { action_digest, ..Default::default() };
            client.get_action_result(request).await.unwrap()
        }
    });
    stream::iter(calls).buffer_unordered(64).for_each(|_| async {}).await;
    rate("get action result", 60_000, "calls", began.elapsed());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
}
