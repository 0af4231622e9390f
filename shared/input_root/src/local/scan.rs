//! Converts a folder to an input root.

use std::{
    collections::HashSet,
    fs::{self, FileType},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use globset::GlobMatcher;
use invariant::impossible;
use model::{BlobDigest, DigestFunction, FARM_DATA_MARK, read_glob};
use reapi::{
    canonical::encode,
    digest::to_proto,
    directory::AbsoluteTargets,
    execution::{Directory, DirectoryNode, FileNode, SymlinkNode},
};

use super::LocalError;

/// Number of threads that read and hash files.
const THREADS: usize = 4;

/// The location of a blob's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Bytes(Bytes),
}

/// The content of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Digest of the input root.
    pub root: BlobDigest,
    /// All blobs of the input root, each once.
    pub blobs: Vec<(BlobDigest, Source)>,
    /// Number of files found.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Reads a folder: everything that one of the patterns matches, and everything below matching directories. A pattern
/// that starts with `!` excludes its matches. Without patterns, nothing is read. The data folder of a farm below
/// `folder` is excluded: it changes while it is read.
///
/// `*` and `?` match within one name, `**` matches any number of directories. This function blocks.
pub fn scan(folder: &Path, patterns: &[String], function: DigestFunction) -> Result<Scanned, LocalError> {
    let mut patterns = Patterns::new(patterns)?;
    let mut found = Vec::new();
    let root = read(folder, "", false, &mut patterns, &mut found)?.unwrap_or_default();
    if let Some(pattern) = patterns.take.iter().find(|pattern| !pattern.matched) {
        let pattern = pattern.text.clone();
        return Err(LocalError::NoMatch { pattern, folder: folder.display().to_string() });
    }
    finish(root, found, function)
}

/// Hashes the files and encodes the folders.
pub(super) fn finish(
    root: Folder,
    found: Vec<PathBuf>,
    function: DigestFunction,
) -> Result<Scanned, LocalError> {
    let digests = hash_all(&found, function)?;
    let mut scanned =
        Scanned { root: function.empty(), blobs: Vec::new(), files: found.len() as u64, bytes: 0 };
    let mut seen = HashSet::new();
    for (path, digest) in found.into_iter().zip(&digests) {
        scanned.bytes += digest.size;
        if seen.insert(*digest) {
            scanned.blobs.push((*digest, Source::File(path)));
        }
    }
    scanned.root = messages(root, &digests, function, &mut seen, &mut scanned.blobs);
    Ok(scanned)
}

/// A folder whose files are not hashed yet. Entries of each kind are in the order of their names.
#[derive(Default)]
pub(super) struct Folder {
    /// Name, number among all files, and whether it is executable.
    files: Vec<(String, usize, bool)>,
    links: Vec<SymlinkNode>,
    pub(super) dirs: Vec<(String, Folder)>,
}

struct Patterns {
    take: Vec<Pattern>,
    leave: Vec<Pattern>,
}

struct Pattern {
    text: String,
    matcher: GlobMatcher,
    /// The names before the first one with a wildcard: only paths below these can match.
    start: String,
    matched: bool,
}

impl Patterns {
    fn new(given: &[String]) -> Result<Self, LocalError> {
        let mut patterns = Self { take: Vec::new(), leave: Vec::new() };
        for text in given {
            match text.strip_prefix('!') {
                Some(left) => patterns.leave.push(Pattern::new(left)?),
                None => patterns.take.push(Pattern::new(text)?),
            }
        }
        Ok(patterns)
    }

    fn takes(&mut self, path: &str) -> bool {
        let mut takes = false;
        for pattern in &mut self.take {
            if pattern.matcher.is_match(path) {
                (takes, pattern.matched) = (true, true);
            }
        }
        takes
    }

    fn leaves(&self, path: &str) -> bool {
        self.leave.iter().any(|pattern| pattern.matcher.is_match(path))
    }

    fn may_match_below(&self, path: &str) -> bool {
        self.take.iter().any(|pattern| is_below(&pattern.start, path) || is_below(path, &pattern.start))
    }
}

