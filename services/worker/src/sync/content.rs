//! Copies and compares files piece by piece, so that a stopped build does not have to wait for a large file.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use super::check;

/// Bytes between two checks for cancellation.
const PIECE: u64 = 64 << 20;
/// Bytes compared at once.
const BUFFER: usize = 128 << 10;

/// Copies `source` to `target`, which must not exist; its time is `modified`, or the current time.
pub(super) fn copy(
    source: &Path,
    target: &Path,
    modified: Option<SystemTime>,
    cancelled: &AtomicBool,
) -> io::Result<()> {
    let mut from = File::open(source)?;
    let mode = from.metadata()?.mode();
    let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(mode & 0o777).open(target)?;
    // The kernel copies, or shares the blocks where the file system can.
    while io::copy(&mut (&mut from).take(PIECE), &mut to)? > 0 {
        check(cancelled)?;
    }
    match modified {
        Some(modified) => to.set_modified(modified),
        None => Ok(()),
    }
}

/// Whether `target`, with metadata `there`, has the content of `source`.
pub(super) fn is_same(
    source: &Path,
    meta: &fs::Metadata,
    target: &Path,
    there: Option<&fs::Metadata>,
    cancelled: &AtomicBool,
) -> io::Result<bool> {
    if !there.is_some_and(|there| there.is_file() && there.len() == meta.len()) {
        return Ok(false);
    }
    let (mut one, mut other) = (File::open(source)?, File::open(target)?);
    let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
    loop {
        check(cancelled)?;
        let (some, others) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        if some != others || left.get(..some) != right.get(..others) {
            return Ok(false);
        }
        if some < BUFFER {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
