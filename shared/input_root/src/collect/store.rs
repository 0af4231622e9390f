//! Stores the files of all outputs.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use cas::Given;
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};

use super::{
    Inputs,
    found::{FoundFile, FoundOutputs},
};
use crate::{CollectError, InputRoot, InputRoots, prepared_dir::Stamp};

/// Maximum number of files passed to the store at once.
const FILES_TOGETHER: usize = 2048;

impl InputRoots {
    /// Finds the digest of every file. Afterwards the store has all of them.
    pub(super) async fn store(
        &self,
        root: &InputRoot,
        found: &mut FoundOutputs,
        inputs: &Inputs,
        function: DigestFunction,
    ) -> Result<(), CollectError> {
        // A file is moved into the store only if it has one name; overlapping outputs contain the same file twice.
        let mut known: HashMap<u64, BlobDigest> = HashMap::new();
        let again = found.nodes.len() > 1 || found.files.iter().any(|file| file.shared);
        let mut next = 0;
        while next < found.files.len() {
            let end = (next + FILES_TOGETHER).min(found.files.len());
            for file in found.files.get_mut(next..end).present("the next output files") {
                file.digest = unchanged(file, inputs, function).or_else(|| known.get(&file.inode).copied());
            }
            if self.output_store().zone().is_some() {
                let next = found.files.get(next..end).present("the next output files");
                let inputs: Vec<BlobDigest> = next.iter().filter_map(|file| file.digest).collect();
                self.output_store().prove(&inputs).await?;
            }
            let mut new: HashMap<u64, BlobDigest> = HashMap::new();
            for take in [true, false] {
                let mut wanted = HashSet::new();
                let (mut inodes, mut paths) = (Vec::new(), Vec::new());
                for file in found.files.get(next..end).present("the next output files") {
                    // A file with extras is copied instead of moved, so that the extras do not reach the store.
                    if file.digest.is_none() && file.has_extras != take && wanted.insert(file.inode) {
                        inodes.push(file.inode);
                        paths.push(found.path_of(root.path(), file));
                    }
                }
                if !paths.is_empty() {
                    let given = match (root.is_watched, take) {
                        (true, _) => Given::Watched,
                        (false, true) => Given::Away,
                        (false, false) => Given::Lent,
                    };
                    let store = self.output_store();
                    let stored =
                        store.put_files_with_progress(function, paths, given, &Arc::default()).await.all()?;
                    new.extend(inodes.into_iter().zip(stored));
                }
            }
            for file in found.files.get_mut(next..end).present("the next output files") {
                file.digest = file.digest.or_else(|| new.get(&file.inode).copied());
            }
            if again {
                known.extend(new);
            }
            next = end;
        }
        Ok(())
    }
}

/// Returns the digest of a file that is an unchanged input.
fn unchanged(file: &FoundFile, inputs: &Inputs, function: DigestFunction) -> Option<BlobDigest> {
    let (digest, stamp) = inputs.get(&file.inode)?;
    let same = match stamp {
        // An action cannot change content, owner or mode of the store's own files.
        Stamp::Linked { .. } => file.shared && file.owner == rustix::process::geteuid().as_raw(),
        Stamp::Own { changed_at, .. } => *changed_at == file.changed_at,
    };
    (same && digest.function == function && digest.size == file.size).then_some(*digest)
}

impl FoundOutputs {
    fn path_of(&self, root: &Path, file: &FoundFile) -> PathBuf {
        match file.dir.and_then(|dir| self.dirs.get(dir)) {
            Some(dir) if dir.place.is_empty() => root.join(&*file.name),
            Some(dir) => root.join(&dir.place).join(&*file.name),
            None => root.join(&*file.name),
        }
    }
}
