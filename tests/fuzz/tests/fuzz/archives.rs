//! Archives of clients and layers of images: nothing of them is written outside of their folder.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use fuzz_tests::{Target, fuzz};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use crate::choice::seed;

const BLOCK: usize = 512;
const WORDS: &[&[u8]] = &[
    b"..",
    b"../",
    b"/",
    b"/etc/passwd",
    b"./",
    b"\0",
    b"ustar\x0000",
    b"ustar  \0",
    b".wh..wh..opq",
    b".wh.",
    b"path=../../outside\n",
    b"30 path=../../../outside/x\n",
    b"linkpath=/\n",
    b"0000644\0",
    b"77777777777",
    b"\x80\0\0\0\xff",
    b"0",
    b"1",
    b"2",
    b"5",
    b"L",
    b"K",
    b"x",
    b"g",
];

/// An entry of an archive: its kind, path, and content or target.
type Entry = (EntryType, &'static str, &'static str);

const ENTRIES: [Entry; 9] = [
    (EntryType::Directory, "folder/", ""),
    (EntryType::Regular, "folder/file", "content"),
    (EntryType::Symlink, "folder/link", "file"),
    (EntryType::Link, "hard", "folder/file"),
    (EntryType::Symlink, "out", ".."),
    (EntryType::Regular, "out/outside", "written"),
    (EntryType::Regular, ".wh.folder", ""),
    (EntryType::Symlink, "up", "../../outside"),
    (EntryType::Regular, "up", "written"),
];

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        // The library refuses paths that lead out.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let data = if *kind == EntryType::Regular { content.as_bytes() } else { b"" };
        header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Gives each block that could be a header a right checksum: changes would end at the first header otherwise.
fn repaired(input: &[u8]) -> Vec<u8> {
    let mut archive = input.to_vec();
    for block in archive.chunks_exact_mut(BLOCK).filter(|block| block[257..262] == *b"ustar") {
        let header = Header::from_byte_slice(block);
        let mut header = header.clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
    }
    archive
}

/// A folder for archives, beside which nothing may change.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.outside()).unwrap();
        fs::write(place.outside().join("kept"), "kept").unwrap();
        place
    }

    fn outside(&self) -> PathBuf {
        self.0.path().join("outside")
    }

    /// An empty folder, whose parent is beside what may not change.
    fn folder(&self) -> PathBuf {
        let folder = self.0.path().join("inside/folder");
        let _ = fs::remove_dir_all(self.0.path().join("inside"));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Fails if something was written outside of the folder.
    fn check(&self) {
        let names = |folder: &Path| {
            let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.0.path()), ["archive", "inside", "outside"]);
        assert_eq!(names(&self.0.path().join("inside")), ["folder"]);
        assert_eq!(names(&self.outside()), ["kept"]);
        assert_eq!(fs::read(self.outside().join("kept")).unwrap(), b"kept");
        let modes = fs::symlink_metadata(self.outside().join("kept")).unwrap();
        assert!(modes.is_file(), "it is replaced");
    }

    fn unpack(&self, input: &[u8]) -> String {
        let (first, rest) = input.split_first().unwrap_or((&0, &[]));
        let content = compressed(first / 2, repaired(rest));
        fs::write(self.0.path().join("archive"), &content).unwrap();
        let unpacked = if first % 2 == 0 {
            jobs::unpack(&self.0.path().join("archive"), self.folder(), 1 << 20)
        } else {
            images::unpack_layer(content.into(), &self.folder()).map_err(|error| error.to_string())
        };
        self.check();
        format!("{}{}", first % 2, unpacked.err().unwrap_or_default())
    }
}

fn compressed(how: u8, content: Vec<u8>) -> Vec<u8> {
    match how % 4 {
        0 => {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(&content).unwrap();
            gzip.finish().unwrap()
        }
        1 => zstd::encode_all(&*content, 1).unwrap(),
        _ => content,
    }
}

#[test]
fn archives_write_nothing_outside_of_their_folder() {
    let place = Place::new();
    let plain = archive(&ENTRIES);
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|how| seed(how, &plain)).collect();
    seeds.extend((0..8).flat_map(|how| ENTRIES.chunks(2).map(move |some| seed(how, archive(some)))));
    fuzz(&Target { name: "archives", seeds, words: WORDS, check: &|input| place.unpack(input) });
}
