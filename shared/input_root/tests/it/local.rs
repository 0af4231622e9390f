//! Tests of folders to blobs, and of results to folders.

use std::{collections::HashMap, error::Error, fs, os::unix::fs::PermissionsExt as _, path::Path};

use bytes::Bytes;
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use input_root::local::{BlobSource, LocalError, Source, download, scan, scan_context};
use model::BlobDigest;
use reapi::{
    digest::to_proto,
    execution::{ActionResult, ExecutedActionMetadata, OutputFile, OutputSymlink},
};
use tempfile::TempDir;

use crate::common::*;

type Pieces = BoxStream<'static, Result<Bytes, Box<dyn Error + Send + Sync>>>;

struct FromCas<'a>(&'a Rig);

impl BlobSource for FromCas<'_> {
    async fn read(&self, digest: &BlobDigest) -> Result<Pieces, Box<dyn Error + Send + Sync>> {
        let content = self.0.cas.get(digest).await?.ok_or("it is gone")?;
        Ok(stream::iter([Ok(content)]).boxed())
    }
}

struct Lies;

impl BlobSource for Lies {
    async fn read(&self, _: &BlobDigest) -> Result<Pieces, Box<dyn Error + Send + Sync>> {
        Ok(stream::iter([Ok(Bytes::from_static(b"something else"))]).boxed())
    }
}

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

#[tokio::test(flavor = "multi_thread")]
async fn outputs_come_back_as_they_were() {
    let rig = Rig::new();
    let spec = outputs(&["d", "sub/x", "link", "empty"]);
    let root = rig.prepare_for(&rig.input(&[]).await, &spec).await.unwrap();
    let script = "mkdir -p d/e/f d/g; echo 1 > d/e/f/1; cp d/e/f/1 d/g/1; chmod +x d/g/1; ln -s e d/l; \
        echo x > sub/x; ln -s sub link; : > empty; head -c 300000 /dev/zero > d/big";
    run_well(&root, script);
    let wanted = listing(root.path());
    let result = rig.collect(&root, &spec).await.unwrap().into_result(0, ExecutedActionMetadata::default());
    let to = TempDir::new().unwrap();
    // Existing files are replaced.
    fs::create_dir(to.path().join("sub")).unwrap();
    fs::write(to.path().join("sub/x"), "old").unwrap();
    let done = download(&FromCas(&rig), &result, SHA, to.path()).await.unwrap();
    assert_eq!(done.files, 5);
    let strip = |listing: std::collections::BTreeMap<String, String>| -> Vec<(String, String)> {
        let rest = |what: String| what.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
        listing.into_iter().map(|(path, what)| (path, rest(what))).collect()
    };
    assert_eq!(strip(listing(to.path())), strip(wanted));
    assert_eq!(fs::metadata(to.path().join("d/g/1")).unwrap().permissions().mode() & 0o111, 0o111);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_writes_nowhere_else_and_only_what_it_names() {
    let rig = Rig::new();
    let digest = Some(to_proto(&rig.put(b"evil").await));
    let output =
        |path: &str| OutputFile { path: path.into(), digest: digest.clone(), ..OutputFile::default() };
    let around = TempDir::new().unwrap();
    let to = around.path().join("to");
    fs::create_dir(&to).unwrap();
    std::os::unix::fs::symlink("..", to.join("up")).unwrap();
    for path in ["../evil", "/evil", "up/evil", "a/../../evil", ""] {
        let result = ActionResult { output_files: vec![output(path)], ..ActionResult::default() };
        assert!(download(&FromCas(&rig), &result, SHA, &to).await.is_err(), "{path}");
    }
    let link = OutputSymlink { path: "l".into(), target: "..".into(), node_properties: None };
    let result = ActionResult {
        output_files: vec![output("l/evil")],
        output_symlinks: vec![link],
        ..ActionResult::default()
    };
    assert!(download(&FromCas(&rig), &result, SHA, &to).await.is_err());
    assert!(!around.path().join("evil").exists());
    let result = ActionResult { output_files: vec![output("fine")], ..ActionResult::default() };
    assert!(matches!(download(&Lies, &result, SHA, &to).await, Err(LocalError::Fetch { .. })));
    assert!(!to.join("fine").exists());
}
