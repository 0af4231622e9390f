//! Folders with unpacked content, by digest: made once on a machine, used by several processes, and removed
//! when they take too much space.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use model::Digest;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::error::ImageError;

/// The folder of an entry with its content, beside its [`About`].
const CONTENT: &str = "fs";
const ABOUT: &str = "about.json";
/// A file that an entry has as soon as all of it is on the disk: a power failure cannot damage it any more.
const DURABLE: &str = "durable";
/// The part of a name that says that the entry is not complete, or not any more.
const PARTIAL: &str = ".partial-";
/// The end of the names of lock files.
const LOCK: &str = ".lock";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A folder of entries. Processes that share it must use the same version of this crate.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    boot: String,
    partial: AtomicU64,
}

/// An entry that is in use: it is not removed while this exists.
#[derive(Debug)]
pub(crate) struct Held {
    content: PathBuf,
    _lock: Flock<File>,
}

impl Held {
    /// The folder with its content.
    pub(crate) fn content(&self) -> &Path {
        &self.content
    }
}

/// The right to make an entry.
pub(crate) struct Making {
    entry: PathBuf,
    partial: PathBuf,
    _lock: Flock<File>,
}

/// What is known of an entry.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    /// Bytes that it takes on the disk.
    bytes: u64,
    /// The run of the kernel in which it was made.
    boot: String,
}

/// An entry that nothing uses now.
#[derive(Debug)]
struct Unused {
    name: String,
    bytes: u64,
    used: SystemTime,
}

fn failed(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let doing = format!("{doing} {}", path.display());
    move |source| ImageError::file(doing, source)
}

