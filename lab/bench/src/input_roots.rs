//! Time to create input roots of many files.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    digest::to_proto,
    execution::{Directory, DirectoryNode, FileNode},
    protobuf::Timestamp,
};
use remote::{Executed, Source};

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, statistics::mean, work::Work};

const FOLDERS: usize = 50;
const FILES: usize = 100;
/// Number of new roots whose times are averaged.
const COLD: u8 = 4;
const WARM: u8 = 10;

/// Measures on `farm`, and on a second executor that shares no disk with it.
pub(crate) async fn measure(farm: &BenchFarm) -> Result<Figures, BenchError> {
    let work = Work::new(farm.remote().await?).await?;
    let files = FOLDERS * FILES;
    let mut cold = Vec::new();
    let mut last = DigestFunction::Sha256.empty();
    for number in 0..COLD {
        last = upload_root(&work, number).await?;
        cold.push(fetch_time(&work, &last, 0, "").await?.as_secs_f64());
    }
    let mut warm = Vec::new();
    for number in 1..=WARM {
        warm.push(fetch_time(&work, &last, number, "").await?.as_secs_f64());
    }
    let name = format!("input root of {files} files, created before");
    let mut figures = Figures::default();
    figures.field("files", files);
    let rate = files as f64 / mean(cold);
    figures.figure("cold_files_per_s", "input root, new, blobs on the same disk", rate, "files/s");
    figures.figure("warm_ms", &name, mean(warm) * 1000.0, "ms");
    let rate = remote(farm, &work).await?;
    figures.figure("remote_files_per_s", "input root, new, blobs over gRPC", rate, "files/s");
    Ok(figures)
}

/// Files per second if blobs are downloaded over gRPC.
async fn remote(farm: &BenchFarm, work: &Work) -> Result<Option<f64>, BenchError> {
    if farm.endpoints.cas.is_none() {
        return Ok(None);
    }
    let _executor = farm.executor("elsewhere", &[("FOREBAY_POOL", "elsewhere")]).await?;
    let root = upload_root(work, 100).await?;
    let seconds = fetch_time(work, &root, 0, "elsewhere").await?.as_secs_f64();
    Ok(Some((FOLDERS * FILES) as f64 / seconds))
}

async fn upload_root(work: &Work, number: u8) -> Result<BlobDigest, BenchError> {
    let function = DigestFunction::Sha256;
    let mut blobs: HashMap<BlobDigest, Source> = HashMap::new();
    let mut add = |content: Vec<u8>| {
        let digest = function.digest(&content);
        blobs.insert(digest, Source::Bytes(Bytes::from(content)));
        Some(to_proto(&digest))
    };
    let seed = uuid::Uuid::new_v4();
    let mut directories = Vec::new();
    for folder in 0..FOLDERS {
        let file =
            |file: usize, digest| FileNode { name: format!("file-{file:03}"), digest, ..FileNode::default() };
        let files = (0..FILES)
            .map(|it| {
                file(it, add(format!("{seed} {number} {folder} {it} {}", "x".repeat(200)).into_bytes()))
            })
            .collect();
        let digest = add(Directory { files, ..Directory::default() }.encode_to_vec());
        directories.push(DirectoryNode { name: format!("folder-{folder:03}"), digest });
    }
    let root = Directory { directories, ..Directory::default() }.encode_to_vec();
    let digest = function.digest(&root);
    add(root);
    work.remote.upload(&blobs).await?;
    Ok(digest)
}

/// Time of the executor to create `root`, from the result of the action.
async fn fetch_time(work: &Work, root: &BlobDigest, number: u8, pool: &str) -> Result<Duration, BenchError> {
    let (action, blobs) = work.action(vec![number], root, pool);
    work.remote.upload(&blobs).await?;
    let Executed { response, .. } = work.execute(&action).await?;
    let metadata = response.result.and_then(|result| result.execution_metadata).unwrap_or_default();
    let (begun, ended) = (metadata.input_fetch_start_timestamp, metadata.input_fetch_completed_timestamp);
    Ok(since(ended).saturating_sub(since(begun)))
}

fn since(at: Option<Timestamp>) -> Duration {
    let at = at.unwrap_or_default();
    Duration::new(u64::try_from(at.seconds).unwrap_or(0), u32::try_from(at.nanos).unwrap_or(0))
}
