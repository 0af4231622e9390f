use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

use super::*;
use crate::testing::Exchanges;

/// A source, a target and the list of brought entries.
struct Place {
    folder: TempDir,
    choice: Choice,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: TempDir::new().unwrap(), choice: Choice::default() };
        fs::create_dir(place.source("")).unwrap();
        fs::create_dir(place.target("")).unwrap();
        place
    }

    fn source(&self, path: &str) -> PathBuf {
        self.folder.path().join("source").join(path)
    }

    fn target(&self, path: &str) -> PathBuf {
        self.folder.path().join("target").join(path)
    }

    fn to_sync(&self, fresh: bool) -> Sync {
        Sync {
            target: self.target(""),
            manifest: Some(self.folder.path().join("manifest")),
            fresh,
            reserve: Reserve::new(0),
            progress: Arc::default(),
        }
    }

    fn sync(&self, mode: TransferMode, fresh: bool) -> Done {
        self.to_sync(fresh).run(&self.folder_source(mode), &AtomicBool::new(false)).unwrap()
    }

    fn copied(&self) -> TransferMode {
        TransferMode::Copy(Confined::open(&self.source("").canonicalize().unwrap()).unwrap())
    }

    fn folder_source(&self, mode: TransferMode) -> FolderSource {
        FolderSource { folder: self.source(""), choice: self.choice.clone(), mode }
    }

    /// Syncs for the first build.
    fn first(&self) {
        self.sync(self.copied(), true);
    }

    fn again(&self) -> (u64, u64) {
        let Done { changed, removed } = self.sync(self.copied(), false);
        (changed, removed)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.target(path)).unwrap()
    }
}

fn put(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Sets the modification time of a file to `seconds` before now.
fn age(path: &Path, seconds: u64) {
    let at = SystemTime::now() - Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(at).unwrap();
}

fn time(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).unwrap().modified().unwrap()
}

#[test]
fn what_did_not_change_keeps_its_time_and_what_the_build_made_stays() {
    let place = Place::new();
    put(place.source("a"), "a");
    put(place.source("d/b"), "b");
    symlink("a", place.source("link")).unwrap();
    age(&place.source("a"), 5000);
    place.first();
    put(place.target("d/b.o"), "made of b");
    put(place.target("out/all"), "made");
    let times = ["a", "d/b"].map(|path| time(&place.target(path)));
    assert_eq!(place.again(), (0, 0));
    assert_eq!(place.again(), (0, 0));
    assert_eq!(["a", "d/b"].map(|path| time(&place.target(path))), times);
    assert_eq!((place.read("d/b.o").as_str(), place.read("out/all").as_str()), ("made of b", "made"));
    assert_eq!(fs::read_link(place.target("link")).unwrap(), Path::new("a"));
}

#[test]
fn what_changed_is_new_whatever_its_time_in_the_source() {
    let place = Place::new();
    put(place.source("a"), "old");
    put(place.source("touched"), "same");
    age(&place.source("a"), 100);
    place.first();
    let touched = time(&place.target("touched"));
    put(place.target("a.o"), "made of old");
    // An older version returns: size and content differ, and its time is before that of the results.
    put(place.source("a"), "older!");
    age(&place.source("a"), 500);
    age(&place.source("touched"), 1);
    assert_eq!(place.again(), (1, 0));
    assert_eq!(place.read("a"), "older!");
    assert!(time(&place.target("a")) >= time(&place.target("a.o")));
    assert_eq!(time(&place.target("touched")), touched, "only its time changed");
    assert_eq!(place.again(), (0, 0));
}

#[test]
fn the_same_size_and_time_do_not_hide_a_change() {
    let place = Place::new();
    put(place.source("a"), "one");
    let before = time(&place.source("a"));
    place.first();
    put(place.source("a"), "two");
    fs::File::open(place.source("a")).unwrap().set_modified(before).unwrap();
    assert_eq!(place.again(), (1, 0));
    assert_eq!(place.read("a"), "two");
}

