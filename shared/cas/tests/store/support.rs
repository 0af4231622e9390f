//! Helpers that the tests share.
use std::path::PathBuf;

use bytes::Bytes;
use cas::{Cas, CasConfig};
use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use prost::Message;
use reapi::execution::{Directory, DirectoryNode, FileNode};

pub(crate) const SHA: DigestFunction = DigestFunction::Sha256;

pub(crate) struct Store {
    pub(crate) cas: Cas,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn store() -> Store {
    store_with(|_| {})
}

pub(crate) fn store_with(change: impl FnOnce(&mut CasConfig)) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let cas = open(&folder, change);
    Store { cas, folder }
}

pub(crate) fn open(folder: &tempfile::TempDir, change: impl FnOnce(&mut CasConfig)) -> Cas {
    let mut config = CasConfig::new(folder.path().join("store"));
    change(&mut config);
    Cas::open(config).unwrap()
}

impl Store {
    /// Another process's view of the same folder.
    pub(crate) fn reopened(&self) -> Cas {
        open(&self.folder, |config| *config = self.cas.config().clone())
    }

    pub(crate) async fn keep(&self, content: impl Into<Bytes>) -> BlobDigest {
        self.cas.put_bytes(SHA, content.into()).await.unwrap()
    }

    pub(crate) async fn keep_message(&self, message: &impl Message) -> BlobDigest {
        self.keep(message.encode_to_vec()).await
    }

    /// The path of a blob's file.
    pub(crate) fn path(&self, digest: &BlobDigest) -> PathBuf {
        let hex = digest.hex();
        let name = format!("cas/{}/{}/{hex}-{}", digest.function, &hex[..2], digest.size);
        self.cas.config().root.join(name)
    }

    /// The files below a folder of the store.
    pub(crate) fn files(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.cas.config().root.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let list = if entry.path().is_dir() { &mut folders } else { &mut found };
                list.push(entry.path());
            }
        }
        found
    }
}

/// Content that does not repeat.
pub(crate) fn noise(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(length);
    content.into()
}

pub(crate) async fn read_all(
    cas: &Cas,
    digest: &BlobDigest,
    offset: u64,
    limit: Option<u64>,
) -> Option<Vec<u8>> {
    let pieces = cas.read(digest, offset, limit).await.unwrap()?;
    let pieces: Vec<Bytes> = pieces.try_collect().await.unwrap();
    assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= 512 << 10));
    Some(pieces.concat())
}

pub(crate) async fn write_in_pieces(cas: &Cas, content: &Bytes, piece: usize) -> BlobDigest {
    let digest = SHA.digest(content);
    let mut writer = cas.writer(digest).await.unwrap();
    let mut pieces = futures::stream::iter(content.chunks(piece).map(|chunk| content.slice_ref(chunk)));
    while let Some(piece) = pieces.next().await {
        writer.write(piece).await.unwrap();
    }
    assert_eq!(writer.written(), content.len() as u64);
    writer.finish().await.unwrap();
    digest
}

pub(crate) fn file(name: &str, digest: &BlobDigest) -> FileNode {
    FileNode {
        name: name.into(),
        digest: Some(reapi::digest::to_proto(digest)),
        is_executable: false,
        node_properties: None,
    }
}

pub(crate) fn folder(name: &str, digest: &BlobDigest) -> DirectoryNode {
    DirectoryNode { name: name.into(), digest: Some(reapi::digest::to_proto(digest)) }
}

pub(crate) fn directory(files: Vec<FileNode>, directories: Vec<DirectoryNode>) -> Directory {
    Directory { files, directories, ..Directory::default() }
}
