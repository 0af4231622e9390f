//! `forebay bench cas`: measures look-ups, small blobs, streams against bare streams that hash, and files against `cp`.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args;
use command_line::failure::say;
use model::{BlobDigest, DigestFunction};
use remote::{Remote, Source};

use crate::{
    bare_stream::BareStream, bytes_stream, calls::calls, error::BenchError, farm::BenchFarm,
    figures::Figures, files, memory::Memory, report::BenchReport, vec_stream,
};

/// Options of `forebay bench cas`, which starts a farm in a temporary folder.
#[derive(Debug, Args)]
pub(crate) struct CasArgs {
    /// Duration of each rate measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Number of concurrent calls
    #[arg(long, value_name = "N", default_value_t = 8)]
    in_flight: usize,
}

const A_CALL: u64 = 100;
const LARGE: usize = 64 << 20;
const FUNCTION: DigestFunction = DigestFunction::Sha256;

/// Runs `forebay bench cas`.
pub(crate) async fn measure(args: &CasArgs) -> Result<BenchReport, BenchError> {
    let window = Duration::from_secs(args.seconds);
    let farm = BenchFarm::start(1, &[]).await?;
    let remote = farm.remote().await?;
    say("measuring look-ups and small blobs");
    let number = AtomicU64::new(0);
    let seed = uuid::Uuid::new_v4();
    let batch = || {
        let from = number.fetch_add(A_CALL, Ordering::Relaxed);
        (from..from + A_CALL).map(|number| small(&seed, number)).collect::<HashMap<_, _>>()
    };
    let writes = calls(args.in_flight, window, || {
        let blobs = batch();
        let remote = &remote;
        async move { Ok(remote.put_many(&blobs).await?) }
    });
    let small_writes_per_s = writes.await? * A_CALL as f64;
    let present: Vec<BlobDigest> = (0..A_CALL).map(|number| small(&seed, number).0).collect();
    let reads = calls(args.in_flight, window, || async { Ok(remote.read_many(&present).await.map(drop)?) });
    let small_reads_per_s = reads.await? * A_CALL as f64;
    let asked: Vec<BlobDigest> = (0..A_CALL)
        .map(|it| if it % 2 == 0 { small(&seed, it).0 } else { FUNCTION.digest(&it.to_le_bytes()) })
        .collect();
    let finds = calls(args.in_flight, window, || async { Ok(remote.missing(&asked).await.map(drop)?) });
    let digests_per_s = finds.await? * A_CALL as f64;
    say("measuring streams of 64 MiB");
    let bare = BareStream::start(vec_stream::routes()).await?;
    let (bare_write, bare_read) = streams(&bare.remote().await?, window).await?;
    let bytes = BareStream::start(bytes_stream::routes()).await?;
    let (bytes_write, bytes_read) = streams(&bytes.remote().await?, window).await?;
    let (write, read) = streams(&remote, window).await?;
    let mut figures = Figures::default();
    figures.field("in_flight", args.in_flight);
    let name = "FindMissingBlobs, 100 digests per call";
    figures.figure("digests_per_s", name, digests_per_s, "digests/s");
    let name = "BatchUpdateBlobs, 100 x 1 KiB per call";
    figures.figure("small_writes_per_s", name, small_writes_per_s, "blobs/s");
    let name = "BatchReadBlobs, 100 x 1 KiB per call";
    figures.figure("small_reads_per_s", name, small_reads_per_s, "blobs/s");
    figures.figure("write_mb_per_s", "ByteStream write, 64 MiB", write, "MB/s");
    figures.figure("bare_write_mb_per_s", "a bare stream that hashes, write", bare_write, "MB/s");
    figures.figure("write_to_bare_ratio", "write to bare", write / bare_write, "");
    let name = "a bare stream of Bytes that hashes, write";
    figures.figure("bare_bytes_write_mb_per_s", name, bytes_write, "MB/s");
    figures.figure("write_to_bare_bytes_ratio", "write to bare, of Bytes", write / bytes_write, "");
    figures.figure("read_mb_per_s", "ByteStream read, 64 MiB", read, "MB/s");
    figures.figure("bare_read_mb_per_s", "a bare stream, read", bare_read, "MB/s");
    figures.figure("read_to_bare_ratio", "read to bare", read / bare_read, "");
    figures.figure("bare_bytes_read_mb_per_s", "a bare stream of Bytes, read", bytes_read, "MB/s");
    figures.figure("read_to_bare_bytes_ratio", "read to bare, of Bytes", read / bytes_read, "");
    figures.part("files", files::measure(&remote).await?);
    let mut memory = Memory::default();
    memory.note(&farm);
    farm.stop().await;
    Ok(BenchReport::new(&format!(", {} calls in flight", args.in_flight), figures, memory))
}

fn small(seed: &uuid::Uuid, number: u64) -> (BlobDigest, Source) {
    let mut content = Vec::with_capacity(1024);
    content.extend_from_slice(seed.as_bytes());
    content.extend_from_slice(&number.to_le_bytes());
    content.resize(1024, 7);
    (FUNCTION.digest(&content), Source::Bytes(Bytes::from(content)))
}

/// Rates of writing and reading in MB per second, one stream of 64 MiB at a time.
async fn streams(remote: &Remote, window: Duration) -> Result<(f64, f64), BenchError> {
    let mut content = vec![0; LARGE];
    let (mut written, mut writing) = (0, Duration::ZERO);
    let mut last = FUNCTION.empty();
    while writing < window {
        // A new blob each time; only the time of the call counts.
        content.iter_mut().zip(uuid::Uuid::new_v4().as_bytes()).for_each(|(byte, new)| *byte = *new);
        let blob = Bytes::copy_from_slice(&content);
        last = FUNCTION.digest(&blob);
        let begun = Instant::now();
        remote.write(&last, Source::Bytes(blob)).await?;
        writing += begun.elapsed();
        written += LARGE;
    }
    let (mut read, begun) = (0, Instant::now());
    while begun.elapsed() < window {
        remote.read_raw(&last, |piece| read += piece.len()).await?;
    }
    let rate = |bytes: usize, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    Ok((rate(written, writing), rate(read, begun.elapsed())))
}
