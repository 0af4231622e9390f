//! Upload and download of files as by `forebay cas put` and `get`, compared with `cp`.

use std::{
    collections::HashMap,
    fmt, fs, io,
    path::Path,
    time::{Duration, Instant},
};

use model::BlobDigest;
use remote::{Meter, Placed, Remote, Source};
use serde::Serialize;
use tokio::process::Command;

use crate::{error::BenchError, progress::say, report::line};

const FOLDERS: u64 = 50;
const FILES_EACH: u64 = 100;
const LARGE_BYTES: usize = 256 << 20;

/// Seconds of each transfer, and its speed relative to `cp`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Moved {
    put_s: f64,
    get_s: f64,
    cp_s: f64,
    put_to_cp_ratio: f64,
    get_to_cp_ratio: f64,
}

/// Figures of file transfers.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct FilesReport {
    /// 5,000 files of up to 4 KiB in 50 folders.
    many: Moved,
    /// One file of 256 MiB.
    large: Moved,
}

/// Runs the measurement in a temporary folder.
pub(crate) async fn measure(remote: &Remote) -> Result<FilesReport, BenchError> {
    say("measuring files against cp");
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    let root = folder.path();
    make(root).map_err(|error| failed(&error))?;
    let (cp, ()) = timed(copy(&root.join("many"), &root.join("many-copied"))).await?;
    let (put, digest) = timed(put_folder(remote, &root.join("many"))).await?;
    let (target, meter) = (root.join("many-got"), Meter::default());
    let get = async { Ok(transfer::download_folder(remote, digest, &target, &meter).await?) };
    let (get, ()) = timed(get).await?;
    let many = Moved::new(put, get, cp);
    let (cp, ()) = timed(copy(&root.join("large"), &root.join("large-copied"))).await?;
    let (put, digest) = timed(put_file(remote, &root.join("large"))).await?;
    let placed = vec![Placed { digest, path: root.join("large-got"), executable: false }];
    let get = async { Ok(remote.fetch_many(placed, &meter).await?) };
    let (get, ()) = timed(get).await?;
    Ok(FilesReport { many, large: Moved::new(put, get, cp) })
}

impl Moved {
    fn new(put: Duration, get: Duration, cp: Duration) -> Self {
        let [put_s, get_s, cp_s] = [put, get, cp].map(|time| time.as_secs_f64());
        Self { put_s, get_s, cp_s, put_to_cp_ratio: cp_s / put_s, get_to_cp_ratio: cp_s / get_s }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        line(f, &format!("cas put, {what}"), Some(self.put_s), "s")?;
        line(f, &format!("cas get, {what}"), Some(self.get_s), "s")?;
        line(f, &format!("cp -r, {what}"), Some(self.cp_s), "s")?;
        line(f, "speed of put to cp", Some(self.put_to_cp_ratio), "")?;
        line(f, "speed of get to cp", Some(self.get_to_cp_ratio), "")
    }
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.many.show(f, "5,000 small files")?;
        self.large.show(f, "256 MiB")
    }
}

async fn timed<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<(Duration, T), BenchError> {
    let began = Instant::now();
    let done = work.await?;
    Ok((began.elapsed(), done))
}

fn make(root: &Path) -> io::Result<()> {
    let mut seed = uuid::Uuid::new_v4().as_u128();
    let mut fill = |bytes: &mut [u8]| {
        for part in bytes.chunks_mut(8) {
            // Incompressible and fast to generate.
            seed = seed.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            let random = (seed >> 64).to_le_bytes();
            part.iter_mut().zip(random).for_each(|(byte, random)| *byte = random);
        }
    };
    for folder in 0..FOLDERS {
        let folder = root.join(format!("many/{folder}"));
        fs::create_dir_all(&folder)?;
        for file in 0..FILES_EACH {
            let mut content = vec![0; usize::try_from(40 * (file + 1)).unwrap_or(1)];
            fill(&mut content);
            fs::write(folder.join(file.to_string()), content)?;
        }
    }
    let mut content = vec![0; LARGE_BYTES];
    fill(&mut content);
    fs::write(root.join("large"), content)
}

async fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    let done =
        Command::new("cp").arg("-r").arg(from).arg(to).status().await.map_err(|error| failed(&error))?;
    if done.success() { Ok(()) } else { Err(BenchError::plain(format!("cp ended with {done}"))) }
}

async fn put_folder(remote: &Remote, folder: &Path) -> Result<BlobDigest, BenchError> {
    let (digest, blobs) = transfer::scan(folder, &["**".to_owned()], remote.function()).await?;
    remote.upload(&blobs).await?;
    Ok(digest)
}

async fn put_file(remote: &Remote, file: &Path) -> Result<BlobDigest, BenchError> {
    let digest = transfer::hash(file, remote.function()).await?;
    remote.upload(&HashMap::from([(digest, Source::File(file.to_owned()))])).await?;
    Ok(digest)
}

fn failed(error: &io::Error) -> BenchError {
    BenchError::new("preparing the files of the measurement", error)
}
