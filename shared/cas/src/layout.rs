//! Layout of the folder of a store.
//!
//! ```text
//! cas/<function>/<2 hex>/<hash>-<size>     blobs, mode 0444
//! cas-x/<function>/<2 hex>/<hash>-<size>   executable twins, mode 0555: the mode belongs to the inode
//! ac/<function>/<2 hex>/<hash>             action results
//! splits/<function>/<2 hex>/<hash>-<size>  chunk lists of blobs
//! tmp/                                     files being written (small files: .tmp-* in their final folder)
//! trash/                                   files being evicted
//! zones/<zone>/<function>/<2 hex>/<hash>-<size>   empty: the zone has proved to have the blob
//! kept/<day>/cas/<function>/<2 hex>/…      hard links to blobs that records name until that day, counted from 1970-01-01
//! ```

use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction, Zone};

/// Permissions of a file in the store: read-only.
pub(crate) const BLOB_MODE: u32 = 0o444;
/// Name of the file or object that contains the id of the store.
pub const ID_NAME: &str = "store-id";
/// Prefix of the names of files that are written in their final folder.
pub(crate) const TEMP_PREFIX: &str = ".tmp-";

/// Name of the folder with the marks of zones.
pub(crate) const ZONES: &str = "zones";

/// The place of the mark that a zone has a blob, below the root; also its key in an object store.
pub(crate) fn mark_place(zone: &Zone, blob: &BlobDigest) -> String {
    let place = Entry::blob(*blob).relative_path();
    format!("{ZONES}/{zone}/{}", place.strip_prefix("cas/").unwrap_or(&place))
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Blob,
    Executable,
    Action,
    Split,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Blob, Self::Executable, Self::Action, Self::Split];

    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Blob => "cas",
            Self::Executable => "cas-x",
            Self::Action => "ac",
            Self::Split => "splits",
        }
    }
}

/// One file of the store. An action result has its key in place of the hash, and no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) digest: BlobDigest,
}

impl Entry {
    pub(crate) fn blob(digest: BlobDigest) -> Self {
        Self { kind: Kind::Blob, digest }
    }

    pub(crate) fn twin(digest: BlobDigest) -> Self {
        Self { kind: Kind::Executable, digest }
    }

    /// The file with the chunks of a blob, as the zone has them.
    pub(crate) fn split(zone: Option<&Zone>, digest: BlobDigest) -> Self {
        let Some(zone) = zone.filter(|zone| !zone.is_default()) else {
            return Self { kind: Kind::Split, digest };
        };
        let key = [zone.as_str().as_bytes(), &[0], &digest.hash].concat();
        let hash = DigestFunction::Sha256.digest(&key).hash;
        Self { kind: Kind::Split, digest: BlobDigest { hash, ..digest } }
    }

    /// The file of the result of `action` in `instance`, as the zone has it.
    pub(crate) fn action(zone: Option<&Zone>, instance: &str, action: &BlobDigest) -> Self {
        let mut key = Vec::with_capacity(instance.len() + 41);
        // A farm that gets zones has its earlier results in the default zone. No instance name begins with this byte.
        if let Some(zone) = zone.filter(|zone| !zone.is_default()) {
            key.push(0);
            key.extend_from_slice(zone.as_str().as_bytes());
            key.push(0);
        }
        key.extend_from_slice(instance.as_bytes());
        key.push(0);
        key.extend_from_slice(&action.hash);
        key.extend_from_slice(&action.size.to_be_bytes());
        let hash = DigestFunction::Sha256.digest(&key).hash;
        Self { kind: Kind::Action, digest: BlobDigest { function: action.function, hash, size: 0 } }
    }

    /// Whether the length of a file matches its name.
    pub(crate) fn fits(&self, length: u64) -> bool {
        match self.kind {
            Kind::Blob | Kind::Executable => length == self.digest.size,
            Kind::Action | Kind::Split => length > 0,
        }
    }

    /// Its path below the root, which is also its key in an object store.
    pub(crate) fn relative_path(&self) -> String {
        let mut text = String::with_capacity(112);
        let hex = self.digest.hex();
        let shard = hex.get(..2).present("the first two digits of a digest");
        // Writing to a string cannot fail.
        let _ = write!(text, "{}/{}/{shard}/{hex}", self.kind.folder(), self.digest.function.as_str());
        self.push_size(&mut text);
        text
    }

    fn push_size(&self, text: &mut String) {
        match self.kind {
            Kind::Blob | Kind::Executable | Kind::Split => {
                // Writing to a string cannot fail.
                let _ = write!(text, "-{}", self.digest.size);
            }
            Kind::Action => {}
        }
    }

    fn trash_name(&self) -> String {
        let function = self.digest.function.as_str();
        let mut text = format!("{}.{function}.{}", self.kind.folder(), self.digest.hex());
        self.push_size(&mut text);
        text
    }

