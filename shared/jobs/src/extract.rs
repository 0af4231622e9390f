//! The internal step `extract`: unpacks a tar archive, uncompressed or compressed with gzip or zstd.
//!
//! No file is written to a path from the archive: the content of each file goes to a file of the worker, and its
//! name into a tree.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use archives::{DecompressError, EntryHeaders, decompress};
use hashing::CopyError;
use model::JobPath;
use remote::Remote;

use crate::{
    blobs,
    cancel::Cancel,
    patience::Patience,
    task_error::TaskError,
    tree::{Content, FUNCTION, Folder, Node, join},
};

/// Maximum number of entries of an archive.
const ENTRIES_MAX: u64 = 1_000_000;

/// The content of the archive `from`, which is called `name`. Its files are stored in the new folder `folder`;
/// together they may have at most `bytes_max` bytes.
pub(crate) async fn extract(
    from: &Node,
    name: &str,
    folder: PathBuf,
    bytes_max: u64,
    (remote, patience): (&Remote, &Patience),
) -> Result<Arc<Folder>, TaskError> {
    let Node::File { content, .. } = from else {
        return Err(TaskError::Own(format!("{name} is not an archive: it is a folder or a broken link")));
    };
    let ours = |error: io::Error| TaskError::Farm(format!("unpacking {name} failed: {error}"));
    tokio::fs::create_dir_all(&folder).await.map_err(ours)?;
    let archive = if let Some(path) = content.path() {
        path.clone()
    } else {
        let path = folder.join("archive");
        let digest = content.digest()?;
        patience.patiently(|| blobs::fetch(remote, &digest, &path)).await?;
        path
    };
    let cancel = Cancel::default();
    let cancelled = cancel.flag();
    let work = move || Unpacking { folder, bytes_left: bytes_max, files: 0, cancelled }.run(&archive);
    let done = tokio::task::spawn_blocking(work).await;
    drop(cancel);
    match done {
        Ok(Ok(unpacked)) => Ok(unpacked),
        Ok(Err(UnpackError::Archive(why))) => Err(TaskError::Own(format!("cannot unpack {name}: {why}"))),
        Ok(Err(UnpackError::Disk(error))) => Err(ours(error)),
        Err(panicked) => Err(ours(io::Error::other(panicked))),
    }
}

/// Unpacks an archive as the step does; for the tests of parsers.
#[doc(hidden)]
pub fn unpack(archive: &Path, folder: PathBuf, bytes_left: u64) -> Result<(), String> {
    let unpacking = Unpacking { folder, bytes_left, files: 0, cancelled: Arc::default() };
    unpacking.run(archive).map(drop).map_err(|error| match error {
        UnpackError::Archive(why) => why,
        UnpackError::Disk(error) => error.to_string(),
    })
}

enum UnpackError {
    /// The archive or its content is at fault.
    Archive(String),
    /// The worker's disk failed.
    Disk(io::Error),
}

impl UnpackError {
    fn archive(why: impl Into<String>) -> Self {
        Self::Archive(why.into())
    }

    fn unreadable(error: &io::Error) -> Self {
        Self::Archive(format!("it is damaged or not a tar archive: {error}"))
    }
}

struct Unpacking {
    folder: PathBuf,
    bytes_left: u64,
    files: u64,
    cancelled: Arc<AtomicBool>,
}

