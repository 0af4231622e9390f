use std::{collections::BTreeMap, fs, io::Write as _};

use tar::{Builder, EntryType, Header};

use super::*;

/// Builds an archive of these entries: kind, name, and content or target.
fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, text) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(if name.ends_with("run.sh") { 0o755 } else { 0o644 });
        let is_file = matches!(kind, EntryType::Regular | EntryType::XHeader | EntryType::GNULongName);
        let content = if is_file { text.as_bytes() } else { b"" };
        header.set_size(content.len() as u64);
        // Written raw, because the builder would refuse some names.
        let raw = header.as_ustar_mut().unwrap();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        if !is_file {
            raw.linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpack_with(bytes: &[u8], bytes_max: u64) -> Result<BTreeMap<String, String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    fs::write(&path, bytes).unwrap();
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    let unpacking = Unpacking { folder: files, bytes_left: bytes_max, files: 0, cancelled: Arc::default() };
    match unpacking.run(&path) {
        Ok(tree) => {
            let mut all = BTreeMap::new();
            walk(&tree, "", &mut all);
            Ok(all)
        }
        Err(UnpackError::Archive(why)) => Err(why),
        Err(UnpackError::Disk(error)) => panic!("{error}"),
    }
}

fn unpack(bytes: &[u8]) -> Result<BTreeMap<String, String>, String> {
    unpack_with(bytes, 1 << 20)
}

fn walk(folder: &Folder, place: &str, all: &mut BTreeMap<String, String>) {
    for (name, node) in folder.entries() {
        let path = join(place, name);
        let text = match node {
            Node::Folder(below) => {
                walk(below, &path, all);
                "folder".to_owned()
            }
            Node::Link(target) => format!("-> {target}"),
            Node::File { content, executable } => {
                let bytes = fs::read(content.path().unwrap()).unwrap();
                assert_eq!(FUNCTION.digest(&bytes), content.digest().unwrap());
                format!("{}{}", String::from_utf8(bytes).unwrap(), if *executable { "*" } else { "" })
            }
        };
        all.insert(path, text);
    }
}

use EntryType::{Directory, GNULongName, Link, Regular, Symlink, XHeader};

#[test]
fn what_is_in_an_archive_is_there_however_it_is_packed() {
    let plain = archive(&[
        (Directory, "./", ""),
        (Directory, "a/", ""),
        (Regular, "a/b", "text"),
        (Regular, "run.sh", "#!/bin/sh"),
        (Symlink, "a/up", "../run.sh"),
        (Link, "hard", "a/b"),
        (Regular, "old/", ""),
    ]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let zstd = zstd::encode_all(&plain[..], 1).unwrap();
    let expected: BTreeMap<String, String> = [
        ("a", "folder"),
        ("a/b", "text"),
        ("a/up", "-> ../run.sh"),
        ("hard", "text"),
        ("old", "folder"),
        ("run.sh", "#!/bin/sh*"),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    for bytes in [plain, gzip.finish().unwrap(), zstd] {
        assert_eq!(unpack(&bytes), Ok(expected.clone()));
    }
}

#[test]
fn long_names_come_from_the_entry_before() {
    let long = format!("{}/x", "n".repeat(180));
    let record = |text: String| format!("{} {text}", text.len() + 4);
    let pax = record(format!("path={long}\n"));
    assert_eq!(pax.len(), 192, "the length of a record includes its own digits");
    for before in [(GNULongName, "x", &*format!("{long}\0")), (XHeader, "x", &*pax)] {
        let found = unpack(&archive(&[before, (Regular, "short", "1"), (Regular, "next", "2")])).unwrap();
        assert_eq!(found.get(&long).map(String::as_str), Some("1"));
        assert_eq!(found.get("next").map(String::as_str), Some("2"));
    }
}

#[test]
fn nothing_leaves_the_folder() {
    for (entries, says) in [
        (&[(Regular, "../x", "1")][..], "leaves the workspace"),
        (&[(Regular, "/etc/x", "1")], "absolute"),
        (&[(Regular, "a/../../x", "1")], "leaves the workspace"),
        (&[(Symlink, "l", "/etc")], "out of the archive"),
        (&[(Symlink, "a/l", "../../x")], "out of the archive"),
        (&[(Symlink, "l", "a"), (Regular, "l/x", "1")], "below \"l\""),
        (&[(Regular, "f", "1"), (Regular, "f/x", "1")], "below \"f\""),
        (&[(Link, "l", "../../etc/passwd")], "not an earlier file"),
        (&[(Link, "l", "later")], "not an earlier file"),
        (&[(EntryType::Char, "null", "")], "neither a file nor a folder"),
        (&[(EntryType::Fifo, "pipe", "")], "neither a file nor a folder"),
    ] {
        let why = unpack(&archive(entries)).unwrap_err();
        assert!(why.contains(says), "{entries:?}: {why}");
    }
}

#[test]
fn a_bomb_ends_at_the_limit() {
    let zeros = "0".repeat(200_000);
    let bytes = archive(&[(Regular, "a", &zeros), (Regular, "b", &zeros)]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&bytes).unwrap();
    let why = unpack_with(&gzip.finish().unwrap(), 300_000).unwrap_err();
    assert!(why.contains("more bytes than a step may unpack"), "{why}");
    let long = archive(&[(GNULongName, "x", &"n".repeat(2 << 20)), (Regular, "a", "1")]);
    assert!(unpack(&long).unwrap_err().contains("too long"));
}

#[test]
fn what_is_no_archive_is_said_to_be_none() {
    assert!(
        unpack(b"hello, this is not an archive at all, and it goes on for a while".repeat(20).as_slice())
            .is_err()
    );
    assert!(unpack(&archive(&[(Regular, "a", "12345")])[..514]).is_err(), "cut off");
    assert!(unpack(b"BZh91AY&SY").unwrap_err().contains("bzip2"));
    assert_eq!(unpack(&archive(&[])), Ok(BTreeMap::new()));
}
