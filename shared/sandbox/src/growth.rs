//! By how much a folder has grown: files and bytes that were not there before.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A folder as it was.
#[derive(Debug)]
pub(crate) struct Before {
    root: PathBuf,
    /// The length of each file; folders and links have none.
    known: HashMap<Identity, u64>,
    /// How many names these have.
    names: u64,
    /// What is to come and does not count.
    aside: Vec<PathBuf>,
}

/// The number of an inode is given again when it is free; when it was made, where that is known, is not.
type Identity = (u64, Option<SystemTime>);

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.ino(), metadata.created().ok())
}

/// What was added since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Bytes of new files, and by which old ones have grown. What was removed makes no room.
    pub(crate) bytes: u64,
    /// Files, folders and links.
    pub(crate) files: u64,
}

impl Growth {
    /// Of what lies deeper than can be looked at: more than anyone may have.
    const BEYOND: Self = Self { bytes: u64::MAX, files: u64::MAX };

    fn is_beyond(self, most: Self) -> bool {
        self.bytes > most.bytes || self.files > most.files
    }
}

impl Before {
    /// Looks at what is there. `aside` are paths that will be there and do not count.
    pub(crate) fn look(root: &Path, aside: &[PathBuf]) -> Self {
        let (mut known, mut names) = (HashMap::new(), 0);
        walk(root, |_, metadata| {
            known.insert(identity(metadata), length(metadata));
            names += 1;
            Next::Into
        });
        Self { root: root.to_owned(), known, names, aside: aside.to_vec() }
    }

    /// The length of the longest file.
    pub(crate) fn longest(&self) -> u64 {
        self.known.values().copied().max().unwrap_or_default()
    }

    /// What was added since; looks no further when it is more than `most`.
    pub(crate) fn growth(&self, most: Growth) -> Growth {
        let mut tally = Tally::of(self);
        let whole = walk(&self.root, |path, metadata| {
            if self.aside.iter().any(|aside| aside == path) {
                return Next::Into;
            }
            match tally.count(metadata) {
                _ if tally.growth.is_beyond(most) => Next::Nowhere,
                true => Next::Into,
                false => Next::Past,
            }
        });
        if whole { tally.growth } else { Growth::BEYOND }
    }
}

/// Counts what a walk meets, and nothing twice: what is renamed while we look may be met at both places.
#[derive(Debug)]
struct Tally<'before> {
    before: &'before Before,
    /// How many names of each were met.
    met: HashMap<Identity, u64>,
    /// Names of what was there before.
    old_names: u64,
    growth: Growth,
}

impl<'before> Tally<'before> {
    fn of(before: &'before Before) -> Self {
        Self { before, met: HashMap::new(), old_names: 0, growth: Growth::default() }
    }

    /// Counts it, unless it was counted already; whether it was not.
    fn count(&mut self, metadata: &fs::Metadata) -> bool {
        let identity = identity(metadata);
        let met = self.met.entry(identity).or_default();
        // One file may have many names, and is there once. The links of a folder are none of its names.
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

/// Where a walk goes after it has met something.
enum Next {
    /// Also into it, if it is a folder.
    Into,
    /// On, but not into it.
    Past,
    /// No further.
    Nowhere,
}

/// Shows all that is in a folder, as far as `next` says; what vanishes meanwhile is left out. Whether it could look at
/// everything that it wanted to.
fn walk(root: &Path, mut next: impl FnMut(&Path, &fs::Metadata) -> Next) -> bool {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return false,
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            // Of the entry itself, whatever it links to.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return false,
                Err(_) => continue,
            };
            let path = entry.path();
            match next(&path, &metadata) {
                Next::Into if metadata.is_dir() => folders.push(path),
                Next::Into | Next::Past => {}
                Next::Nowhere => return true,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ANY: Growth = Growth::BEYOND;

    #[test]
    fn what_is_new_and_what_has_grown_counts_and_what_is_removed_makes_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("old")).unwrap();
        fs::write(path("old/one"), [0; 100]).unwrap();
        fs::write(path("two"), [0; 50]).unwrap();
        let before = Before::look(folder.path(), &[]);
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
        let before = Before::look(folder.path(), &[]);
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
        let before = Before::look(folder.path(), &[]);
        fs::create_dir(path("here")).unwrap();
        fs::write(path("here/file"), [0; 10]).unwrap();
        let mut tally = Tally::of(&before);
        let count =
            |tally: &mut Tally<'_>, name: &str| tally.count(&fs::symlink_metadata(path(name)).unwrap());
        assert!(count(&mut tally, "here") && count(&mut tally, "here/file"));
        fs::rename(path("here"), path("there")).unwrap();
        assert!(!count(&mut tally, "there") && !count(&mut tally, "there/file"));
        assert_eq!(tally.growth, Growth { bytes: 10, files: 2 });
        // A second name is another file, however often the two are met.
        fs::hard_link(path("there/file"), path("link")).unwrap();
        assert!(count(&mut tally, "link") && !count(&mut tally, "there/file"));
        assert_eq!(tally.growth, Growth { bytes: 10, files: 3 });
    }

    #[test]
    fn it_looks_no_further_than_it_has_to() {
        let folder = tempfile::tempdir().unwrap();
        let before = Before::look(folder.path(), &[folder.path().join("7")]);
        for number in 0..100 {
            fs::write(folder.path().join(number.to_string()), "x").unwrap();
        }
        let most = Growth { bytes: u64::MAX, files: 10 };
        assert_eq!(before.growth(most).files, 11);
        assert_eq!(before.growth(ANY).files, 99, "one does not count");
    }
}
