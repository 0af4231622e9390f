//! Free disk space, the reserve that each part of the farm keeps, work in folders that others change, the removal of folders,
//! and values in files that change.
//!
//! The parts stop one after the other, so that the bus, which holds the authoritative state, never meets a full
//! disk: first workers and executors accept nothing new, then stores refuse writes and growing builds are ended; the
//! rest is for nats-server.

mod changing;
mod confined;
mod locks;
mod remove_tree;
mod unlinked;

use std::{fmt, fs, io, os::unix::fs::MetadataExt as _, path::Path};

use nix::sys::statvfs::statvfs;

pub use changing::{Changing, regular_bytes};
pub use confined::{Confined, Place, open_file};
pub use locks::{lock_file, wait_for_lock};
pub use remove_tree::{REMOVING, remove_tree};
pub use unlinked::unlinked_bytes;

/// Size and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Total bytes of the file system.
    pub bytes: u64,
    /// Free bytes for unprivileged processes.
    pub bytes_left: u64,
    /// Total inodes; 0 if they are created on demand.
    pub inodes: u64,
    /// Free inodes for unprivileged processes.
    pub inodes_left: u64,
}

impl Space {
    /// Reads the file system that contains `path`.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = statvfs(path)?;
        Ok(Self {
            bytes: stat.blocks().saturating_mul(stat.fragment_size()),
            bytes_left: stat.blocks_available().saturating_mul(stat.fragment_size()),
            inodes: stat.files(),
            inodes_left: stat.files_available(),
        })
    }

    /// The total amount of a resource.
    pub fn total(self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Inodes => self.inodes,
        }
    }

    /// The free amount of a resource.
    pub fn left(self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes_left,
            Resource::Inodes => self.inodes_left,
        }
    }

    /// Number of bytes missing to have `wanted` bytes free.
    pub fn missing(self, wanted: u64) -> u64 {
        wanted.saturating_sub(self.bytes_left)
    }
}

/// What a file system can run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Bytes,
    Inodes,
}

impl Resource {
    pub const ALL: [Self; 2] = [Self::Bytes, Self::Inodes];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Inodes => "inodes",
        })
    }
}

/// Disk usage of a folder and everything below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub bytes: u64,
    pub inodes: u64,
}

impl Used {
    /// Reads it from the file system. Unreadable entries count as zero; a file with several names counts several times.
    pub fn of(folder: &Path) -> Self {
        Self::of_all_but(folder, None)
    }

    /// The same without what is below the folder `left_out`.
    pub fn of_all_but(folder: &Path, left_out: Option<&Path>) -> Self {
        let (mut used, mut folders) = (Self::default(), vec![folder.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                used.bytes = used.bytes.saturating_add(meta.blocks().saturating_mul(512));
                used.inodes += 1;
                let path = meta.is_dir().then(|| entry.path());
                folders.extend(path.filter(|path| left_out != Some(path.as_path())));
            }
        }
        used
    }

    /// The amount of one resource.
    pub fn amount(self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Inodes => self.inodes,
        }
    }
}

/// Share of a disk that is reserved: the setting `disk_left_percent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    percent: u8,
}

impl Reserve {
    /// Reserves `percent` of the disk; 0 reserves nothing.
    pub fn new(percent: u8) -> Self {
        Self { percent: percent.min(100) }
    }

    /// Amount of `total`, in bytes or inodes, below which workers and executors accept nothing new.
    pub fn for_new_work(self, total: u64) -> u64 {
        (u128::from(total) * u128::from(self.percent) / 100).try_into().unwrap_or(u64::MAX)
    }

    /// Amount of `total` below which stores refuse writes and growing builds are ended.
    pub fn for_stores(self, total: u64) -> u64 {
        self.for_new_work(total) / 2
    }

    /// Amount of `total` below which the bus stops growing.
    pub fn for_bus(self, total: u64) -> u64 {
        self.for_new_work(total) / 4
    }

    /// Whether less of a resource is free than new work needs.
    pub fn is_scarce(self, space: Space) -> bool {
        Resource::ALL.iter().any(|it| space.left(*it) < self.for_new_work(space.total(*it)))
    }

    /// The resource of which so little is free that growing builds are ended, if any.
    pub fn exhausted(self, space: Space) -> Option<Resource> {
        Resource::ALL.into_iter().find(|it| space.left(*it) < self.for_stores(space.total(*it)))
    }

    /// Why no new work is accepted; `None` if there is enough free space.
    pub fn shortage(self, space: Space) -> Option<String> {
        let percent = |left: u64, all: u64| left as f64 / all.max(1) as f64 * 100.0;
        let room = percent(space.bytes_left, space.bytes);
        let inodes = percent(space.inodes_left, space.inodes);
        let wanted = f64::from(self.percent);
        let short = |left: f64, what: &str| {
            let (left, minimum) = (format!("{left:.1} %"), format!("{wanted} % (disk_left_percent)"));
            format!("{left} of the disk's {what} is free, below the minimum of {minimum}")
        };
        if room < wanted {
            Some(short(room, "space"))
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
        assert_eq!(why, "1.9 % of the disk's space is free, below the minimum of 2 % (disk_left_percent)");
        assert!(reserve.shortage(Space { inodes_left: 19, ..plenty }).is_some());
        assert!(
            !reserve.is_scarce(plenty) && !reserve.is_scarce(Space { inodes: 0, inodes_left: 0, ..plenty })
        );
        let both_scarce = Space { bytes_left: 19, inodes_left: 19, ..plenty };
        assert!(reserve.is_scarce(both_scarce) && reserve.exhausted(both_scarce).is_none());
        let no_inodes = Space { inodes_left: 9, ..both_scarce };
        assert_eq!(reserve.exhausted(no_inodes), Some(Resource::Inodes));
        assert_eq!(reserve.exhausted(Space { bytes_left: 9, ..plenty }), Some(Resource::Bytes));
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
        let used = Used::of(folder.path());
        assert!((100_000..1 << 20).contains(&used.bytes), "{used:?}");
        assert_eq!(used.inodes, 4);
        assert_eq!(Used::of(&folder.path().join("none")), Used::default());
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