fn is_below(path: &str, of: &str) -> bool {
    of.is_empty() || path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Pattern {
    fn new(given: &str) -> Result<Self, LocalError> {
        let wrong = |why: String| LocalError::Pattern { pattern: given.into(), why };
        let text = given.trim_start_matches("./").trim_end_matches('/');
        if text.starts_with('/') || text.split('/').any(|name| name == "..") {
            return Err(wrong("it must be relative to the folder and stay within it".into()));
        }
        let text = if text == "." { "" } else { text };
        let matcher = read_glob(text).map_err(|error| wrong(error.to_string()))?.compile_matcher();
        let plain = text.split('/').take_while(|name| !name.contains(['*', '?', '[', '{', '\\']));
        let start = plain.collect::<Vec<_>>().join("/");
        Ok(Self { text: given.into(), matcher, start, matched: false })
    }
}

/// Reads a directory; `None` if nothing in it is wanted. `all`: everything in it is wanted.
fn read(
    path: &Path,
    place: &str,
    all: bool,
    patterns: &mut Patterns,
    found: &mut Vec<PathBuf>,
) -> Result<Option<Folder>, LocalError> {
    let all = all || patterns.takes(place);
    if !all && !patterns.may_match_below(place) {
        return Ok(None);
    }
    let failed = || LocalError::io("read folder", path);
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        entries.push((entry.file_name(), entry.file_type().map_err(failed())?));
    }
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut folder = Folder::default();
    for (name, kind) in entries {
        let path = path.join(&name);
        let Ok(name) = name.into_string() else {
            return Err(no_input(&path, "its name is not UTF-8"));
        };
        let place = if place.is_empty() { name.clone() } else { format!("{place}/{name}") };
        if patterns.leaves(&place) {
            continue;
        }
        if kind.is_dir() {
            if path.join(FARM_DATA_MARK).is_file() {
                continue;
            }
            if let Some(child) = read(&path, &place, all, patterns, found)? {
                folder.dirs.push((name, child));
            }
        } else if patterns.takes(&place) || all {
            folder.add((name, path, kind), AbsoluteTargets::Refused, found)?;
        }
    }
    let empty = folder.files.is_empty() && folder.links.is_empty() && folder.dirs.is_empty();
    Ok((all || !empty).then_some(folder))
}

impl Folder {
    /// Adds a file or symlink.
    pub(super) fn add(
        &mut self,
        (name, path, kind): (String, PathBuf, FileType),
        targets: AbsoluteTargets,
        found: &mut Vec<PathBuf>,
    ) -> Result<(), LocalError> {
        if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(LocalError::io("read symlink", &path))?;
            let Ok(target) = target.into_os_string().into_string() else {
                return Err(no_input(&path, "its target is not UTF-8"));
            };
            if targets == AbsoluteTargets::Refused && target.starts_with('/') {
                return Err(no_input(
                    &path,
                    "it is a symlink to an absolute path, which differs on other machines",
                ));
            }
            self.links.push(SymlinkNode { name, target, node_properties: None });
        } else if kind.is_file() {
            let meta = fs::metadata(&path).map_err(LocalError::io("read", &path))?;
            self.files.push((name, found.len(), meta.permissions().mode() & 0o111 != 0));
            found.push(path);
        } else {
            return Err(no_input(&path, "it is not a file, directory or symlink"));
        }
        Ok(())
    }
}

pub(super) fn no_input(path: &Path, why: &'static str) -> LocalError {
    LocalError::NoInput { path: path.display().to_string(), why }
}

fn hash_all(files: &[PathBuf], function: DigestFunction) -> Result<Vec<BlobDigest>, LocalError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(at) else { return Ok(done) };
            done.push((at, hashing::hash_file(path, function).map_err(LocalError::io("read", path))?));
        }
    };
    let mut digests = vec![function.empty(); files.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS.min(files.len())).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            for (at, digest) in done {
                if let Some(known) = digests.get_mut(at) {
                    *known = digest;
                } else {
                    impossible!("file {at} is hashed, but only {} are listed", files.len());
                }
            }
        }
        Ok(digests)
    })
}

/// Encodes the messages of a directory and all below it, children first. Returns its digest.
fn messages(
    folder: Folder,
    digests: &[BlobDigest],
    function: DigestFunction,
    seen: &mut HashSet<BlobDigest>,
    blobs: &mut Vec<(BlobDigest, Source)>,
) -> BlobDigest {
    let file = |(name, at, is_executable): (String, usize, bool)| FileNode {
        name,
        digest: digests.get(at).map(to_proto),
        is_executable,
        node_properties: None,
    };
    let mut directory = Directory {
        files: folder.files.into_iter().map(file).collect(),
        symlinks: folder.links,
        ..Directory::default()
    };
    for (name, child) in folder.dirs {
        let digest = messages(child, digests, function, seen, blobs);
        directory.directories.push(DirectoryNode { name, digest: Some(to_proto(&digest)) });
    }
    let (digest, bytes) = encode(&directory, function);
    if seen.insert(digest) {
        blobs.push((digest, Source::Bytes(bytes)));
    }
    digest
}
