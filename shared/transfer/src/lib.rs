//! Files and folders of this machine, as the CLI and the benchmarks upload and download them.

mod error;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use disk::Confined;
use input_root::local::{self, LocalError, Scanned};
use model::{BlobDigest, DigestFunction};
use remote::{Meter, Placed, Remote, Source};

pub use error::TransferError;

/// Scans the files of `folder` that match one of the globs. Returns the digest of the input root and all its blobs.
pub async fn scan(
    folder: &Path,
    globs: &[String],
    function: DigestFunction,
) -> Result<(BlobDigest, HashMap<BlobDigest, Source>), TransferError> {
    let (folder, globs) = (folder.to_owned(), globs.to_vec());
    scanned(move || local::scan(&folder, &globs, function)).await
}

/// Scans `folder` as the context of a build: everything except data folders of a farm, pipes, sockets and devices, and
/// with `ignore_files` what `.gitignore` and `.forebayignore` match. Returns the digest of the folder and all its blobs.
pub async fn scan_context(
    folder: &Path,
    ignore_files: bool,
    function: DigestFunction,
) -> Result<(BlobDigest, HashMap<BlobDigest, Source>), TransferError> {
    let folder = folder.to_owned();
    scanned(move || local::scan_context(&folder, ignore_files, function)).await
}

async fn scanned(
    scan: impl FnOnce() -> Result<Scanned, LocalError> + Send + 'static,
) -> Result<(BlobDigest, HashMap<BlobDigest, Source>), TransferError> {
    let scanned = tokio::task::spawn_blocking(scan).await;
    let scanned = scanned
        .map_err(|source| TransferError::Thread { what: "reading the inputs", source })?
        .map_err(TransferError::Scan)?;
    let source = |source| match source {
        local::Source::File(path) => Source::File(path),
        local::Source::Bytes(bytes) => Source::Bytes(bytes),
    };
    let blobs = scanned.blobs.into_iter().map(|(digest, it)| (digest, source(it))).collect();
    Ok((scanned.root, blobs))
}

/// Computes the digest of a file.
pub async fn hash(path: &Path, function: DigestFunction) -> Result<BlobDigest, TransferError> {
    let path = path.to_owned();
    let hashed = tokio::task::spawn_blocking(move || {
        hashing::hash_file(&path, function).map_err(|source| TransferError::Read { path, source })
    });
    hashed.await.map_err(|source| TransferError::Thread { what: "cannot hash the file", source })?
}

/// Downloads the tree of `root` to `path`: creates folders, then files, grouped by digest, then links. Nothing
/// is written outside of `path`.
pub async fn download_folder(
    remote: &Remote,
    root: BlobDigest,
    path: &Path,
    meter: &Meter,
) -> Result<(), TransferError> {
    let folders = remote.folders(&root).await?;
    let create = |path: &Path| {
        let path = path.to_owned();
        move |source| TransferError::Create { path, source }
    };
    std::fs::create_dir_all(path).map_err(create(path))?;
    // The folder itself may be a link: the user named it.
    let opened = path.canonicalize().and_then(|path| Confined::at(&path)).map_err(create(path))?;
    let (mut files, mut links) = (Vec::new(), Vec::new());
    let mut waiting = vec![(PathBuf::new(), root)];
    while let Some((place, digest)) = waiting.pop() {
        opened.make_folder(&place).map_err(create(&path.join(&place)))?;
        let folder = folders.get(&digest).ok_or(TransferError::Incomplete { digest })?;
        links.extend(folder.symlinks.iter().map(|link| (place.join(&link.name), &link.target)));
        for file in &folder.files {
            files.push(Placed {
                digest: remote.digest_of(file.digest.as_ref(), &digest)?,
                below: Some(opened.clone()),
                path: place.join(&file.name),
                executable: file.is_executable,
            });
        }
        for child in &folder.directories {
            waiting.push((place.join(&child.name), remote.digest_of(child.digest.as_ref(), &digest)?));
        }
    }
    remote.fetch_many(files, meter).await?;
    // Links come last: nothing is written through them.
    for (place, target) in links {
        let made = opened.place_at(&place).and_then(|link| link.link_to(target.as_ref()));
        made.map_err(|source| TransferError::Link { path: path.join(&place), source })?;
    }
    Ok(())
}
