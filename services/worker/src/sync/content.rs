//! Copies and compares files piece by piece, so that a stopped build does not have to wait for a large file.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use disk::Place;
use invariant::Present as _;
use model::BlobDigest;

use super::{bounds::Bounds, cancel::check};

/// Bytes between two checks of the bounds.
const PIECE: u64 = 8 << 20;
/// Bytes compared at once.
const BUFFER: usize = 128 << 10;

/// Copies `from` to `target`, which must not exist; its time is `modified`, or the current time.
pub(super) fn copy(
    from: &File,
    target: &Place,
    mode: u32,
    modified: Option<SystemTime>,
    bounds: &Bounds<'_>,
) -> io::Result<()> {
    let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(target.path())?;
    // The kernel copies, or shares the blocks where the file system can.
    loop {
        let bytes = io::copy(&mut from.take(PIECE), &mut to)?;
        if bytes == 0 {
            break;
        }
        bounds.wrote(bytes)?;
    }
    match modified {
        Some(modified) => to.set_modified(modified),
        None => Ok(()),
    }
}

/// Whether `target` has the content of `one`.
pub(super) fn is_same(mut one: File, target: &Place, cancelled: &AtomicBool) -> io::Result<bool> {
    let mut other = target.file()?;
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

/// Whether the content of `target` has this digest.
pub(super) fn has_digest(target: &Place, digest: &BlobDigest, cancelled: &AtomicBool) -> io::Result<bool> {
    let mut file = target.file()?;
    let mut hasher = digest.function.hasher();
    let mut buffer = vec![0; BUFFER];
    loop {
        check(cancelled)?;
        let count = fill(&mut file, &mut buffer)?;
        hasher.update(buffer.get(..count).present("the part of a buffer that was filled"));
        if count < BUFFER {
            return Ok(hasher.finish() == *digest);
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
