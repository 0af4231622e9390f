//! Directory trees in the store.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt as _, TryStreamExt as _};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check_with},
    execution::Directory,
};

use crate::{Remote, RemoteError, batches, is_small};

/// Maximum number of concurrent calls.
const IN_FLIGHT: usize = 4;

impl Remote {
    /// Returns a directory and all below it, by digest; reads one level of the tree at a time. Refuses a tree that
    /// references something outside of itself.
    pub async fn folders(&self, root: &BlobDigest) -> Result<HashMap<BlobDigest, Directory>, RemoteError> {
        let mut found = HashMap::new();
        let mut wanted = HashSet::from([*root]);
        while !wanted.is_empty() {
            let digests: Vec<BlobDigest> = wanted.drain().collect();
            for (digest, folder) in self.read_level(&digests).await? {
                for child in &folder.directories {
                    wanted.insert(self.digest_of(child.digest.as_ref(), &digest)?);
                }
                found.insert(digest, folder);
            }
            wanted.retain(|digest| !found.contains_key(digest));
        }
        Ok(found)
    }

    /// Returns the digest in an entry of `folder`.
    pub fn digest_of(
        &self,
        digest: Option<&reapi::execution::Digest>,
        folder: &BlobDigest,
    ) -> Result<BlobDigest, RemoteError> {
        let invalid = |why: String| RemoteError::Answer { what: format!("reading directory {folder}"), why };
        let digest = digest.ok_or_else(|| invalid("an entry has no digest".into()))?;
        from_proto(digest, self.function).map_err(|error| invalid(error.to_string()))
    }

    async fn read_level(&self, digests: &[BlobDigest]) -> Result<Vec<(BlobDigest, Directory)>, RemoteError> {
        let (empty, digests): (Vec<_>, Vec<_>) = digests.iter().partition(|digest| digest.is_empty_blob());
        let (small, large): (Vec<BlobDigest>, Vec<_>) = digests.into_iter().partition(is_small);
        let mut folders: Vec<_> = empty.into_iter().map(|digest| (digest, Directory::default())).collect();
        let read = futures::stream::iter(batches(&small).into_iter().map(|batch| async move {
            let contents = self.read_many(&batch).await?;
            let pairs = batch.iter().zip(contents);
            pairs.map(|(digest, content)| decode(digest, &content)).collect::<Result<Vec<_>, _>>()
        }));
        let read: Vec<Vec<_>> = read.buffer_unordered(IN_FLIGHT).try_collect().await?;
        folders.extend(read.into_iter().flatten());
        for digest in large {
            folders.push(decode(&digest, &self.read(&digest).await?)?);
        }
        Ok(folders)
    }
}

fn decode(digest: &BlobDigest, content: &[u8]) -> Result<(BlobDigest, Directory), RemoteError> {
    let wrong = |why: String| RemoteError::Answer { what: format!("reading directory {digest}"), why };
    let found = digest.function.digest(content);
    if found != *digest {
        return Err(wrong(format!("its digest is {found}")));
    }
    let folder =
        Directory::decode(content).map_err(|error| wrong(format!("{digest} is not a directory: {error}")))?;
    check_with(&folder, AbsoluteTargets::Allowed)
        .map_err(|error| wrong(format!("{digest} is not a valid directory: {error}")))?;
    Ok((*digest, folder))
}
