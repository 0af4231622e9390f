//! The internal step `archive`: packs a file or folder into a tar archive, compressed with gzip if its name says so.
//!
//! Equal files give equal archives: times, users and the order of tasks have no effect on the bytes.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use flate2::{Compression, write::GzEncoder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;
use remote::Remote;
use tar::{Builder, EntryType, Header};

use crate::{
    blobs,
    cancel::Cancel,
    extract::leads_out,
    patience::Patience,
    task_error::TaskError,
    tree::{Content, FUNCTION, Node, join},
};

/// Ends of names of archives that are compressed with gzip.
const GZIP: [&str; 2] = [".gz", ".tgz"];
/// Size of the blocks that an archive consists of.
const BLOCK: u64 = 512;
/// Longest name that fits into the header of an entry.
const NAME_MAX: usize = 100;
/// Maximum number of concurrent fetches.
const FETCHES: usize = 8;

/// Local copies of files that only the farm's store has.
type Fetched = HashMap<BlobDigest, PathBuf>;

/// Packs `node`, which is called `name`, into an archive of at most `bytes_max` bytes before compression, which becomes
/// the file called `to`. The archive and the files that only the farm's store has are written into the new folder `folder`.
pub(crate) async fn pack(
    node: Node,
    (name, to): (&str, &str),
    folder: PathBuf,
    bytes_max: u64,
    (remote, patience): (&Remote, &Patience),
) -> Result<Node, TaskError> {
    node.check(name)?;
    tokio::fs::create_dir_all(&folder).await.map_err(|error| failed(name, &error))?;
    let cancel = Cancel::default();
    let packing = Packing {
        name: name.to_owned(),
        archive: folder.join("archive"),
        compressed: GZIP.iter().any(|end| to.ends_with(end)),
        bytes_max,
        cancelled: cancel.flag(),
    };
    let measured = blocking(name, {
        let (packing, node) = (packing.clone(), node.clone());
        move || packing.measure(&node)
    });
    let local: Fetched =
        measured.await?.into_iter().enumerate().map(|(at, it)| (it, folder.join(format!("{at}")))).collect();
    let fetches = local.clone().into_iter().map(|(digest, path)| async move {
        patience.patiently(|| blobs::fetch(remote, &digest, &path)).await
    });
    stream::iter(fetches).buffer_unordered(FETCHES).try_collect::<()>().await?;
    blocking(name, move || packing.write(&node, &local)).await
}

/// Runs work that blocks its thread.
async fn blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
) -> Result<T, TaskError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(name, &io::Error::other(error)))?
}

/// A failure of the worker's disk.
fn failed(name: &str, error: &io::Error) -> TaskError {
    TaskError::Farm(format!("packing {name} failed: {error}"))
}

#[derive(Clone)]
struct Packing {
    /// Path of the packed file or folder.
    name: String,
    archive: PathBuf,
    compressed: bool,
    bytes_max: u64,
    cancelled: Arc<AtomicBool>,
}

impl Packing {
    /// The files that only the farm's store has. Fails if the archive would be too large, or could not be unpacked.
    fn measure(&self, node: &Node) -> Result<Vec<BlobDigest>, TaskError> {
        let mut missing = HashSet::new();
        // The end of an archive is two blocks.
        let mut bytes = 2 * BLOCK;
        self.each_entry(node, &mut |place, node| {
            let mut length = place.len();
            let size = match node {
                Node::Folder(_) => {
                    // Its name ends in a slash.
                    length += 1;
                    0
                }
                Node::Link(target) if leads_out(place.split('/').count().saturating_sub(1), target) => {
                    let what = format!("symlink {place} leads out of the archive, to {target:?}");
                    return Err(TaskError::Own(format!("cannot pack {}: {what}", self.name)));
                }
                Node::Link(target) => name_bytes(target.len()),
                Node::File { content, .. } => {
                    if let Some(path) = content.path() {
                        open(path).map_err(|error| failed(&self.name, &error))?.1
                    } else {
                        let digest = content.digest()?;
                        missing.insert(digest);
                        digest.size
                    }
                }
            };
            bytes += BLOCK + size.next_multiple_of(BLOCK) + name_bytes(length);
            if bytes > self.bytes_max {
                let (name, most) = (&self.name, self.bytes_max);
                return Err(TaskError::Own(format!(
                    "the archive of {name} exceeds the limit of {most} bytes"
                )));
            }
            Ok(())
        })?;
        Ok(missing.into_iter().collect())
    }

    /// Writes the archive of `node`.
    fn write(&self, node: &Node, fetched: &Fetched) -> Result<Node, TaskError> {
        let ours = |error| failed(&self.name, &error);
        let file = File::create(&self.archive).map_err(ours)?;
        if self.compressed {
            let out = GzEncoder::new(file, Compression::default());
            self.write_entries(out, node, fetched)?.finish().map_err(ours)?;
        } else {
            self.write_entries(file, node, fetched)?;
        }
        for path in fetched.values() {
            std::fs::remove_file(path).map_err(ours)?;
        }
        let digest = hashing::hash_file(&self.archive, FUNCTION).map_err(ours)?;
        let content = Arc::new(Content::hashed(self.archive.clone(), digest));
        Ok(Node::File { content, executable: false })
    }

    fn write_entries<W: Write>(&self, out: W, node: &Node, fetched: &Fetched) -> Result<W, TaskError> {
        let ours = |error| failed(&self.name, &error);
        let mut tar = Builder::new(out);
        self.each_entry(node, &mut |place, node| {
            let mut header = Header::new_gnu();
            header.set_mtime(0);
            match node {
                Node::Folder(_) => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{place}/"), io::empty()).map_err(ours)
                }
                Node::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, place, &**target).map_err(ours)
                }
                Node::File { content, executable } => {
                    let near = content.path().or_else(|| fetched.get(&content.digest().ok()?));
                    let gone = || ours(io::Error::from(io::ErrorKind::NotFound));
                    let (file, size) = open(near.ok_or_else(gone)?).map_err(ours)?;
                    header.set_mode(if *executable { 0o755 } else { 0o644 });
                    header.set_size(size);
                    tar.append_data(&mut header, place, file.take(size)).map_err(ours)
                }
            }
        })?;
        tar.into_inner().map_err(ours)
    }

    /// Passes each entry with its path in the archive to `take`, folders before their content.
    fn each_entry(
        &self,
        node: &Node,
        take: &mut impl FnMut(&str, &Node) -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        let top = self.name.rsplit('/').next().unwrap_or(&self.name);
        self.each_below(node, top, take)
    }

    fn each_below(
        &self,
        node: &Node,
        place: &str,
        take: &mut impl FnMut(&str, &Node) -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(failed(&self.name, &io::ErrorKind::Interrupted.into()));
        }
        take(place, node)?;
        match node {
            Node::Folder(folder) => folder
                .entries()
                .iter()
                .try_for_each(|(name, below)| self.each_below(below, &join(place, name), take)),
            Node::File { .. } | Node::Link(_) => Ok(()),
        }
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = disk::open_file(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Bytes that a name of this length adds to an archive: long ones have an entry of their own.
fn name_bytes(length: usize) -> u64 {
    if length <= NAME_MAX { 0 } else { BLOCK + (length as u64 + 1).next_multiple_of(BLOCK) }
}

#[cfg(test)]
mod tests;
