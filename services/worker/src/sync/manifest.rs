//! The list of entries brought from a source, with their state there and in the target.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use model::BlobDigest;

/// A file changed within this time may change again without a new time: file systems count in steps, some in seconds.
const TOO_FRESH: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Link,
    Other,
}

impl Kind {
    pub(crate) fn of(meta: &fs::Metadata) -> Self {
        let kind = meta.file_type();
        if kind.is_file() {
            Self::File
        } else if kind.is_dir() {
            Self::Folder
        } else if kind.is_symlink() {
            Self::Link
        } else {
            Self::Other
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Self::File => "f",
            Self::Folder => "d",
            Self::Link => "l",
            Self::Other => "o",
        }
    }
}

/// Identifies the state of a file; times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) modified: i128,
    /// Status change time: changes with the content, name or mode, even if the modification time is set back.
    changed: i128,
    inode: u64,
}

impl Stamp {
    /// The stamp of `meta` as it is now. A later change within the same clock tick is not detected: use it for files
    /// that a build gets once their content is final.
    pub(crate) fn now(meta: &fs::Metadata) -> Self {
        Self {
            size: meta.len(),
            modified: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            changed: nanoseconds(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        }
    }

    /// The stamp of `meta`, unless the file could still change undetected.
    pub(crate) fn of(meta: &fs::Metadata, now: SystemTime) -> Option<Self> {
        let stamp = Self::now(meta);
        let settled = now.checked_sub(TOO_FRESH)?.duration_since(UNIX_EPOCH).ok()?;
        (stamp.changed < i128::try_from(settled.as_nanos()).ok()?).then_some(stamp)
    }

    fn write(stamp: Option<&Self>, out: &mut impl io::Write) -> io::Result<()> {
        match stamp {
            Some(Self { size, modified, changed, inode }) => {
                write!(out, "{size}:{modified}:{changed}:{inode} ")
            }
            None => out.write_all(b"- "),
        }
    }

    /// Parses a stamp; `None` for an absent one.
    fn read(text: &str) -> Result<Option<Self>, Garbled> {
        match numbers(text).ok_or(Garbled)?.as_slice() {
            [] => Ok(None),
            &[size, modified, changed, inode] => {
                let size = u64::try_from(size).map_err(|_| Garbled)?;
                let inode = u64::try_from(inode).map_err(|_| Garbled)?;
                Ok(Some(Self { size, modified, changed, inode }))
            }
            _ => Err(Garbled),
        }
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// The text is not a valid stamp or digest.
struct Garbled;

/// Identifies the content of a file in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// State of the file, in a folder.
    Stamp(Stamp),
    /// Digest of the content, in a store.
    Digest(BlobDigest),
}

impl Version {
    fn write(version: Option<&Self>, out: &mut impl io::Write) -> io::Result<()> {
        match version {
            Some(Self::Digest(digest)) => write!(out, "{digest} "),
            Some(Self::Stamp(stamp)) => Stamp::write(Some(stamp), out),
            None => Stamp::write(None, out),
        }
    }

    /// Parses a version; `None` for an absent one. Only a digest contains a slash.
    fn read(text: &str) -> Result<Option<Self>, Garbled> {
        if text.contains('/') {
            return text.parse().map(|digest| Some(Self::Digest(digest))).map_err(|_| Garbled);
        }
        Ok(Stamp::read(text)?.map(Self::Stamp))
    }
}

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// The file in the source; absent if nothing proves that its content is the same later.
    pub(crate) source: Option<Version>,
    /// The copy in the target.
    pub(crate) target: Option<Stamp>,
}

impl Entry {
    /// Whether neither the source nor the copy has changed.
    pub(crate) fn is_unchanged(&self, source: &Self, there: Option<&fs::Metadata>) -> bool {
        let there = there.filter(|meta| meta.is_file()).map(Stamp::now);
        self.kind == source.kind
            && self.source.is_some()
            && self.source == source.source
            && self.target.is_some()
            && self.target == there
    }

    fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "{} ", self.kind.letter())?;
        Version::write(self.source.as_ref(), out)?;
        Stamp::write(self.target.as_ref(), out)
    }

    fn read(line: &[u8]) -> Option<(PathBuf, Self)> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let mut next = || std::str::from_utf8(fields.next()?).ok();
        let kind = match next()? {
            "f" => Kind::File,
            "d" => Kind::Folder,
            "l" => Kind::Link,
            "o" => Kind::Other,
            _ => return None,
        };
        let (source, target) = (next()?, next()?);
        let path = PathBuf::from(OsStr::from_bytes(fields.next()?));
        let (source, target) = (Version::read(source).ok()?, Stamp::read(target).ok()?);
        Some((path, Self { kind, source, target }))
    }
}

/// Parses numbers separated by colons; a dash means none.
fn numbers(text: &str) -> Option<Vec<i128>> {
    if text == "-" { Some(Vec::new()) } else { text.split(':').map(|number| number.parse().ok()).collect() }
}

/// The entries brought from a source, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest(pub(crate) BTreeMap<PathBuf, Entry>);

impl Manifest {
    pub(crate) fn load(file: &Path) -> io::Result<Self> {
        let bytes = fs::read(file)?;
        let lines = bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        let entries: Option<BTreeMap<_, _>> = lines.map(Entry::read).collect();
        entries
            .map(Self)
            .ok_or_else(|| io::Error::other("cannot read the list of entries from the last sync"))
    }

    /// Writes the list. It needs no atomic replacement: if the worker dies here, the workspace is discarded as well.
    pub(crate) fn save(&self, file: &Path) -> io::Result<()> {
        let mut out = io::BufWriter::new(fs::File::create(file)?);
        for (path, entry) in &self.0 {
            entry.write(&mut out)?;
            out.write_all(path.as_os_str().as_bytes())?;
            out.write_all(&[0])?;
        }
        out.flush()
    }
}
