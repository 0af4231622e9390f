//! Unpacks a layer of an image, which may be hostile, into a folder (OCI Image Format Specification 1.1, "Layer").

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Component, Path, PathBuf},
};

use archives::EntryHeaders;
use bytes::Bytes;
use model::Digest;
use tar::Entry;
use tokio::sync::mpsc;

use crate::{
    bounded::{Bounded, Pieces},
    error::{ImageError, shown},
    place::{Attributes, Place, Whiteouts},
};

/// Maximum number of entries of a layer.
const ENTRIES_MAX: u64 = 1_000_000;
/// Maximum bytes of a path in a layer, and of the target of a link (`PATH_MAX` of Linux).
const PATH_MAX: usize = 4096;
/// Names that begin so are instructions about lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// Names that begin so are instructions of one storage driver, except [`OPAQUE`].
const WHITEOUT_META: &[u8] = b".wh..wh.";
/// Says that nothing of its folder in lower layers is visible.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Modes that files keep: without set-user-ID, set-group-ID and sticky bits.
const FILE_MODE: u32 = 0o777;
/// Modes that folders keep.
const FOLDER_MODE: u32 = 0o1777;
/// Size that a folder or a part of a file counts as at least: a block of usual file systems.
const BLOCK: u64 = 4096;

/// What a layer takes on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unpacked {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Unpacks the tar archive in `content` into the empty folder `folder`. Nothing outside of it is changed.
pub(crate) fn unpack(
    content: &mut Bounded,
    folder: &Path,
    whiteouts: Whiteouts,
) -> Result<Unpacked, ImageError> {
    let place = Place::open(folder, whiteouts)?;
    let mut layer = Layer { place, unpacked: Unpacked::default() };
    let read = layer.read(&mut tar::Archive::new(&mut *content));
    // The reason for an early end of the content matters more than what the archive says about it.
    if let Some(error) = content.stopped() {
        return Err(error);
    }
    read?;
    content.finish()?;
    Ok(layer.unpacked)
}

/// Unpacks a compressed layer without a store and without its digest; for the tests of parsers.
#[doc(hidden)]
pub fn unpack_layer(layer: Bytes, folder: &Path) -> Result<(), ImageError> {
    let (compressed, bytes_max) = (layer.len() as u64, 64 << 20);
    let (pieces, received) = mpsc::channel(2);
    for piece in [layer, Bytes::new()] {
        // The channel has room for both.
        let _ = pieces.try_send(piece);
    }
    let wanted = Digest::from_sha256([0; 32]);
    let mut content = Bounded::new(Pieces::new(received), wanted, compressed, bytes_max)?;
    unpack(&mut content, folder, Whiteouts::Files).map(drop)
}

struct Layer {
    place: Place,
    unpacked: Unpacked,
}

fn unreadable(error: &io::Error) -> ImageError {
    ImageError::Invalid(format!("a layer is damaged or not a tar archive: {error}"))
}

