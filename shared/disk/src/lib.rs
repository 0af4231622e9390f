//! What is left of a disk, and how much of that each part of the farm leaves alone.
//!
//! The parts stop one after the other, so that the bus, which keeps the truth, never meets a full disk: first workers and
//! executors take nothing new, then the stores refuse writes and builds that grow are ended; the rest is nats-server's.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use nix::sys::statvfs::statvfs;

/// What a file system has, and what is left of that to everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Its bytes.
    pub bytes: u64,
    /// Those that are left.
    pub bytes_left: u64,
    /// Its inodes; 0 where they are made as they are needed.
    pub inodes: u64,
    /// Those that are left.
    pub inodes_left: u64,
}

impl Space {
    /// Of the file system that `path` is on.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = statvfs(path)?;
        Ok(Self {
            bytes: stat.blocks().saturating_mul(stat.fragment_size()),
            bytes_left: stat.blocks_available().saturating_mul(stat.fragment_size()),
            inodes: stat.files(),
            inodes_left: stat.files_available(),
        })
    }

    /// How many bytes are missing for `wanted` to be left.
    pub fn missing(self, wanted: u64) -> u64 {
        wanted.saturating_sub(self.bytes_left)
    }
}

/// Bytes of disk that a folder and all below it take. What cannot be read takes nothing.
pub fn used(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0_u64, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    bytes
}

/// The share of a disk that is kept for others: the setting `disk_left_percent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    percent: u8,
}

impl Reserve {
    /// `percent` of the disk; 0: nothing is kept.
    pub fn new(percent: u8) -> Self {
        Self { percent: percent.min(100) }
    }

    /// Bytes below which workers and executors take nothing new.
    pub fn for_new_work(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.percent) / 100).try_into().unwrap_or(u64::MAX)
    }

    /// Bytes below which stores refuse writes and builds that grow are ended.
    pub fn for_stores(self, bytes: u64) -> u64 {
        self.for_new_work(bytes) / 2
    }

    /// Bytes that the bus leaves.
    pub fn for_bus(self, bytes: u64) -> u64 {
        self.for_new_work(bytes) / 4
    }

    /// Why nothing new is taken; `None` where there is room.
    pub fn shortage(self, space: Space) -> Option<String> {
        let percent = |left: u64, all: u64| left as f64 / all.max(1) as f64 * 100.0;
        let room = percent(space.bytes_left, space.bytes);
        let inodes = percent(space.inodes_left, space.inodes);
        let wanted = f64::from(self.percent);
        let short = |left: f64, what: &str| {
            format!("{left:.1} % of its disk's {what} is left, and {wanted} % must be (disk_left_percent)")
        };
        if room < wanted {
            Some(short(room, "room"))
        } else if space.inodes > 0 && inodes < wanted {
            Some(short(inodes, "inodes"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_stop_one_after_the_other() {
        let reserve = Reserve::new(2);
        assert_eq!(
            (reserve.for_new_work(1000), reserve.for_stores(1000), reserve.for_bus(1000)),
            (20, 10, 5)
        );
        assert_eq!(Reserve::new(0).for_new_work(u64::MAX), 0);
        assert_eq!(Reserve::new(100).for_new_work(u64::MAX), u64::MAX);
    }

    #[test]
    fn room_and_inodes_must_be_left() {
        let reserve = Reserve::new(2);
        let plenty = Space { bytes: 1000, bytes_left: 20, inodes: 1000, inodes_left: 20 };
        assert_eq!(reserve.shortage(plenty), None);
        let why = reserve.shortage(Space { bytes_left: 19, ..plenty }).unwrap();
        assert_eq!(why, "1.9 % of its disk's room is left, and 2 % must be (disk_left_percent)");
        assert!(reserve.shortage(Space { inodes_left: 19, ..plenty }).is_some());
        assert_eq!(reserve.shortage(Space { inodes: 0, inodes_left: 0, ..plenty }), None);
        assert_eq!(Reserve::new(0).shortage(Space { bytes_left: 0, ..plenty }), None);
    }

    #[test]
    fn what_a_folder_takes_is_counted_in_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("build/deep");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![1; 100_000]).unwrap();
        fs::File::create(folder.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let bytes = used(folder.path());
        assert!((100_000..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(used(&folder.path().join("none")), 0);
    }

    #[test]
    fn a_real_file_system_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::of(folder.path()).unwrap();
        assert!(space.bytes > 0 && space.bytes_left <= space.bytes);
        assert_eq!(space.missing(0), 0);
        assert!(Space::of(&folder.path().join("none")).is_err());
    }
}
