//! Upload and download of files as by `forebay cas put` and `get`, compared with `cp`.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use command_line::failure::say;
use model::BlobDigest;
use remote::{Meter, Placed, Remote, Source};
use tokio::process::Command;

use crate::{error::BenchError, figures::Figures};

const FOLDERS: u64 = 50;
const FILES_EACH: u64 = 100;
const LARGE_BYTES: usize = 256 << 20;

/// Runs the measurement in a temporary folder.
pub(crate) async fn measure(remote: &Remote) -> Result<Figures, BenchError> {
    say("measuring files against cp");
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    let root = folder.path();
    make(root).map_err(|error| failed(&error))?;
    let (cp, ()) = timed(copy(&root.join("many"), &root.join("many-copied"))).await?;
    let (put, digest) = timed(put_folder(remote, &root.join("many"))).await?;
    let (target, meter) = (root.join("many-got"), Meter::default());
    let get = async { Ok(transfer::download_folder(remote, digest, &target, &meter).await?) };
    let (get, ()) = timed(get).await?;
    let mut figures = Figures::default();
    figures.part("many", moved(put, get, cp, "5,000 small files"));
    let (cp, ()) = timed(copy(&root.join("large"), &root.join("large-copied"))).await?;
    let (put, digest) = timed(put_file(remote, &root.join("large"))).await?;
    let placed = vec![Placed { digest, below: None, path: root.join("large-got"), executable: false }];
    let get = async { Ok(remote.fetch_many(placed, &meter).await?) };
    let (get, ()) = timed(get).await?;
    figures.part("large", moved(put, get, cp, "256 MiB"));
    Ok(figures)
}

/// Seconds of each transfer, and its speed relative to `cp`.
fn moved(put: Duration, get: Duration, cp: Duration, what: &str) -> Figures {
    let [put, get, cp] = [put, get, cp].map(|time| time.as_secs_f64());
    let mut figures = Figures::default();
    figures.figure("put_s", &format!("cas put, {what}"), put, "s");
    figures.figure("get_s", &format!("cas get, {what}"), get, "s");
    figures.figure("cp_s", &format!("cp -r, {what}"), cp, "s");
    figures.figure("put_to_cp_ratio", "speed of put to cp", cp / put, "");
    figures.figure("get_to_cp_ratio", "speed of get to cp", cp / get, "");
    figures
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