impl Unpacking {
    fn run(mut self, archive: &Path) -> Result<Arc<Folder>, UnpackError> {
        let mut archive = tar::Archive::new(open(archive)?);
        let entries = archive.entries().map_err(|error| UnpackError::unreadable(&error))?.raw(true);
        let mut root = Arc::default();
        let mut headers = EntryHeaders::default();
        for (count, entry) in (1..).zip(entries) {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(UnpackError::Disk(io::ErrorKind::Interrupted.into()));
            }
            if count > ENTRIES_MAX {
                return Err(UnpackError::Archive(format!("it has more than {ENTRIES_MAX} entries")));
            }
            let mut entry = entry.map_err(|error| UnpackError::unreadable(&error))?;
            let is_header =
                headers.read(&mut entry).map_err(|error| UnpackError::Archive(error.to_string()))?;
            if !is_header {
                self.add_entry(&mut root, &mut entry, std::mem::take(&mut headers))?;
            }
        }
        Ok(root)
    }

    fn add_entry(
        &mut self,
        root: &mut Arc<Folder>,
        entry: &mut tar::Entry<'_, impl Read>,
        headers: EntryHeaders,
    ) -> Result<(), UnpackError> {
        let name = headers.path.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let name = String::from_utf8(name).map_err(|_| UnpackError::archive("a name in it is not UTF-8"))?;
        let path =
            JobPath::parse(&name).map_err(|bad| UnpackError::Archive(format!("entry {name:?}: {bad}")))?;
        let link = || {
            let own = entry.header().link_name_bytes().map(std::borrow::Cow::into_owned);
            let target = headers.link.clone().or(own).unwrap_or_default();
            String::from_utf8(target).map_err(|_| UnpackError::archive("a target in it is not UTF-8"))
        };
        let kind = entry.header().entry_type();
        // The oldest format stores folders as files whose names end in a slash.
        let node = if kind.is_dir() || (kind.is_file() && name.ends_with('/')) {
            Node::Folder(Arc::default())
        } else if kind.is_file() || kind.is_contiguous() {
            let mode = entry.header().mode().map_err(|error| UnpackError::unreadable(&error))?;
            Node::File { content: Arc::new(self.content(&name, entry)?), executable: mode & 0o111 != 0 }
        } else if kind.is_symlink() {
            symlink(&path, link()?)?
        } else if kind.is_hard_link() {
            let target = link()?;
            let there = JobPath::parse(&target).ok().and_then(|target| root.at(target.as_str()).cloned());
            there.filter(|node| matches!(node, Node::File { .. })).ok_or_else(|| {
                UnpackError::Archive(format!(
                    "{name:?} is a link to {target:?}, which is not an earlier file"
                ))
            })?
        } else {
            return Err(UnpackError::Archive(format!(
                "{name:?} is neither a file nor a folder nor a link: {kind:?}"
            )));
        };
        if path.is_workspace() {
            return Ok(());
        }
        check_folders(root, &path, &name)?;
        Folder::insert_at(root, path.as_str(), node);
        Ok(())
    }

    /// Copies the content of an entry into a file of the worker.
    fn content(&mut self, name: &str, entry: &mut impl Read) -> Result<Content, UnpackError> {
        let path = self.folder.join(format!("{}", self.files));
        self.files += 1;
        let file = File::create(&path).map_err(UnpackError::Disk)?;
        let limited = entry.take(self.bytes_left.saturating_add(1));
        let copied = hashing::copy_reader(limited, file, FUNCTION);
        let digest = copied.map_err(|error| match error {
            CopyError::Read(error) => UnpackError::unreadable(&error),
            CopyError::Write(error) => UnpackError::Disk(error),
        })?;
        self.bytes_left = self.bytes_left.checked_sub(digest.size).ok_or_else(|| {
            UnpackError::Archive(format!("it holds more bytes than a step may unpack, at {name:?}"))
        })?;
        Ok(Content::hashed(path, digest))
    }
}

/// Opens an archive, decompressing it if necessary.
fn open(path: &Path) -> Result<Box<dyn Read>, UnpackError> {
    let file = disk::open_file(path).map_err(|error| UnpackError::unreadable(&error))?;
    decompress(file).map_err(|error| match error {
        DecompressError::Unreadable(error) => UnpackError::unreadable(&error),
        DecompressError::Unsupported => {
            UnpackError::Archive(format!("{error}: run tar in a command task instead"))
        }
    })
}

/// A symlink whose target does not leave the archive.
fn symlink(path: &JobPath, target: String) -> Result<Node, UnpackError> {
    let leaves = || UnpackError::Archive(format!("symlink {path} leads out of the archive, to {target:?}"));
    let depth = path.names().count().saturating_sub(1);
    if leads_out(depth, &target) { Err(leaves()) } else { Ok(Node::Link(target.into())) }
}

/// Whether the target of a symlink, which lies below `depth` folders of an archive, is outside of it.
pub(crate) fn leads_out(mut depth: usize, target: &str) -> bool {
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return true;
    }
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Checks that no parent of `path` is a file or symlink.
fn check_folders(root: &Folder, path: &JobPath, name: &str) -> Result<(), UnpackError> {
    let Some((folder, _)) = path.as_str().rsplit_once('/') else { return Ok(()) };
    let mut place = String::new();
    for part in folder.split('/') {
        place = join(&place, part);
        match root.at(&place) {
            None => return Ok(()),
            Some(Node::Folder(_)) => {}
            Some(Node::File { .. } | Node::Link(_)) => {
                return Err(UnpackError::Archive(format!(
                    "{name:?} is below {place:?}, which is not a folder"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
