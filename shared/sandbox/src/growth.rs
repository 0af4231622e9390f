//! Measures the growth of a folder: files and bytes that were added.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The state of a folder before a run.
#[derive(Debug)]
pub(crate) struct FolderState {
    root: PathBuf,
    /// The length of each file; folders and links have none.
    known: HashMap<Identity, u64>,
    /// Total number of their names.
    names: u64,
    /// Paths that are created later and do not count.
    aside: Vec<PathBuf>,
}

/// An inode number is reused when it is free; the creation time, if it is known, distinguishes the files.
type Identity = (u64, Option<SystemTime>);

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.ino(), metadata.created().ok())
}

/// The amount added since a folder was scanned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Bytes of new files, and the growth of existing ones. Removals do not compensate for additions.
    pub(crate) bytes: u64,
    /// Number of files, folders and links.
    pub(crate) files: u64,
}

impl Growth {
    /// For a folder nested too deeply to scan: more than any limit allows.
    const UNMEASURABLE: Self = Self { bytes: u64::MAX, files: u64::MAX };

    fn exceeds(self, most: Self) -> bool {
        self.bytes > most.bytes || self.files > most.files
    }
}

impl FolderState {
    /// Scans the current state. Paths in `aside` will be created and do not count.
    pub(crate) fn scan(root: &Path, aside: &[PathBuf]) -> Self {
        let (mut known, mut names) = (HashMap::new(), 0);
        walk(root, |_, metadata| {
            known.insert(identity(metadata), length(metadata));
            names += 1;
            Step::Enter
        });
        Self { root: root.to_owned(), known, names, aside: aside.to_vec() }
    }

    /// The length of the longest file.
    pub(crate) fn longest(&self) -> u64 {
        self.known.values().copied().max().unwrap_or_default()
    }

    /// The growth since the scan; stops counting when it exceeds `most`.
    pub(crate) fn growth(&self, most: Growth) -> Growth {
        let mut tally = Tally::new(self);
        let whole = walk(&self.root, |path, metadata| {
            if self.aside.iter().any(|aside| aside == path) {
                return Step::Enter;
            }
            match tally.count(metadata) {
                _ if tally.growth.exceeds(most) => Step::Stop,
                true => Step::Enter,
                false => Step::Skip,
            }
        });
        if whole { tally.growth } else { Growth::UNMEASURABLE }
    }
}

/// Counts the entries of a walk, each once: a file renamed during the walk may be found in both places.
#[derive(Debug)]
struct Tally<'before> {
    before: &'before FolderState,
    /// Number of names found for each file.
    met: HashMap<Identity, u64>,
    /// Names of files that existed before.
    old_names: u64,
    growth: Growth,
}

impl<'before> Tally<'before> {
    fn new(before: &'before FolderState) -> Self {
        Self { before, met: HashMap::new(), old_names: 0, growth: Growth::default() }
    }

    /// Counts an entry; returns false if it was already counted.
    fn count(&mut self, metadata: &fs::Metadata) -> bool {
        let identity = identity(metadata);
        let met = self.met.entry(identity).or_default();
        // A file may have many names but exists once. The link count of a folder is not its number of names.
        let names = if metadata.is_dir() { 1 } else { metadata.nlink() };
        if *met >= names.max(1) {
            return false;
        }
        *met += 1;
        let before = self.before.known.get(&identity);
        if *met == 1 {
            let more = length(metadata).saturating_sub(before.copied().unwrap_or_default());
            self.growth.bytes = self.growth.bytes.saturating_add(more);
        }
        if before.is_none() {
            self.growth.files += 1;
        } else {
            self.old_names += 1;
            self.growth.files += u64::from(self.old_names > self.before.names);
        }
        true
    }
}

fn length(metadata: &fs::Metadata) -> u64 {
    if metadata.is_file() { metadata.len() } else { 0 }
}

/// How a walk continues after an entry.
enum Step {
    /// Also into the entry, if it is a folder.
    Enter,
    /// To the next entry, but not into this one.
    Skip,
    /// The walk stops here.
    Stop,
}

/// Visits all entries in a folder, as far as `next` allows; entries that vanish during the walk are left out. Returns
/// whether it could read everything that it tried to.
fn walk(root: &Path, mut next: impl FnMut(&Path, &fs::Metadata) -> Step) -> bool {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return false,
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            // Metadata of the entry itself; links are not followed.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return false,
                Err(_) => continue,
            };
            let path = entry.path();
            match next(&path, &metadata) {
                Step::Enter if metadata.is_dir() => folders.push(path),
                Step::Enter | Step::Skip => {}
                Step::Stop => return true,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ANY: Growth = Growth::UNMEASURABLE;

    #[test]
    fn what_is_new_and_what_has_grown_counts_and_what_is_removed_makes_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("old")).unwrap();
        fs::write(path("old/one"), [0; 100]).unwrap();
        fs::write(path("two"), [0; 50]).unwrap();
        let before = FolderState::scan(folder.path(), &[]);
        assert_eq!((before.growth(ANY), before.longest()), (Growth::default(), 100));
        fs::remove_file(path("two")).unwrap();
        assert_eq!(before.growth(ANY), Growth::default());
        fs::create_dir(path("new")).unwrap();
        fs::write(path("new/three"), [0; 30]).unwrap();
        symlink("/etc", path("link")).unwrap();
        fs::write(path("old/one"), [0; 107]).unwrap();
        assert_eq!(before.growth(ANY), Growth { bytes: 37, files: 3 });
    }

    #[test]
    fn a_second_name_is_a_file_more_and_no_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("old"), [0; 10]).unwrap();
        let before = FolderState::scan(folder.path(), &[]);
        fs::write(path("new"), [0; 7]).unwrap();
        for name in ["a", "b"] {
            fs::hard_link(path("new"), path(&format!("new-{name}"))).unwrap();
            fs::hard_link(path("old"), path(&format!("old-{name}"))).unwrap();
        }
        assert_eq!(before.growth(ANY), Growth { bytes: 7, files: 5 });
    }

    #[test]
    fn what_is_renamed_while_it_looks_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let before = FolderState::scan(folder.path(), &[]);
        fs::create_dir(path("here")).unwrap();
        fs::write(path("here/file"), [0; 10]).unwrap();
        let mut tally = Tally::new(&before);
        let count =
            |tally: &mut Tally<'_>, name: &str| tally.count(&fs::symlink_metadata(path(name)).unwrap());
        assert!(count(&mut tally, "here") && count(&mut tally, "here/file"));
        fs::rename(path("here"), path("there")).unwrap();
        assert!(!count(&mut tally, "there") && !count(&mut tally, "there/file"));
        assert_eq!(tally.growth, Growth { bytes: 10, files: 2 });
        // A second name counts as another file, no matter how often both are found.
        fs::hard_link(path("there/file"), path("link")).unwrap();
        assert!(count(&mut tally, "link") && !count(&mut tally, "there/file"));
        assert_eq!(tally.growth, Growth { bytes: 10, files: 3 });
    }

    #[test]
    fn it_looks_no_further_than_it_has_to() {
        let folder = tempfile::tempdir().unwrap();
        let before = FolderState::scan(folder.path(), &[folder.path().join("7")]);
        for number in 0..100 {
            fs::write(folder.path().join(number.to_string()), "x").unwrap();
        }
        let most = Growth { bytes: u64::MAX, files: 10 };
        assert_eq!(before.growth(most).files, 11);
        assert_eq!(before.growth(ANY).files, 99, "one does not count");
    }
}
