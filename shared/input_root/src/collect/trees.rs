//! Directories as messages: bottom up, each distinct one once, and the tree of them with parents first.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Write as _},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use invariant::{Present as _, impossible};
use model::{BlobDigest, DigestFunction};
use prost::encoding::{WireType, encode_key, encode_varint, message};
use reapi::{
    digest::to_proto,
    execution::{DirectoryNode, FileNode, NodeProperties, OutputDirectory},
};

use super::found::{FoundDir, FoundOutputs};
use crate::{CollectError, InputRoots, blocking::blocking, spec::Format};

/// Maximum bytes of directories that are held in memory; the rest goes to a file.
const HELD_BYTES: usize = 8 << 20;

/// Maximum size in bytes of a tree that is stored from memory.
const TREE_BYTES: u64 = 1 << 20;

/// Maximum bytes of directories passed to the store at once.
const BATCH_BYTES: usize = 4 << 20;

impl InputRoots {
    /// Stores the directories of one output, whose root comes first. Leaves the path empty.
    pub(super) async fn tree(
        &self,
        found: &Arc<FoundOutputs>,
        range: Range<usize>,
        format: Format,
        function: DigestFunction,
    ) -> Result<OutputDirectory, CollectError> {
        let (found, folder, number) = (Arc::clone(found), self.inner.config.root.clone(), self.next());
        let (with_tree, with_directories) = match format {
            Format::Tree => (true, false),
            Format::Directories => (false, true),
            Format::Both => (true, true),
        };
        let built = blocking(move || {
            let spill = folder.join(format!("tree-{number}"));
            let failed = CollectError::io("writing", spill.display().to_string());
            EncodedDirectories::build(&found, range, function, &spill)
                .and_then(|directories| {
                    let tree = if with_tree { Some(directories.tree(&spill)?) } else { None };
                    Ok((directories, tree))
                })
                .map_err(failed)
        });
        let (directories, tree) = built.await?;
        let cas = self.output_store();
        let mut output = OutputDirectory::default();
        match tree {
            Some(TreeBytes::Held(bytes)) => {
                output.tree_digest = Some(to_proto(&cas.put_bytes(function, bytes).await?));
            }
            Some(TreeBytes::Spilled(file)) => {
                output.tree_digest = Some(to_proto(&cas.put_file(function, &file.path, true).await?));
            }
            None => {}
        }
        output.is_topologically_sorted = output.tree_digest.is_some();
        if with_directories {
            output.root_directory_digest = directories.root().map(|digest| to_proto(&digest));
            self.put_directories(directories).await?;
        }
        Ok(output)
    }

    async fn put_directories(&self, directories: EncodedDirectories) -> Result<(), CollectError> {
        let directories = Arc::new(directories);
        let mut next = 0;
        while next < directories.distinct.len() {
            let from = Arc::clone(&directories);
            let (batch, end) = blocking(move || {
                from.batch(next).map_err(CollectError::io("reading back", "directories of an output"))
            })
            .await?;
            next = end;
            for stored in self.output_store().put_many(batch).await {
                stored?;
            }
        }
        Ok(())
    }
}

/// A file that is removed when dropped.
struct Spilled {
    path: PathBuf,
}

impl Drop for Spilled {
    fn drop(&mut self) {
        // The store may have moved it.
        let _ = std::fs::remove_file(&self.path);
    }
}

enum TreeBytes {
    Held(Bytes),
    Spilled(Spilled),
}

/// The distinct directories of an output, encoded; children before parents.
struct EncodedDirectories {
    distinct: Vec<(BlobDigest, u64)>,
    held: Vec<u8>,
    /// The overflow of `held`, which precedes it; the file has no name.
    spill: Option<File>,
    len: u64,
}

impl EncodedDirectories {
    fn build(
        found: &FoundOutputs,
        range: Range<usize>,
        function: DigestFunction,
        spill: &Path,
    ) -> io::Result<Self> {
        let mut directories = Self { distinct: Vec::new(), held: Vec::new(), spill: None, len: 0 };
        let start = range.start;
        let mut digests: Vec<Option<BlobDigest>> = vec![None; range.len()];
        let mut seen: HashSet<BlobDigest> = HashSet::new();
        let mut bytes = Vec::new();
        // Parents come before their children in the list, so that a backward walk meets every child first. A
        // directory is first met before any directory that contains it is first met.
        for number in range.rev() {
            let Some(dir) = found.dirs.get(number) else {
                impossible!("output directory {number} is not in the list");
                continue;
            };
            bytes.clear();
            encode(found, dir, |child| digests.get(child.checked_sub(start)?).copied().flatten(), &mut bytes);
            let digest = function.digest(&bytes);
            if let Some(known) = digests.get_mut(number - start) {
                *known = Some(digest);
            } else {
                impossible!("output directory {number} has no place for its digest");
            }
            if seen.insert(digest) {
                directories.push(digest, &bytes, spill)?;
            }
        }
        Ok(directories)
    }

