use std::{
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    sync::Arc,
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use model::Digest;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::bounded::Pieces;

/// A layer that is written entry by entry, without any check.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        let fields = header.as_old_mut();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes())
    }

    fn folder(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"")
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"")
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn bounded(layer: &[u8], diff_id: Digest, most: u64) -> Result<Bounded, ImageError> {
    let (sender, pieces) = tokio::sync::mpsc::channel(8);
    let content = Bytes::copy_from_slice(layer);
    let size = content.len() as u64;
    std::thread::spawn(move || {
        for piece in content.chunks(100_000) {
            if sender.blocking_send(content.slice_ref(piece)).is_err() {
                return;
            }
        }
        let _ = sender.blocking_send(Bytes::new());
    });
    Bounded::new(Pieces::new(pieces), diff_id, size, most)
}

/// Unpacks a layer into the folder `layer` of a new folder, in which `outside` has a file.
fn unpacked(layer: &[u8], whiteouts: Whiteouts) -> (tempfile::TempDir, Result<Unpacked, ImageError>) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["layer", "outside"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("outside/file"), "safe").unwrap();
    let mut content = bounded(layer, Digest::of(layer), 1 << 30).unwrap();
    let result = unpack(&mut content, &folder.path().join("layer"), whiteouts);
    let outside: Vec<_> = std::fs::read_dir(folder.path().join("outside")).unwrap().flatten().collect();
    assert_eq!(outside.len(), 1, "a layer wrote outside of its folder");
    assert_eq!(std::fs::read(folder.path().join("outside/file")).unwrap(), b"safe");
    (folder, result)
}

fn refused(layer: &[u8]) -> String {
    let (_folder, result) = unpacked(layer, Whiteouts::Files);
    match result {
        Err(error @ ImageError::Invalid(_)) => error.to_string(),
        other => panic!("expected a refusal, but it is {other:?}"),
    }
}

#[test]
fn an_ordinary_layer_keeps_files_links_and_times_but_no_rights_of_others() {
    let layer = Tar::default()
        .folder("./usr/bin/")
        .file("usr/bin/tool", "program")
        .symlink("bin", "usr/bin")
        .hard_link("usr/bin/same", "usr/bin/tool")
        .file("made/for/it", "x")
        .entry(EntryType::Char, "dev-null", "", b"")
        .entry(EntryType::Fifo, "pipe", "", b"")
        .end();
    let (folder, result) = unpacked(&layer, Whiteouts::Files);
    assert_eq!(result.unwrap().entries, 7);
    let path = |name: &str| folder.path().join("layer").join(name);
    let tool = std::fs::metadata(path("bin/tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.mtime(), tool.nlink()), (0o755, 1_000_000_000, 2));
    assert_eq!(std::fs::read(path("made/for/it")).unwrap(), b"x");
    assert!(!path("dev-null").exists() && !path("pipe").exists());
}

#[test]
fn layers_that_lead_out_of_their_folder_are_refused_by_name() {
    let outside = "../outside";
    for (what, layer, expected) in [
        ("..", Tar::default().file("../outside/file", "bad"), "leaves the image"),
        (".. inside", Tar::default().file("a/../../outside/file", "bad"), "leaves the image"),
        ("a link as folder", Tar::default().symlink("a", outside).file("a/new", "bad"), "below"),
        (
            "a link deep",
            Tar::default().folder("a/").symlink("a/b", "../../outside").file("a/b/c/d", "bad"),
            "below",
        ),
        ("an absolute link", Tar::default().symlink("a", "/tmp").file("a/b", "bad"), "below"),
        ("a file as folder", Tar::default().file("a", "").file("a/b", "bad"), "below"),
        ("a link to itself", Tar::default().symlink("a", "a").file("a/b", "bad"), "below"),
        ("a hard link out", Tar::default().hard_link("a", "../outside/file"), "leaves the image"),
        (
            "a hard link through a link",
            Tar::default().symlink("a", outside).hard_link("b", "a/file"),
            "hard link",
        ),
        ("a hard link to nothing", Tar::default().hard_link("a", "etc/passwd"), "hard link"),
        ("a hard link to itself", Tar::default().file("a", "").hard_link("a", "a"), "hard link"),
        ("a hard link to a folder", Tar::default().folder("a/").hard_link("b", "a"), "hard link"),
        ("a file over a folder", Tar::default().file("a/b", "").file("a", "bad"), "replaces a folder"),
        ("a whiteout out", Tar::default().file("a/.wh...", ""), "hides no name"),
        ("a whiteout of nothing", Tar::default().file(".wh.", ""), "hides no name"),
        ("a folder link of whiteouts", Tar::default().symlink("a", outside).file("a/.wh.file", ""), "below"),
        ("a link to nothing", Tar::default().symlink("a", ""), "link to nothing"),
        ("a sparse file", Tar::default().entry(EntryType::GNUSparse, "a", "", b""), "must not contain"),
    ] {
        let why = refused(&layer.end());
        assert!(why.contains(expected), "{what}: {why}");
    }
}

#[test]
fn a_link_that_is_replaced_leads_nowhere() {
    let outside = Tar::default().symlink("a", "../outside/file").file("a", "own").end();
    let (folder, result) = unpacked(&outside, Whiteouts::Files);
    result.unwrap();
    assert_eq!(std::fs::read(folder.path().join("layer/a")).unwrap(), b"own");
    // A folder over a link is a folder, and files go into it.
    let layer = Tar::default().symlink("a", "../outside").folder("a/").file("a/new", "own").end();
    let (folder, result) = unpacked(&layer, Whiteouts::Files);
    result.unwrap();
    assert!(folder.path().join("layer/a/new").is_file());
}

#[test]
fn bombs_are_refused_before_they_fill_the_disk() {
    let zeros = Tar::default().entry(EntryType::Regular, "zeros", "", &vec![0; 8 << 20]).end();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&zeros).unwrap();
    let packed = gzip.finish().unwrap();
    assert!(packed.len() < 20_000);
    let folder = tempfile::tempdir().unwrap();
    let unpack_with = |layer: &[u8], most| {
        let mut content = bounded(layer, Digest::of(&zeros), most)?;
        unpack(&mut content, folder.path(), Whiteouts::Files)
    };
    let error = unpack_with(&packed, 1 << 20).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("1048576 bytes"), "{error}");
    assert!(std::fs::metadata(folder.path().join("zeros")).unwrap().len() <= 1 << 20);
    unpack_with(&packed, 1 << 30).unwrap();
    // What follows the archive counts, too.
    let mut endless = Tar::default().file("a", "b").end();
    endless.resize(4 << 20, 0);
    let error = unpack_with(&endless, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("1048576 bytes"), "{error}");
    // A name that takes all the memory.
    let long = Tar::default().entry(EntryType::GNULongName, "x", "", &vec![b'a'; 2 << 20]).file("a", "");
    assert!(refused(&long.end()).contains("too long"));
    let long = Tar::default().entry(EntryType::GNULongName, "x", "", &vec![b'a'; 5000]).file("a", "");
    assert!(refused(&long.end()).contains("too long"));
}

