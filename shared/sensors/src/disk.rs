//! Free space and inodes of the file system of the data directory.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use crate::{Kind, Reading, Sensor, SensorInput};

pub(crate) struct Disk {
    folder: PathBuf,
    left_percent: u8,
}

/// Size and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Space {
    blocks: u64,
    blocks_left: u64,
    /// 0 if the file system creates inodes on demand.
    inodes: u64,
    inodes_left: u64,
}

impl Disk {
    pub(crate) fn new(folder: &Path, left_percent: u8) -> Self {
        Self { folder: folder.to_owned(), left_percent }
    }

    fn judge(&self, space: Space) -> Reading {
        let percent = |left: u64, all: u64| left as f64 / all.max(1) as f64 * 100.0;
        let wanted = f64::from(self.left_percent);
        let room = percent(space.blocks_left, space.blocks);
        let inodes = percent(space.inodes_left, space.inodes);
        let short = |left: f64, what: &str| {
            let folder = self.folder.display();
            Reading::red(format!(
                "{left:.1} % of the {what} of {folder} is free, below the minimum of {wanted} %"
            ))
        };
        if room < wanted {
            short(room, "disk")
        } else if space.inodes > 0 && inodes < wanted {
            short(inodes, "inodes")
        } else {
            Reading::green()
        }
    }
}

impl Sensor for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn kind(&self) -> Kind {
        Kind::Stop
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let Ok(stat) = statvfs(&self.folder) else { return Reading::green() };
        self.judge(Space {
            blocks: stat.blocks(),
            blocks_left: stat.blocks_available(),
            inodes: stat.files(),
            inodes_left: stat.files_available(),
        })
    }
}

#[cfg(test)]
mod tests {
    use policy::Signal;

    use super::*;

    #[test]
    fn room_and_inodes_must_be_left() {
        let sensor = Disk::new(Path::new("/data"), 2);
        let plenty = Space { blocks: 1000, blocks_left: 20, inodes: 1000, inodes_left: 20 };
        assert_eq!(sensor.judge(plenty), Reading::green());
        let full = sensor.judge(Space { blocks_left: 19, ..plenty });
        assert_eq!(full.why, "1.9 % of the disk of /data is free, below the minimum of 2 %");
        assert_eq!(sensor.judge(Space { inodes_left: 19, ..plenty }).signal, Signal::Red);
        let without = Space { inodes: 0, inodes_left: 0, ..plenty };
        assert_eq!(sensor.judge(without), Reading::green());
    }

    #[test]
    fn it_reads_a_real_file_system() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Disk::new(folder.path(), 0).read(SensorInput::default()), Reading::green());
        assert_eq!(Disk::new(folder.path(), 100).read(SensorInput::default()).signal, Signal::Red);
    }
}
