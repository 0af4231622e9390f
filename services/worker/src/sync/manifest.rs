//! The list of what came from a source, as it was and as it became.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A file changed so lately may change again without another time: file systems count in steps, some in seconds.
const TOO_FRESH: Duration = Duration::from_secs(2);

/// What an entry is.
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

/// By what a file is known not to have changed; times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) modified: i128,
    /// Moves with every change of content, name or rights, whatever the time of modification is set to.
    changed: i128,
    inode: u64,
}

impl Stamp {
    /// That of `meta` as it is now. A later change within the same step of the clock is not seen: for files that a build
    /// gets once they are settled.
    pub(crate) fn now(meta: &fs::Metadata) -> Self {
        Self {
            size: meta.len(),
            modified: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            changed: nanoseconds(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        }
    }

    /// That of `meta`, unless it could change unseen.
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

    /// What was written, or that it is something else.
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

/// What was read is not a stamp.
struct Garbled;

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// The file in the source; absent where that says nothing.
    pub(crate) source: Option<Stamp>,
    /// Its copy.
    pub(crate) target: Option<Stamp>,
}

impl Entry {
    /// Whether the source is as it was, and the copy too.
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
        Stamp::write(self.source.as_ref(), out)?;
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
        let (source, target) = (Stamp::read(source).ok()?, Stamp::read(target).ok()?);
        Some((path, Self { kind, source, target }))
    }
}

/// Numbers with colons between them; none for a dash.
fn numbers(text: &str) -> Option<Vec<i128>> {
    if text == "-" { Some(Vec::new()) } else { text.split(':').map(|number| number.parse().ok()).collect() }
}

/// What came from a source, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest(pub(crate) BTreeMap<PathBuf, Entry>);

impl Manifest {
    /// Reads it.
    pub(crate) fn load(file: &Path) -> io::Result<Self> {
        let bytes = fs::read(file)?;
        let lines = bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        let entries: Option<BTreeMap<_, _>> = lines.map(Entry::read).collect();
        entries.map(Self).ok_or_else(|| io::Error::other("the list of the last content cannot be read"))
    }

    /// Writes it. Only a whole one counts: whoever dies here takes the workspace along.
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