impl Cache {
    /// Opens the folder, and removes what a power failure or a killed process left in it.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, ImageError> {
        fs::create_dir_all(&folder).map_err(failed("creating", &folder))?;
        // Files of images can be programs that users of this machine must not run.
        let closed = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        closed.map_err(failed("closing", &folder))?;
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let cache = Self { folder, boot, partial: AtomicU64::default() };
        cache.clear()?;
        Ok(cache)
    }

    fn clear(&self) -> Result<(), ImageError> {
        for name in self.names()? {
            let path = self.folder.join(&name);
            let is_partial = name.contains(PARTIAL);
            if !is_partial && !path.is_dir() {
                continue;
            }
            let own = name.split(PARTIAL).next().unwrap_or(&name);
            // Another process may be making, removing or using it.
            let Some(_making) = self.lock_now(&format!("{own}.make"))? else { continue };
            let Some(_lock) = self.lock_now(own)? else { continue };
            let is_torn = || About::read(&path).is_none_or(|about| about.boot != self.boot);
            if is_partial || (is_torn() && !path.join(DURABLE).exists()) {
                debug!(path = %path.display(), "removing an incomplete entry");
                disk::remove_tree(&path).map_err(failed("removing", &path))?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, ImageError> {
        let list = fs::read_dir(&self.folder).map_err(failed("reading", &self.folder))?;
        let names = list.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| !name.contains(LOCK)).collect())
    }

    fn lock_file(&self, name: &str) -> Result<File, ImageError> {
        let path = self.folder.join(format!("{name}{LOCK}"));
        disk::lock_file(&path).map_err(failed("opening", &path))
    }

    /// The exclusive lock of an entry, if nothing has it.
    fn lock_now(&self, name: &str) -> Result<Option<Flock<File>>, ImageError> {
        match Flock::lock(self.lock_file(name)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(ImageError::file(format!("locking {name}"), error.into())),
        }
    }

    /// Holds an entry; `None` if it does not exist. This function blocks for a short time.
    pub(crate) fn hold(&self, digest: &Digest) -> Result<Option<Held>, ImageError> {
        let name = digest.hex();
        let entry = self.folder.join(name);
        if !entry.is_dir() {
            return Ok(None);
        }
        let lock = Flock::lock(self.lock_file(name)?, FlockArg::LockShared)
            .map_err(|(_, error)| ImageError::file(format!("locking {name}"), error.into()))?;
        // It may have been removed in the meantime.
        if !entry.is_dir() {
            return Ok(None);
        }
        // It says only which entry is removed first.
        let _ = lock.set_modified(SystemTime::now());
        Ok(Some(Held { content: entry.join(CONTENT), _lock: lock }))
    }

    /// Waits until no other process makes this entry. This function blocks as long as that takes. `Err` in the result
    /// is the entry if it was made in the meantime.
    pub(crate) fn make(&self, digest: &Digest) -> Result<Result<Making, Held>, ImageError> {
        let name = digest.hex();
        let making = Flock::lock(self.lock_file(&format!("{name}.make"))?, FlockArg::LockExclusive)
            .map_err(|(_, error)| ImageError::file(format!("locking {name}"), error.into()))?;
        if let Some(held) = self.hold(digest)? {
            return Ok(Err(held));
        }
        let number = self.partial.fetch_add(1, Ordering::Relaxed);
        let partial = self.folder.join(format!("{name}{PARTIAL}{}-{number}", std::process::id()));
        if partial.exists() {
            disk::remove_tree(&partial).map_err(failed("removing", &partial))?;
        }
        let content = partial.join(CONTENT);
        fs::create_dir_all(&content).map_err(failed("creating", &content))?;
        Ok(Ok(Making { entry: self.folder.join(name), partial, _lock: making }))
    }

    /// Waits until no other process fetches what `name` says. This function blocks as long as that takes.
    pub(crate) fn fetching(&self, name: &Digest) -> Result<Flock<File>, ImageError> {
        let name = format!("{}.fetch", name.hex());
        Flock::lock(self.lock_file(&name)?, FlockArg::LockExclusive)
            .map_err(|(_, error)| ImageError::file(format!("locking {name}"), error.into()))
    }

    /// Makes the entry that `making` has filled visible. It takes `bytes` on the disk.
    pub(crate) fn made(&self, making: &Making, bytes: u64) -> Result<(), ImageError> {
        let about = About { bytes, boot: self.boot.clone() };
        let path = making.partial.join(ABOUT);
        let text = serde_json::to_vec(&about).map_err(io::Error::other);
        text.and_then(|text| fs::write(&path, text)).map_err(failed("writing", &path))?;
        fs::rename(&making.partial, &making.entry).map_err(failed("renaming", &making.partial))
    }

    /// Writes everything in the cache to the disk, and notes that. This function blocks.
    pub(crate) fn sync(&self) -> Result<(), ImageError> {
        let before: Vec<PathBuf> = self.complete()?.into_iter().map(|name| self.folder.join(name)).collect();
        let folder = File::open(&self.folder).map_err(failed("opening", &self.folder))?;
        rustix::fs::syncfs(&folder).map_err(io::Error::from).map_err(failed("writing", &self.folder))?;
        for entry in before {
            // An entry that was removed in the meantime needs no note, and another failure costs only an unpacking.
            let _ = File::create(entry.join(DURABLE));
        }
        Ok(())
    }

    fn complete(&self) -> Result<Vec<String>, ImageError> {
        let names = self.names()?.into_iter();
        Ok(names.filter(|name| !name.contains(PARTIAL) && self.folder.join(name).is_dir()).collect())
    }

    fn bytes_of(&self, name: &str) -> u64 {
        About::read(&self.folder.join(name)).map_or(0, |about| about.bytes)
    }

    /// Removes entries, those that were used last at the end, until all others take at most `most` bytes. Entries in use stay.
    /// Returns the number of removed entries. This function blocks.
    pub(crate) fn evict(&self, most: u64) -> Result<u64, ImageError> {
        let used = |name: &str| {
            let lock = self.folder.join(format!("{name}{LOCK}"));
            fs::metadata(lock).and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let mut entries: Vec<Unused> = (self.complete()?.into_iter())
            .map(|name| Unused { bytes: self.bytes_of(&name), used: used(&name), name })
            .collect();
        entries.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut removed = 0;
        for entry in entries {
            if bytes <= most {
                break;
            }
            let Some(lock) = self.lock_now(&entry.name)? else { continue };
            let path = self.folder.join(&entry.name);
            let number = self.partial.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}{PARTIAL}{}-{number}", entry.name, std::process::id());
            let away = self.folder.join(name);
            // Other processes must not find it while its files are removed.
            match fs::rename(&path, &away) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                moved => moved.map_err(failed("renaming", &path))?,
            }
            drop(lock);
            disk::remove_tree(&away).map_err(failed("removing", &away))?;
            bytes = bytes.saturating_sub(entry.bytes);
            removed += 1;
        }
        Ok(removed)
    }
}