    fn push(&mut self, digest: BlobDigest, bytes: &[u8], spill: &Path) -> io::Result<()> {
        self.distinct.push((digest, self.len));
        self.len += bytes.len() as u64;
        if self.spill.is_none() && self.held.len() + bytes.len() <= HELD_BYTES {
            self.held.extend_from_slice(bytes);
            return Ok(());
        }
        let file = match &mut self.spill {
            Some(file) => file,
            none => {
                let file = File::options().read(true).write(true).create_new(true).open(spill)?;
                std::fs::remove_file(spill)?;
                none.insert(file)
            }
        };
        file.write_all(bytes)
    }

    fn root(&self) -> Option<BlobDigest> {
        self.distinct.last().map(|(digest, _)| *digest)
    }

    fn read(&self, (digest, at): (BlobDigest, u64)) -> io::Result<Bytes> {
        let held = self.held.len() as u64;
        let len = usize::try_from(digest.size).map_err(io::Error::other)?;
        if at < held || len == 0 {
            let at = usize::try_from(at).map_err(io::Error::other)?;
            let bytes = self.held.get(at.min(self.held.len())..).and_then(|rest| rest.get(..len));
            return Ok(Bytes::copy_from_slice(bytes.present("an encoded directory in memory")));
        }
        let mut bytes = vec![0; len];
        if let Some(file) = &self.spill {
            file.read_exact_at(&mut bytes, at - held)?;
        } else {
            impossible!("directory {digest} is neither in memory nor in a file");
        }
        Ok(bytes.into())
    }

    /// Returns some directories from number `next` on, and the number after the last of them.
    fn batch(&self, next: usize) -> io::Result<(Vec<(BlobDigest, Bytes)>, usize)> {
        let (mut batch, mut size, mut end) = (Vec::new(), 0, next);
        for dir in self.distinct.get(next..).present("the next distinct directories") {
            let bytes = self.read(*dir)?;
            size += bytes.len();
            end += 1;
            batch.push((dir.0, bytes));
            if size >= BATCH_BYTES {
                break;
            }
        }
        Ok((batch, end))
    }

    /// Encodes the tree: the root first, then each directory after all that contain it.
    fn tree(&self, path: &Path) -> io::Result<TreeBytes> {
        if self.len + 16 * self.distinct.len() as u64 <= TREE_BYTES {
            let mut tree = Vec::new();
            self.write_tree(&mut tree)?;
            return Ok(TreeBytes::Held(tree.into()));
        }
        let spilled = Spilled { path: path.to_owned() };
        let mut file = io::BufWriter::with_capacity(1 << 20, File::create_new(path)?);
        self.write_tree(&mut file)?;
        file.flush()?;
        Ok(TreeBytes::Spilled(spilled))
    }

    fn write_tree(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut record = Vec::new();
        for (number, dir) in self.distinct.iter().rev().enumerate() {
            record.clear();
            encode_key(if number == 0 { 1 } else { 2 }, WireType::LengthDelimited, &mut record);
            encode_varint(dir.0.size, &mut record);
            to.write_all(&record)?;
            to.write_all(&self.read(*dir)?)?;
        }
        Ok(())
    }
}

/// Encodes a `Directory` node by node: a directory of 250,000 files is never held as a message.
fn encode(
    found: &FoundOutputs,
    dir: &FoundDir,
    digest_of: impl Fn(usize) -> Option<BlobDigest>,
    to: &mut Vec<u8>,
) {
    for file in found.files.get(dir.first..dir.end).present("the files of an output directory") {
        let node = FileNode {
            name: file.name.to_string(),
            digest: file.digest.as_ref().map(to_proto),
            is_executable: file.executable,
            node_properties: file.props.as_deref().cloned(),
        };
        message::encode(1, &node, to);
    }
    for (name, child) in &dir.dirs {
        let digest = digest_of(*child);
        if digest.is_none() {
            impossible!("output directory {name:?} is not encoded before its parent");
        }
        let node = DirectoryNode { name: name.to_string(), digest: digest.as_ref().map(to_proto) };
        message::encode(2, &node, to);
    }
    for node in &dir.links {
        message::encode(3, node, to);
    }
    if dir.mode.is_some() {
        let properties = NodeProperties { unix_mode: dir.mode, ..NodeProperties::default() };
        message::encode(5, &properties, to);
    }
}
