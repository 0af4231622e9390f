//! OCI image layouts on this machine: a folder, or a tar archive of one (OCI Image Layout Specification 1.1).

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufReader, Read as _},
    path::{Path, PathBuf},
};

use command_line::failure::{FAILED, Failure, USAGE};
use model::{BlobDigest, Digest, DigestFunction};
use remote::{Remote, Source};
use tempfile::TempDir;

const INDEX: &str = "index.json";
const BLOBS: &str = "blobs/sha256";
/// First bytes of archives that are compressed by gzip, zstd and xz.
const COMPRESSED: [&[u8]; 3] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd], &[0xfd, b'7', b'z']];
/// Maximum bytes of an index that is read.
const INDEX_BYTES_MAX: u64 = 1 << 20;

/// A layout with one image.
pub(super) struct Layout {
    pub(super) manifest: BlobDigest,
    /// Files of its blobs, whose digests were checked.
    blobs: HashMap<BlobDigest, Source>,
    /// Holds the files of an archive.
    _unpacked: Option<TempDir>,
}

/// Reads and checks a layout.
///
/// Fails if it is not a layout of one image, or if the content of a blob does not have the digest of its name.
pub(super) fn read(path: &Path) -> Result<Layout, Failure> {
    let (folder, unpacked) = if path.is_dir() {
        (path.to_owned(), None)
    } else {
        let unpacked = unpack(path).map_err(|error| {
            Failure::new(USAGE, format!("cannot read the archive {}", path.display()), &error)
        })?;
        (unpacked.path().to_owned(), Some(unpacked))
    };
    let unreadable = |error: &dyn std::error::Error| {
        Failure::new(USAGE, format!("{} is no OCI image layout", path.display()), error)
    };
    let mut index = Vec::new();
    let opened = if folder.join(INDEX).is_file() {
        File::open(folder.join(INDEX))
    } else {
        Err(io::ErrorKind::NotFound.into())
    };
    if opened.is_err() && folder.join("manifest.json").is_file() {
        let line = format!(
            "{} is an image of Docker: skopeo copy docker-archive:… oci:… makes a layout of it",
            path.display()
        );
        return Err(Failure::usage(line));
    }
    if opened.is_err() {
        return Err(Failure::usage(format!("{} is no OCI image layout: it has no {INDEX}", path.display())));
    }
    let opened = opened.map_err(|error| unreadable(&error))?;
    opened.take(INDEX_BYTES_MAX).read_to_end(&mut index).map_err(|error| unreadable(&error))?;
    let manifest = images::manifest_of_layout(&index).map_err(|error| unreadable(&error))?;
    let blobs = blobs(&folder.join(BLOBS)).map_err(|error| unreadable(&error))?;
    if !blobs.contains_key(&manifest) {
        let line = format!("{} does not have its manifest {}", path.display(), Digest::of_blob(&manifest));
        return Err(Failure::usage(line));
    }
    Ok(Layout { manifest, blobs, _unpacked: unpacked })
}

/// The blobs of a folder, by their digests.
fn blobs(folder: &Path) -> io::Result<HashMap<BlobDigest, Source>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let mut hasher = DigestFunction::Sha256.hasher();
        let mut file = BufReader::with_capacity(1 << 20, File::open(&path)?);
        loop {
            let piece = io::BufRead::fill_buf(&mut file)?;
            if piece.is_empty() {
                break;
            }
            hasher.update(piece);
            let length = piece.len();
            io::BufRead::consume(&mut file, length);
        }
        let digest = hasher.finish();
        if path.file_name().is_none_or(|name| name != digest.hex().as_str()) {
            let wrong =
                format!("the content of {} has the digest {}", path.display(), Digest::of_blob(&digest));
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        found.insert(digest, Source::File(path));
    }
    Ok(found)
}

/// Unpacks the files of a layout; others are left out.
fn unpack(archive: &Path) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::create_dir_all(folder.path().join(BLOBS))?;
    let mut file = File::open(archive)?;
    let mut start = [0; 4];
    let read = file.read(&mut start)?;
    if COMPRESSED.iter().any(|magic| start.get(..read).is_some_and(|start| start.starts_with(magic))) {
        return Err(io::Error::other("it is compressed: decompress it first"));
    }
    io::Seek::rewind(&mut file)?;
    let mut archive = tar::Archive::new(BufReader::new(file));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let Some(to) = place(&name).filter(|_| entry.header().entry_type().is_file()) else { continue };
        io::copy(&mut entry, &mut File::create(folder.path().join(to))?)?;
    }
    Ok(folder)
}

/// Where a file of a layout is put; `None` if it belongs to none.
fn place(name: &Path) -> Option<PathBuf> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let blob = name.strip_prefix(BLOBS).ok().and_then(Path::to_str);
    let is_blob = |name: &&str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if name == Path::new(INDEX) || name == Path::new("manifest.json") || blob.as_ref().is_some_and(is_blob) {
        Some(name.to_owned())
    } else {
        None
    }
}

impl Layout {
    /// Uploads the blobs that the store does not have.
    pub(super) async fn upload(&self, remote: &Remote) -> Result<(), Failure> {
        let uploaded = remote.upload(&self.blobs).await;
        uploaded.map(drop).map_err(|error| Failure::new(FAILED, "cannot upload the image", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_puts_files_only_where_a_layout_has_them() {
        let hex = "a".repeat(64);
        let blob = format!("blobs/sha256/{hex}");
        assert_eq!(place(Path::new(&format!("./{blob}"))), Some(PathBuf::from(&blob)));
        assert_eq!(place(Path::new("index.json")), Some(PathBuf::from("index.json")));
        let climb = format!("blobs/sha256/../{}", "a".repeat(61));
        for other in ["../index.json", "/index.json", "blobs/sha256/x", &climb, "oci-layout"] {
            assert_eq!(place(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_blob_must_have_the_content_that_its_name_says() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(BLOBS)).unwrap();
        let digest = Digest::of(b"manifest");
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}","size":8}}]}}"#);
        fs::write(folder.path().join(INDEX), index).unwrap();
        let blob = folder.path().join(BLOBS).join(digest.hex());
        assert!(read(folder.path()).is_err(), "the manifest is missing");
        fs::write(&blob, "manifest").unwrap();
        assert_eq!(read(folder.path()).ok().unwrap().manifest, digest.of_size(8));
        fs::write(&blob, "mainfest").unwrap();
        assert!(read(folder.path()).is_err(), "the content is another");
    }
}