impl Layer {
    fn read(&mut self, archive: &mut tar::Archive<&mut Bounded>) -> Result<(), ImageError> {
        let entries = archive.entries().map_err(|error| unreadable(&error))?.raw(true);
        let mut headers = EntryHeaders::default();
        for entry in entries {
            self.unpacked.entries += 1;
            if self.unpacked.entries > ENTRIES_MAX {
                return Err(ImageError::Invalid(format!("a layer has more than {ENTRIES_MAX} entries")));
            }
            let mut entry = entry.map_err(|error| unreadable(&error))?;
            let is_header = headers.read(&mut entry);
            if !is_header
                .map_err(|error| ImageError::Invalid(format!("a layer cannot be unpacked: {error}")))?
            {
                self.add(entry, std::mem::take(&mut headers))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry<'_, &mut Bounded>, headers: EntryHeaders) -> Result<(), ImageError> {
        let header = entry.header();
        let name = headers.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let path = relative(&name)?;
        let kind = header.entry_type();
        let attributes = Attributes {
            // The oldest format has no owners, and some writers leave fields empty.
            uid: headers
                .uid
                .or_else(|| header.uid().ok().and_then(|uid| uid.try_into().ok()))
                .unwrap_or_default(),
            gid: headers
                .gid
                .or_else(|| header.gid().ok().and_then(|gid| gid.try_into().ok()))
                .unwrap_or_default(),
            mode: header.mode().unwrap_or(0o644),
            modified: header.mtime().unwrap_or_default(),
        };
        let Some(file_name) = path.file_name() else {
            // The root itself.
            return self.place.set_root(&attributes.with_mode(FOLDER_MODE));
        };
        let parent = self.place.parent(&path)?;
        if file_name.as_bytes().starts_with(WHITEOUT) {
            return self.whiteout(&parent, file_name, &path);
        }
        let is_folder = kind.is_dir() || (kind.is_file() && name.ends_with(b"/"));
        if is_folder {
            self.unpacked.bytes += BLOCK;
            return self.place.folder(&parent, file_name, &attributes.with_mode(FOLDER_MODE), &path);
        }
        let link = || headers.link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        if kind.is_file() || kind.is_contiguous() {
            return self.file(&parent, file_name, entry, &attributes.with_mode(FILE_MODE), &path);
        }
        if kind.is_symlink() {
            let target = link().unwrap_or_default();
            if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
                return Err(ImageError::Invalid(format!("{} is a link to nothing", shown(&path))));
            }
            self.unpacked.bytes += BLOCK;
            return self.place.symlink(&parent, file_name, OsStr::from_bytes(&target), &attributes, &path);
        }
        if kind.is_hard_link() {
            let target = relative(&link().unwrap_or_default())?;
            return self.place.hard_link(&parent, file_name, &target, &path);
        }
        // Sandboxes have their own devices.
        if kind.is_character_special() || kind.is_block_special() || kind.is_fifo() {
            return Ok(());
        }
        let path = shown(&path);
        Err(ImageError::Invalid(format!("{path} is of a kind that layers must not contain: {kind:?}")))
    }

    fn whiteout(&mut self, parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), ImageError> {
        let name = name.as_bytes();
        if name == OPAQUE {
            return self.place.hide_lower(parent, path);
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        let hidden = name.strip_prefix(WHITEOUT).unwrap_or_default();
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(ImageError::Invalid(format!("{} hides no name", shown(path))));
        }
        self.place.whiteout(parent, OsStr::from_bytes(hidden), path)
    }

    fn file(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        mut entry: Entry<'_, &mut Bounded>,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<(), ImageError> {
        let mut file = File::from(Place::file(parent, name, path)?);
        let size = entry.size();
        let copied = copy(&mut entry, &mut file, path)?;
        if copied != size {
            return Err(ImageError::Invalid(format!("the layer ends within {}", shown(path))));
        }
        self.unpacked.bytes += copied.div_ceil(BLOCK) * BLOCK;
        self.place.complete(&file, attributes, path)
    }
}

/// Copies the content of an entry; errors of the reader are the layer's.
fn copy(entry: &mut impl Read, file: &mut File, path: &Path) -> Result<u64, ImageError> {
    let mut buffer = vec![0; 128 << 10];
    let mut copied = 0;
    loop {
        let count = match entry.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(&error)),
        };
        let piece = buffer.get(..count).unwrap_or_default();
        file.write_all(piece)
            .map_err(|source| ImageError::file(format!("writing {}", shown(path)), source))?;
        copied += count as u64;
    }
}

/// A path of a layer as one below its folder.
fn relative(name: &[u8]) -> Result<PathBuf, ImageError> {
    let shown = || shown(Path::new(OsStr::from_bytes(name)));
    if name.len() > PATH_MAX || name.contains(&0) {
        return Err(ImageError::Invalid(format!("the path {} is too long or has a NUL byte", shown())));
    }
    let mut path = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(name)).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(ImageError::Invalid(format!("the path {} leaves the image", shown())));
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