#[test]
fn damaged_layers_and_wrong_digests_are_refused() {
    let layer = Tar::default().file("a", "content").end();
    for (what, damaged, expected) in [
        ("rubbish", b"rubbish".repeat(200), "not a tar archive"),
        ("half of a file", layer[..515].to_vec(), "ends within"),
        ("bzip2", b"BZh91AY&SY".to_vec(), "bzip2"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let result = bounded(&damaged, Digest::of(&damaged), 1 << 20)
            .and_then(|mut content| unpack(&mut content, folder.path(), Whiteouts::Files));
        let error = result.unwrap_err();
        assert!(error.is_final() && error.to_string().contains(expected), "{what}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut content = bounded(&layer, Digest::of(b"other"), 1 << 20).unwrap();
    let error = unpack(&mut content, folder.path(), Whiteouts::Files).unwrap_err().to_string();
    assert!(error.contains("has the digest"), "{error}");
}

#[test]
fn a_store_that_fails_is_not_the_layers_fault() {
    let layer = Tar::default().file("a", &"content".repeat(1000)).end();
    let (sender, pieces) = tokio::sync::mpsc::channel(8);
    sender.try_send(Bytes::copy_from_slice(&layer[..1000])).unwrap();
    drop(sender);
    let folder = tempfile::tempdir().unwrap();
    let mut content = Bounded::new(Pieces::new(pieces), Digest::of(&layer), 8000, 1 << 20).unwrap();
    let error = unpack(&mut content, folder.path(), Whiteouts::Files).unwrap_err();
    assert!(!error.is_final(), "{error}");
}

#[test]
fn long_names_and_compressed_layers_are_read() {
    let long = format!("{}/file", "d".repeat(200));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    builder.append_data(&mut header, &long, &b"x"[..]).unwrap();
    let layer = builder.into_inner().unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&layer).unwrap();
    for packed in [gzip.finish().unwrap(), zstd::encode_all(layer.as_slice(), 1).unwrap(), layer.clone()] {
        let folder = tempfile::tempdir().unwrap();
        let mut content = bounded(&packed, Digest::of(&layer), 1 << 20).unwrap();
        unpack(&mut content, folder.path(), Whiteouts::Files).unwrap();
        assert_eq!(std::fs::read(folder.path().join(&long)).unwrap(), b"x");
    }
}

#[test]
fn whiteouts_hide_lower_layers_in_any_order_and_nothing_of_their_own() {
    let layer = || {
        Tar::default()
            .file(".wh.gone", "")
            .file("kept", "own")
            .file(".wh.kept", "")
            .file("opaque/before", "own")
            .file("opaque/.wh..wh..opq", "")
            .file("opaque/after", "own")
            .file(".wh.again", "")
            .folder("again/")
            .file(".wh..wh.aufs", "")
            .end()
    };
    let (folder, result) = unpacked(&layer(), Whiteouts::Files);
    result.unwrap();
    let path = |name: &str| folder.path().join("layer").join(name);
    assert!([".wh.gone", "kept", "opaque/.wh..wh..opq"].iter().all(|name| path(name).is_file()));
    assert!(!path(".wh.kept").exists() && !path(".wh..wh.aufs").exists());
    let place = Arc::new(tempfile::tempdir().unwrap());
    if !crate::place::can_overlay(place.path()).unwrap() {
        return;
    }
    let (folder, result) = unpacked(&layer(), Whiteouts::Overlay);
    result.unwrap();
    let path = |name: &str| folder.path().join("layer").join(name);
    let gone = std::fs::symlink_metadata(path("gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    let is_opaque = |name: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(path(name), "trusted.overlay.opaque", &mut value).is_ok()
    };
    assert!(is_opaque("opaque") && is_opaque("again") && !path("kept").is_dir());
    assert_eq!(std::fs::read(path("opaque/before")).unwrap(), b"own");
}