#[test]
fn what_the_build_did_to_the_source_is_undone() {
    let place = Place::new();
    for name in ["changed", "removed", "d/in", "linked", "made_a_folder"] {
        put(place.source(name), name);
    }
    place.first();
    put(place.target("changed"), "something else");
    fs::remove_file(place.target("removed")).unwrap();
    fs::remove_dir_all(place.target("d")).unwrap();
    fs::remove_file(place.target("linked")).unwrap();
    put(place.folder.path().join("outside/in"), "not ours");
    symlink(place.folder.path().join("outside"), place.target("d")).unwrap();
    symlink(place.folder.path().join("outside/in"), place.target("linked")).unwrap();
    fs::remove_file(place.target("made_a_folder")).unwrap();
    put(place.target("made_a_folder/x"), "x");
    assert_eq!(place.again(), (5, 0));
    for name in ["changed", "removed", "d/in", "linked", "made_a_folder"] {
        assert_eq!(place.read(name), name);
        assert!(fs::symlink_metadata(place.target(name)).unwrap().is_file());
    }
    assert_eq!(fs::read_to_string(place.folder.path().join("outside/in")).unwrap(), "not ours");
}

#[test]
fn what_is_gone_from_the_source_goes() {
    let place = Place::new();
    for name in ["a", "d/b", "e/c", "f/g/h"] {
        put(place.source(name), name);
    }
    symlink("a", place.source("link")).unwrap();
    place.first();
    put(place.target("e/c.o"), "made of c");
    put(place.target("a.o"), "made of a");
    fs::remove_file(place.source("a")).unwrap();
    fs::remove_file(place.source("link")).unwrap();
    for name in ["d", "e", "f"] {
        fs::remove_dir_all(place.source(name)).unwrap();
    }
    assert_eq!(place.again(), (0, 5));
    for name in ["a", "link", "d", "e/c", "f"] {
        assert!(fs::symlink_metadata(place.target(name)).is_err(), "{name}");
    }
    assert_eq!((place.read("e/c.o").as_str(), place.read("a.o").as_str()), ("made of c", "made of a"));
}

#[test]
fn nothing_is_removed_behind_a_link_of_the_build() {
    let place = Place::new();
    put(place.source("d/b"), "b");
    place.first();
    put(place.folder.path().join("outside/b"), "not ours");
    fs::remove_dir_all(place.target("d")).unwrap();
    symlink(place.folder.path().join("outside"), place.target("d")).unwrap();
    fs::remove_dir_all(place.source("d")).unwrap();
    place.again();
    assert!(place.folder.path().join("outside/b").exists());
    assert!(fs::symlink_metadata(place.target("d")).is_err());
}

#[test]
fn kinds_and_rights_may_change() {
    let place = Place::new();
    put(place.source("file"), "file");
    put(place.source("folder/in"), "in");
    put(place.source("tool"), "tool");
    place.first();
    put(place.target("folder/made"), "made");
    let tool = time(&place.target("tool"));
    fs::remove_file(place.source("file")).unwrap();
    put(place.source("file/now"), "now");
    fs::remove_dir_all(place.source("folder")).unwrap();
    put(place.source("folder"), "folder");
    fs::set_permissions(place.source("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(place.again(), (2, 1));
    assert_eq!((place.read("file/now").as_str(), place.read("folder").as_str()), ("now", "folder"));
    assert_eq!(fs::metadata(place.target("tool")).unwrap().mode() & 0o777, 0o755);
    assert_eq!(time(&place.target("tool")), tool, "its content did not change");
}

#[test]
fn of_an_archive_only_content_counts() {
    let place = Place::new();
    let unpack = |files: &[(&str, &str)]| {
        fs::remove_dir_all(place.source("")).unwrap();
        for (name, text) in files {
            put(place.source(name), text);
            age(&place.source(name), 9000);
        }
    };
    unpack(&[("a", "aaa"), ("b", "bbb"), ("d/c", "ccc")]);
    let packed = time(&place.source("a"));
    assert_eq!(place.sync(TransferMode::Move, true), Done { changed: 3, removed: 0 });
    assert_eq!(time(&place.target("a")), packed);
    unpack(&[("a", "aaa"), ("b", "BBB"), ("e", "eee")]);
    let made = SystemTime::now();
    assert_eq!(place.sync(TransferMode::Move, false), Done { changed: 2, removed: 1 });
    assert_eq!(time(&place.target("a")), packed);
    assert!(time(&place.target("b")) + Duration::from_secs(1) > made);
    assert_eq!(
        (place.read("a"), place.read("b"), place.read("e")),
        ("aaa".into(), "BBB".into(), "eee".into())
    );
    assert!(!place.target("d").exists());
}

#[test]
fn names_may_be_anything() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b" a\nb \xff:-");
    fs::write(place.source("").join(name), "x").unwrap();
    place.first();
    fs::write(place.source("").join(name), "y").unwrap();
    assert_eq!(place.again(), (1, 0));
    assert_eq!(fs::read_to_string(place.target("").join(name)).unwrap(), "y");
    fs::remove_file(place.source("").join(name)).unwrap();
    assert_eq!(place.again(), (0, 1));
}