impl About {
    fn read(entry: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(entry.join(ABOUT)).ok()?).ok()
    }
}

impl Making {
    /// The folder to fill.
    pub(crate) fn content(&self) -> PathBuf {
        self.partial.join(CONTENT)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // It was renamed if it is complete.
        if self.partial.exists()
            && let Err(error) = disk::remove_tree(&self.partial)
        {
            warn!(path = %self.partial.display(), %error, "cannot remove an incomplete entry; the next start does");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: u8) -> Digest {
        Digest::of(&[letter])
    }

    fn make(cache: &Cache, digest: &Digest, bytes: u64) {
        let Ok(making) = cache.make(digest).unwrap() else { panic!("it exists") };
        fs::write(making.content().join("file"), "x").unwrap();
        cache.made(&making, bytes).unwrap();
    }

    #[test]
    fn what_is_in_use_is_never_removed_and_the_least_used_is_removed_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        // A second process with the same folder.
        let other = Cache::open(folder.path().join("cache")).unwrap();
        let [old, held, new] = [1, 2, 3].map(digest);
        for (at, digest) in [&old, &held, &new].into_iter().enumerate() {
            make(&cache, digest, 100);
            drop(cache.hold(digest).unwrap().unwrap());
            let lock = File::open(folder.path().join(format!("cache/{}{LOCK}", digest.hex()))).unwrap();
            lock.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at as u64)).unwrap();
        }
        let in_use = cache.hold(&held).unwrap().unwrap();
        assert_eq!(other.complete().unwrap().len(), 3);
        assert_eq!(other.evict(250).unwrap(), 1);
        assert!(other.hold(&old).unwrap().is_none() && other.hold(&new).unwrap().is_some());
        assert_eq!(other.evict(0).unwrap(), 1);
        assert_eq!(fs::read(in_use.content().join("file")).unwrap(), b"x");
        drop(in_use);
        assert_eq!(other.evict(0).unwrap(), 1);
        assert!(cache.complete().unwrap().is_empty());
    }

    #[test]
    fn an_entry_that_several_processes_want_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let made = AtomicU64::default();
        let wanted = digest(1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Cache::open(folder.path().join("cache")).unwrap();
                    match cache.make(&wanted).unwrap() {
                        Ok(making) => {
                            made.fetch_add(1, Ordering::Relaxed);
                            cache.made(&making, 1).unwrap();
                        }
                        Err(held) => assert!(held.content().is_dir()),
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn what_a_killed_process_or_a_power_failure_left_is_removed_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let cache = Cache::open(path.clone()).unwrap();
        let [kept, synced, torn] = [1, 2, 3].map(digest);
        make(&cache, &synced, 1);
        cache.sync().unwrap();
        make(&cache, &torn, 1);
        for digest in [&synced, &torn] {
            let about = path.join(digest.hex()).join(ABOUT);
            fs::write(about, r#"{"bytes":1,"boot":"an earlier one"}"#).unwrap();
        }
        make(&cache, &kept, 1);
        let Ok(making) = cache.make(&digest(4)).unwrap() else { panic!("it exists") };
        // The process is killed.
        std::mem::forget(making);
        let next = Cache::open(path).unwrap();
        let is_there = |digest| next.hold(digest).unwrap().is_some();
        assert!(is_there(&kept) && is_there(&synced) && !is_there(&torn));
    }
}
