//! Ends the work on files early: when the build is stopped, and before the disk is full, because the bus may
//! need the rest of it.

use std::{cell::Cell, io, path::Path, sync::atomic::AtomicBool};

use disk::{Reserve, Space};

use super::cancel::check;

/// Entries, and bytes, written between two looks at the free space.
const ENTRIES: u64 = 64;
const BYTES: u64 = 1 << 20;

/// What ends the work on files early.
pub(crate) struct Bounds<'a> {
    cancelled: &'a AtomicBool,
    /// A folder on the disk that is written to.
    folder: &'a Path,
    reserve: Reserve,
    /// Entries and bytes written since the last look at the free space.
    entries: Cell<u64>,
    bytes: Cell<u64>,
}

impl<'a> Bounds<'a> {
    pub(super) fn new(cancelled: &'a AtomicBool, folder: &'a Path, reserve: Reserve) -> Self {
        // Look at once: the disk may be full already.
        Self { cancelled, folder, reserve, entries: Cell::new(ENTRIES), bytes: Cell::new(0) }
    }

    pub(super) fn cancelled(&self) -> &'a AtomicBool {
        self.cancelled
    }

    /// Fails if the build was stopped.
    pub(super) fn check(&self) -> io::Result<()> {
        check(self.cancelled)
    }

    /// Counts an entry that is about to be created. Fails if too little of the disk is free.
    pub(super) fn creates(&self) -> io::Result<()> {
        self.entries.set(self.entries.get() + 1);
        self.check_room()
    }

    /// Counts bytes that were written. Fails if the build was stopped, or too little of the disk is free.
    pub(super) fn wrote(&self, bytes: u64) -> io::Result<()> {
        self.check()?;
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.check_room()
    }

    fn check_room(&self) -> io::Result<()> {
        if self.entries.get() < ENTRIES && self.bytes.get() < BYTES {
            return Ok(());
        }
        self.entries.set(0);
        self.bytes.set(0);
        // The worker's watch over the disk reports free space that cannot be read.
        Space::of(self.folder).map_or(Ok(()), |space| has_room(self.reserve, space))
    }
}

/// Fails if less is free than builds must leave free.
fn has_room(reserve: Reserve, space: Space) -> io::Result<()> {
    let Some(resource) = reserve.exhausted(space) else { return Ok(()) };
    let (left, wanted) = (space.left(resource), reserve.for_stores(space.total(resource)));
    let message =
        format!("{left} {resource} of the disk are free, and {wanted} must stay free (disk_left_percent)");
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_ends_before_the_disk_is_full() {
        let reserve = Reserve::new(2);
        let plenty = Space { bytes: 1000, bytes_left: 10, inodes: 1000, inodes_left: 10 };
        assert!(has_room(reserve, plenty).is_ok());
        for short in [Space { bytes_left: 9, ..plenty }, Space { inodes_left: 9, ..plenty }] {
            assert_eq!(has_room(reserve, short).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        assert!(has_room(Reserve::new(0), Space { bytes_left: 0, ..plenty }).is_ok());
    }

    #[test]
    fn a_stopped_build_writes_nothing_more() {
        let (cancelled, folder) = (AtomicBool::new(false), std::env::temp_dir());
        let bounds = Bounds::new(&cancelled, &folder, Reserve::new(0));
        assert!(bounds.creates().is_ok() && bounds.wrote(2 * BYTES).is_ok());
        cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(bounds.wrote(1).is_err());
    }
}
