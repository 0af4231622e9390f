//! Keeping the files that a build's globs match.

use std::{
    fs::FileType,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use model::{OutputFile, OutputNotKept, Reason, ReasonCode};
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

/// Left out outputs that are named.
const NAMED_MAX: usize = 100;

/// What became of a build's outputs.
#[derive(Default)]
pub(crate) struct Outputs {
    /// Those that are kept, sorted by path.
    pub(crate) files: Vec<OutputFile>,
    /// The globs that none of these matches.
    pub(crate) missing: Vec<String>,
    /// What matched and is left out, the first by path, and how much that is.
    pub(crate) not_kept: Vec<OutputNotKept>,
    pub(crate) not_kept_count: u64,
}

/// Keeps what `patterns` match under `root`.
pub(crate) async fn keep(
    store: &Store,
    root: &Path,
    patterns: &[String],
    size_max: u64,
) -> Result<Outputs, Reason> {
    if patterns.is_empty() {
        return Ok(Outputs::default());
    }
    let globs = compile(patterns)?;
    let folder = root.to_owned();
    let walked = tokio::task::spawn_blocking(move || {
        let mut walk = Walk { root: &folder, globs: &globs, found: Vec::new(), left_out: Vec::new() };
        walk.folder(&folder).map(|()| (walk.found, walk.left_out))
    });
    let lost = |error: &dyn std::fmt::Display| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("the outputs cannot be looked for: {error}"),
    };
    let (mut found, mut not_kept) =
        walked.await.map_err(|error| lost(&error))?.map_err(|error| lost(&error))?;
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    not_kept.sort_by(|a, b| a.path.cmp(&b.path));
    let not_kept_count = not_kept.len() as u64;
    not_kept.truncate(NAMED_MAX);
    let listed: usize = found.iter().map(|file| file.relative.len() + ENTRY_BYTES).sum();
    if listed > LIST_BYTES_MAX {
        let message = format!(
            "the outputs are {} files, whose list alone takes {listed} bytes, at most {LIST_BYTES_MAX} are kept: keep an \
             archive of them instead",
            found.len()
        );
        return Err(Reason { code: ReasonCode::OutputNotKept, message });
    }
    let missing = missing(patterns, &found)?;
    let mut files = Vec::with_capacity(found.len());
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
        files.push(OutputFile { path: file.relative, digest, size_bytes, executable: file.executable });
    }
    Ok(Outputs { files, missing, not_kept, not_kept_count })
}

/// The patterns that no file matches.
fn missing(patterns: &[String], found: &[Found]) -> Result<Vec<String>, Reason> {
    let globs = compile(patterns)?;
    let mut made = vec![false; patterns.len()];
    for file in found {
        if made.iter().all(|made| *made) {
            break;
        }
        for index in globs.matches(&file.relative) {
            if let Some(made) = made.get_mut(index) {
                *made = true;
            }
        }
    }
    Ok(patterns.iter().zip(made).filter(|(_, made)| !made).map(|(pattern, _)| pattern.clone()).collect())
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

struct Walk<'a> {
    root: &'a Path,
    globs: &'a GlobSet,
    found: Vec<Found>,
    left_out: Vec<OutputNotKept>,
}

impl Walk<'_> {
    /// Files only, and no link out of the workspace: what a link points to is kept if it is a file inside.
    fn folder(&mut self, folder: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.folder(&path)?;
                continue;
            }
            let Ok(relative) = path.strip_prefix(self.root) else { continue };
            if !self.globs.is_match(relative) {
                continue;
            }
            match self.file(&path, relative, kind) {
                Ok(found) => self.found.push(found),
                Err(reason) => {
                    let path = relative.to_string_lossy().into_owned();
                    self.left_out.push(OutputNotKept { path, reason: reason.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// What is to be kept, or why it cannot be.
    fn file(&self, path: &Path, relative: &Path, kind: FileType) -> Result<Found, &'static str> {
        // A client could not ask for it.
        let name = relative.to_str().ok_or("its name is not UTF-8")?;
        if !kind.is_file() && !kind.is_symlink() {
            return Err("it is a pipe, a socket or a device");
        }
        let real = path.canonicalize().map_err(|_| "it is a link that leads nowhere")?;
        let inside = self.root.canonicalize().map_err(|_| "the workspace is gone")?;
        if !real.starts_with(&inside) {
            return Err("it is a link that leads out of the workspace");
        }
        let meta = std::fs::metadata(&real).map_err(|_| "it cannot be looked at")?;
        if !meta.is_file() {
            return Err("it is a link to something that is not a file");
        }
        let executable = meta.permissions().mode() & 0o111 != 0;
        Ok(Found { relative: name.to_owned(), path: real, size: meta.len(), executable })
    }
}
