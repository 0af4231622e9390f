//! Keeping the files that a build's globs match.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use model::{OutputFile, Reason, ReasonCode};
use store::Store;

/// The list of outputs is part of the result, and a message of at most 1 MiB.
const LIST_BYTES_MAX: usize = 400 << 10;
/// What an output takes in that list beside its path.
const ENTRY_BYTES: usize = 160;

/// A file to keep.
struct Found {
    relative: String,
    path: PathBuf,
    size: u64,
    executable: bool,
}

/// Keeps what `patterns` match under `root`, sorted by path.
pub(crate) async fn keep(
    store: &Store,
    root: &Path,
    patterns: &[String],
    size_max: u64,
) -> Result<Vec<OutputFile>, Reason> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let globs = compile(patterns)?;
    let folder = root.to_owned();
    let walked = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        walk(&folder, &folder, &globs, &mut found).map(|()| found)
    });
    let lost = |error: &dyn std::fmt::Display| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("the outputs cannot be looked for: {error}"),
    };
    let mut found = walked.await.map_err(|error| lost(&error))?.map_err(|error| lost(&error))?;
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    let listed: usize = found.iter().map(|file| file.relative.len() + ENTRY_BYTES).sum();
    if listed > LIST_BYTES_MAX {
        let message = format!(
            "the outputs are {} files, whose list alone takes {listed} bytes, at most {LIST_BYTES_MAX} are kept: keep an \
             archive of them instead",
            found.len()
        );
        return Err(Reason { code: ReasonCode::OutputNotKept, message });
    }
    let mut kept = Vec::with_capacity(found.len());
    for file in found {
        if file.size > size_max {
            let message =
                format!("output {} has {} bytes, at most {size_max} are kept", file.relative, file.size);
            return Err(Reason { code: ReasonCode::OutputNotKept, message });
        }
        let (digest, size_bytes) = store.put_file(&file.path).await.map_err(|error| Reason {
            code: if error.is_disk_full() { ReasonCode::DiskFull } else { ReasonCode::OutputNotKept },
            message: format!("output {} was not kept: {}", file.relative, telemetry::error_chain(&error)),
        })?;
        kept.push(OutputFile { path: file.relative, digest, size_bytes, executable: file.executable });
    }
    Ok(kept)
}

/// What tells which paths are outputs.
pub(crate) fn compile(patterns: &[String]) -> Result<GlobSet, Reason> {
    let bad = |error: globset::Error| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("an output glob cannot be understood: {error}"),
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let pattern = pattern.trim_start_matches("./");
        set.add(GlobBuilder::new(pattern).literal_separator(true).build().map_err(bad)?);
    }
    set.build().map_err(bad)
}

/// Files only, and no link out of the workspace: what a link points to is kept if it lies inside.
fn walk(root: &Path, folder: &Path, globs: &GlobSet, found: &mut Vec<Found>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(root, &path, globs, found)?;
            continue;
        }
        let Ok(relative) = path.strip_prefix(root) else { continue };
        if !globs.is_match(relative) {
            continue;
        }
        // Names that are no text cannot be asked for again.
        let Some(name) = relative.to_str() else { continue };
        let Ok(real) = path.canonicalize() else { continue };
        let Ok(inside) = root.canonicalize() else { continue };
        let meta = std::fs::metadata(&real)?;
        if real.starts_with(&inside) && meta.is_file() {
            let executable = meta.permissions().mode() & 0o111 != 0;
            found.push(Found { relative: name.to_owned(), path: real, size: meta.len(), executable });
        }
    }
    Ok(())
}