    /// Parses the name of a file of `kind` and `function`; `None` if it is not a file of the store.
    pub(crate) fn parse(kind: Kind, function: DigestFunction, name: &str) -> Option<Self> {
        let (hash, size) = match kind {
            Kind::Blob | Kind::Executable | Kind::Split => {
                let (hash, size) = name.split_once('-')?;
                (hash, size.parse().ok()?)
            }
            Kind::Action => (name, 0),
        };
        let digest = BlobDigest::from_parts(function, hash, size).ok()?;
        Some(Self { kind, digest })
    }

    /// Parses the name of a file in the trash.
    pub(crate) fn parse_trash(name: &str) -> Option<Self> {
        let (folder, rest) = name.split_once('.')?;
        let (function, rest) = rest.split_once('.')?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.folder() == folder)?;
        let function = DigestFunction::ALL.into_iter().find(|f| f.as_str() == function)?;
        Self::parse(kind, function, rest)
    }
}

#[derive(Debug)]
pub(crate) struct Layout {
    root: PathBuf,
    writer: String,
    next: AtomicU64,
}

impl Layout {
    /// Creates the folders that do not exist.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        for folder in Kind::ALL.map(Kind::folder).into_iter().chain(["tmp", "trash", "kept"]) {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let writer = uuid::Uuid::new_v4().simple().to_string();
        Ok(Self { root: root.to_owned(), writer, next: AtomicU64::new(0) })
    }

    pub(crate) fn path(&self, entry: &Entry) -> PathBuf {
        self.root.join(entry.relative_path())
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Where the evictor of the folder has the one mark that it is removing.
    pub(crate) fn trashed_mark(&self) -> PathBuf {
        self.trash().join("mark")
    }

    pub(crate) fn trash_path(&self, entry: &Entry) -> PathBuf {
        let mut path = self.trash();
        path.push(entry.trash_name());
        path
    }

    /// The folder with a folder for each day until which blobs are kept.
    pub(crate) fn kept(&self) -> PathBuf {
        self.root.join("kept")
    }

    pub(crate) fn kept_path(&self, day: u64, entry: &Entry) -> PathBuf {
        self.kept().join(day.to_string()).join(entry.relative_path())
    }

    pub(crate) fn temps(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Returns an unused path in `tmp/`.
    pub(crate) fn temp_path(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join(format!("tmp/{}-{number}", self.writer))
    }

    /// Returns an unused path in the folder of `entry`: renaming within a folder is cheaper.
    pub(crate) fn temp_path_beside(&self, entry: &Entry) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut path = self.path(entry);
        path.set_file_name(format!("{TEMP_PREFIX}{}-{number}", self.writer));
        path
    }

    /// The folder with a folder for each zone.
    pub(crate) fn zones(&self) -> PathBuf {
        self.root.join(ZONES)
    }

    pub(crate) fn mark_path(&self, zone: &Zone, blob: &BlobDigest) -> PathBuf {
        self.root.join(mark_place(zone, blob))
    }

    /// The folders of two hex digits that contain the files of `kind` and `function`.
    pub(crate) fn shards(&self, kind: Kind, function: DigestFunction) -> impl Iterator<Item = PathBuf> {
        let folder = self.root.join(kind.folder()).join(function.as_str());
        (0..256).map(move |shard| folder.join(format!("{shard:02x}")))
    }

    pub(crate) fn lock_path(&self) -> PathBuf {
        self.root.join("evictor.lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_read_back(hash in any::<[u8; 32]>(), size in 0..i64::MAX as u64, blake in any::<bool>(), kind in 0_usize..4) {
            let function = if blake { DigestFunction::Blake3 } else { DigestFunction::Sha256 };
            let kind = Kind::ALL[kind];
            let size = if kind == Kind::Action { 0 } else { size };
            let entry = Entry { kind, digest: BlobDigest { function, hash, size } };
            let place = entry.relative_path();
            let name = place.rsplit('/').next().unwrap();
            prop_assert_eq!(Entry::parse(kind, function, name), Some(entry));
            prop_assert_eq!(Entry::parse_trash(&entry.trash_name()), Some(entry));
        }

        #[test]
        fn foreign_names_are_not_ours(name in "\\PC{0,80}") {
            for kind in [Kind::Blob, Kind::Split] {
                if let Some(entry) = Entry::parse(kind, DigestFunction::Sha256, &name) {
                    prop_assert!(name.starts_with(&entry.digest.hex()));
                }
            }
            let _ = Entry::parse_trash(&name);
        }
    }

    #[test]
    fn results_of_different_instances_lie_apart() {
        let action = DigestFunction::Sha256.digest(b"action");
        assert_ne!(Entry::action(None, "a", &action), Entry::action(None, "b", &action));
        assert_ne!(Entry::action(None, "", &action), Entry::action(None, "a", &action));
        let of = |zone: &str, instance| Entry::action(Some(&zone.parse().unwrap()), instance, &action);
        assert_eq!(of("default", "a"), Entry::action(None, "a", &action));
        assert_ne!(of("a", ""), Entry::action(None, "a", &action));
        assert_ne!(of("a", "b"), of("b", "a"));
        assert_ne!(of("a", "b"), of("ab", ""));
    }
}
