//! Reads folders of this machine as input roots.

use std::{collections::HashMap, path::Path};

use input_root::local;
use model::{BlobDigest, DigestFunction};
use remote::Source;

use crate::failure::{FAILED, Failure, USAGE};

/// Scans the files of `folder` that match one of the globs. Returns the digest of the input root and all its blobs.
pub(crate) async fn scan(
    folder: &Path,
    globs: &[String],
    function: DigestFunction,
) -> Result<(BlobDigest, HashMap<BlobDigest, Source>), Failure> {
    let (folder, globs) = (folder.to_owned(), globs.to_vec());
    let scanned = tokio::task::spawn_blocking(move || local::scan(&folder, &globs, function)).await;
    let scanned = scanned
        .map_err(|error| Failure::new(FAILED, "reading the inputs", &error))?
        .map_err(|error| Failure::of(USAGE, &error))?;
    let source = |source| match source {
        local::Source::File(path) => Source::File(path),
        local::Source::Bytes(bytes) => Source::Bytes(bytes),
    };
    let blobs = scanned.blobs.into_iter().map(|(digest, it)| (digest, source(it))).collect();
    Ok((scanned.root, blobs))
}
