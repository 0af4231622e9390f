//! Tests of folders to blobs.

use std::{collections::HashMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

use input_root::local::{LocalError, Source, scan, scan_context};
use tempfile::TempDir;

use crate::common::*;

fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    for (path, content) in
        [("src/a.c", "a"), ("src/b.h", "b"), ("src/sub/c.c", "c"), ("tool", "t"), ("other/x", "x")]
    {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    fs::set_permissions(dir.path().join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("a.c", dir.path().join("src/link")).unwrap();
    fs::create_dir(dir.path().join("src/empty")).unwrap();
    dir
}

fn scanned(folder: &Path, patterns: &[&str]) -> Result<input_root::local::Scanned, LocalError> {
    let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    scan(folder, &patterns, SHA)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_becomes_the_same_input_root() {
    let (rig, dir) = (Rig::new(), folder());
    let all = scanned(dir.path(), &["src", "tool", "!**/*.h"]).unwrap();
    let (wanted, _) = tree(&[
        ("src/a.c", file("a")),
        ("src/sub/c.c", file("c")),
        ("src/empty", Node::Dir(None)),
        ("src/link", Node::Link("a.c".into())),
        ("tool", Node::Executable(b"t".to_vec())),
    ]);
    assert_eq!((all.root, all.files, all.bytes), (wanted, 3, 3));
    let known: HashMap<_, _> = all.blobs.iter().cloned().collect();
    assert_eq!(known.len(), all.blobs.len(), "each once");
    for (digest, source) in all.blobs {
        let content = match source {
            Source::File(path) => fs::read(path).unwrap().into(),
            Source::Bytes(bytes) => bytes,
        };
        rig.cas.put(&digest, content).await.unwrap();
    }
    let root = rig.prepare(&all.root).await;
    assert_eq!(
        run_well(&root, "cat src/link src/sub/c.c; test -x tool; test -d src/empty; ls"),
        "acsrc\ntool\n"
    );
}

#[test]
fn patterns_choose_what_is_taken() {
    let dir = folder();
    let files = |patterns: &[&str]| scanned(dir.path(), patterns).unwrap().files;
    assert_eq!(files(&["**"]), 5);
    assert_eq!(files(&["."]), 5);
    assert_eq!(files(&["src/*.c"]), 1);
    assert_eq!(files(&["src/**/*.c"]), 2);
    assert_eq!(files(&["./src/", "!src/sub"]), 2);
    assert_eq!(files(&[]), 0);
    for bad in ["/etc", "../x", "a[", "missing", "src/*.rs"] {
        assert!(scanned(dir.path(), &[bad]).is_err(), "{bad}");
    }
    std::os::unix::fs::symlink("/etc", dir.path().join("abs")).unwrap();
    assert!(matches!(scanned(dir.path(), &["abs"]), Err(LocalError::NoInput { .. })));
}

#[test]
fn the_data_of_a_farm_is_left_out() {
    let dir = folder();
    let before = scanned(dir.path(), &["**"]).unwrap();
    let data = dir.path().join("src/forebay-data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("store"), "x").unwrap();
    let files = scanned(dir.path(), &["**"]).unwrap().files;
    assert_eq!(files, before.files + 1, "a folder without the mark is copied");
    std::fs::write(data.join(model::FARM_DATA_MARK), "").unwrap();
    let after = scanned(dir.path(), &["**"]).unwrap();
    assert_eq!((after.root, after.files), (before.root, before.files));
}

#[test]
fn a_context_is_the_whole_folder() {
    let dir = folder();
    let context = |ignore_files| scan_context(dir.path(), ignore_files, SHA).unwrap();
    assert_eq!(context(false).root, scanned(dir.path(), &["**"]).unwrap().root);
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let data = dir.path().join("other/forebay-data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join(model::FARM_DATA_MARK), "").unwrap();
    assert_eq!((context(false).files, context(false).bytes), (5, 5), "neither the pipe nor the data");
    std::os::unix::fs::symlink("/etc", dir.path().join("abs")).unwrap();
    let before = context(false);
    assert_ne!(before.root, scanned(dir.path(), &["src", "tool", "other"]).unwrap().root, "the symlink");
    fs::write(dir.path().join(".gitignore"), "*.h\n/other\n").unwrap();
    fs::write(dir.path().join(".forebayignore"), "tool\n").unwrap();
    assert_eq!((context(false).files, context(true).files), (7, 4));
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"b\xff");
    fs::write(dir.path().join(name), "").unwrap();
    let error = scan_context(dir.path(), false, SHA).unwrap_err();
    assert!(matches!(&error, LocalError::NoInput { path, .. } if path.ends_with("b\u{fffd}")), "{error}");
    let missing = dir.path().join("none");
    let error = scan_context(&missing, false, SHA).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read folder {}", missing.display()));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "entity not found");
}