#[test]
fn a_list_that_is_missing_or_broken_is_a_failure() {
    let place = Place::new();
    let source = place.folder_source(place.copied());
    let sync = place.to_sync(false);
    let manifest = sync.manifest.as_ref().unwrap();
    assert!(sync.run(&source, &AtomicBool::new(false)).is_err());
    fs::write(manifest, "f 1 2 nonsense").unwrap();
    assert!(sync.run(&source, &AtomicBool::new(false)).is_err());
    fs::write(manifest, "").unwrap();
    let cancelled = sync.run(&source, &AtomicBool::new(true));
    assert!(cancelled.is_err() || fs::read_dir(place.source("")).unwrap().count() == 0);
    assert!(sync.run(&source, &AtomicBool::new(false)).is_ok());
}

#[test]
fn a_change_by_the_build_is_seen_whatever_its_time() {
    let place = Place::new();
    put(place.source("a"), "good");
    age(&place.source("a"), 100);
    place.first();
    let before = time(&place.target("a"));
    assert_eq!(before, time(&place.source("a")), "a first copy has the time of its source");
    put(place.target("a"), "EVIL");
    fs::File::open(place.target("a")).unwrap().set_modified(before).unwrap();
    assert_eq!(place.again(), (1, 0));
    assert_eq!(place.read("a"), "good");
}

#[test]
fn a_farms_data_is_left_out_and_what_ignore_files_name_if_that_is_wanted() {
    let mut place = Place::new();
    for name in
        [".gitignore", "a", "a.o", "keep.o", "d/b.o", "d/c", "target/x", ".hidden", ".git/HEAD", "log/x"]
    {
        put(place.source(name), name);
    }
    put(place.source(".gitignore"), "*.o\n/target\n!keep.o\n");
    put(place.source(".forebayignore"), "log/\n");
    put(place.source("d/.gitignore"), "!b.o\n");
    for name in ["forebay-data/.forebay-data", "forebay-data/nats/x", "own/x"] {
        put(place.source(name), name);
    }
    place.choice.data = Some(place.source("own"));
    place.first();
    let there = |name: &str| fs::symlink_metadata(place.target(name)).is_ok();
    assert!(["a.o", "target/x", ".hidden", ".git/HEAD", "log/x"].iter().all(|name| there(name)));
    assert!(!there("forebay-data") && !there("own"));
    place.choice.ignore_files = true;
    let there = |name: &str| fs::symlink_metadata(place.target(name)).is_ok();
    // Entries that are newly left out are removed, like entries that are gone.
    place.again();
    assert!(
        ["a", "keep.o", "d/b.o", "d/c", ".hidden", ".git/HEAD", ".gitignore"].iter().all(|name| there(name))
    );
    assert!(!["a.o", "target", "log"].iter().any(|name| there(name)));
}

#[test]
fn a_folder_that_holds_its_own_copy_is_copied_without_it() {
    let mut place = Place::new();
    place.choice.data = Some(place.folder.path().to_owned());
    put(place.folder.path().join("a"), "a");
    let source = FolderSource {
        folder: place.folder.path().to_owned(),
        choice: place.choice.clone(),
        mode: TransferMode::Copy(Confined::open(&place.folder.path().canonicalize().unwrap()).unwrap()),
    };
    let (target, reserve) = (place.target(""), Reserve::new(0));
    let sync = Sync { target, manifest: None, fresh: true, reserve, progress: Arc::default() };
    sync.run(&source, &AtomicBool::new(false)).unwrap();
    assert_eq!(place.read("a"), "a");
    assert!(!place.target("target").exists());
    assert_eq!(
        sync.progress.files.load(Ordering::Relaxed),
        sync.progress.files_total.load(Ordering::Relaxed)
    );
}

#[test]
fn s10_a_folder_that_becomes_a_link_leads_no_file_elsewhere() {
    let place = Place::new();
    let outside = place.folder.path().join("outside");
    put(outside.join("kept"), "kept");
    for number in 0..50 {
        put(place.source(&format!("d/f{number}")), "old");
    }
    place.first();
    let exchanges = Exchanges::of(place.target("d"), &outside);
    for round in 0..100 {
        for number in 0..50 {
            put(place.source(&format!("d/f{number}")), &format!("new {round}"));
        }
        let sync = place.to_sync(false);
        // It may fail, but not write elsewhere.
        let _ = sync.run(&place.folder_source(place.copied()), &AtomicBool::new(false));
    }
    drop(exchanges);
    let left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"]);
}
