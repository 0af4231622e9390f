//! Tests that set up input roots.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::{Duration, UNIX_EPOCH},
};

use crate::common::*;
use input_root::{InputError, InputRoots, OutputSpec};
use prost::Message as _;
use reapi::{
    digest::to_proto,
    execution::{Command, Directory, DirectoryNode, FileNode, NodeProperties, SymlinkNode},
    protobuf::{Timestamp, UInt32Value},
};

fn spec(working_directory: &str, paths: &[&str]) -> OutputSpec {
    let output_paths = paths.iter().map(|path| (*path).to_owned()).collect();
    let working_directory = working_directory.into();
    OutputSpec::of(&Command { output_paths, working_directory, ..Command::default() }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_of_outputs_are_made_and_outputs_are_not() {
    let rig = Rig::new();
    let digest = rig.input(&[("work/in", file("in")), ("link", Node::Link("work".into()))]).await;
    let spec = spec("work", &["a/b/out", "c", "../up/d", "../link/through/e"]);
    let root = rig.prepare_for(&digest, &spec).await.unwrap();
    for (path, there) in [
        ("work/a/b", true),
        ("work/a/b/out", false),
        ("work/c", false),
        ("up", true),
        ("up/d", false),
        ("work/through", true),
    ] {
        assert_eq!(root.path().join(path).exists(), there, "{path}");
    }
    run_well(&root, "cd work && echo x > a/b/out && mkdir c && echo x > ../up/d");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_working_directory_has_to_be_in_the_input_root() {
    let rig = Rig::new();
    let digest = rig.input(&[("work/in", file("in")), ("out", Node::Link("..".into()))]).await;
    for (directory, fine) in
        [("", true), ("work", true), ("other", false), ("work/in", false), ("out", false)]
    {
        // Outputs do not change that.
        match rig.prepare_for(&digest, &spec(directory, &["a/b"])).await {
            Ok(_) => assert!(fine, "{directory}"),
            Err(InputError::Invalid(why)) => assert!(!fine && why.contains("working directory"), "{why}"),
            Err(other) => panic!("{other}"),
        }
    }
    rig.roots.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_missing_blobs_are_named() {
    let rig = Rig::new();
    let (root, blobs) =
        tree(&[("a/one", file("1")), ("a/two", file("2")), ("b/three", file("3")), ("b/four", file("4"))]);
    let mut gone: Vec<_> = ["1", "3", "4"].iter().map(|content| SHA.digest(content.as_bytes())).collect();
    let kept: Vec<_> = blobs.iter().filter(|(digest, _)| !gone.contains(digest)).cloned().collect();
    rig.cas.put_many(kept).await;
    gone.sort_unstable();
    let missing = |error| {
        let InputError::Missing(missing) = error else { panic!("{error}") };
        missing
    };
    assert_eq!(missing(rig.prepare_for(&root, &OutputSpec::default()).await.err().unwrap()), gone);
    // A missing directory is listed too; what it contains is unknown.
    let rig = Rig::new();
    let (a, _) = tree(&[("one", file("1")), ("two", file("2"))]);
    rig.cas
        .put_many(blobs.into_iter().filter(|(digest, _)| *digest != a && !gone.contains(digest)).collect())
        .await;
    let mut gone: Vec<_> = ["3", "4"].iter().map(|content| SHA.digest(content.as_bytes())).collect();
    gone.push(a);
    gone.sort_unstable();
    assert_eq!(missing(rig.prepare_for(&root, &OutputSpec::default()).await.err().unwrap()), gone);
    assert_eq!(rig.in_slots(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_made_outside_of_the_root() {
    let rig = Rig::new();
    let content = Some(to_proto(&rig.put(b"x").await));
    let named = |name: &str| FileNode { name: name.into(), digest: content.clone(), ..FileNode::default() };
    let link = |name: &str, target: &str| SymlinkNode {
        name: name.into(),
        target: target.into(),
        node_properties: None,
    };
    for directory in [
        Directory { files: vec![named("../x")], ..Directory::default() },
        Directory { files: vec![named("/tmp/x")], ..Directory::default() },
        Directory { files: vec![named("..")], ..Directory::default() },
        Directory { files: vec![named("b"), named("a")], ..Directory::default() },
        Directory { files: vec![named("a"), named("a")], ..Directory::default() },
        Directory { symlinks: vec![link("a", "/etc")], ..Directory::default() },
        Directory { files: vec![named("a")], symlinks: vec![link("a", "..")], ..Directory::default() },
    ] {
        let root = rig.put(&directory.encode_to_vec()).await;
        let refused = rig.prepare_for(&root, &OutputSpec::default()).await;
        assert!(matches!(refused, Err(InputError::Invalid(_))), "{directory:?}");
    }
    let root = rig.put(b"no directory at all").await;
    assert!(matches!(rig.prepare_for(&root, &OutputSpec::default()).await, Err(InputError::Invalid(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diamond_is_refused_by_what_it_would_become() {
    let rig = Rig::new();
    let mut below = rig.put(b"").await;
    for _ in 0..30 {
        let node = |name: &str| DirectoryNode { name: name.into(), digest: Some(to_proto(&below)) };
        let directory = Directory { directories: vec![node("a"), node("b")], ..Directory::default() };
        below = rig.put(&directory.encode_to_vec()).await;
    }
    let refused = rig.prepare_for(&below, &OutputSpec::default()).await;
    assert!(matches!(refused, Err(InputError::Invalid(why)) if why.contains("2147483647")),);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_and_modes_are_as_the_client_gave_them() {
    let rig = Rig::new();
    let props = |seconds, mode: Option<u32>| NodeProperties {
        mtime: Some(Timestamp { seconds, nanos: 5_000 }),
        unix_mode: mode.map(|value| UInt32Value { value }),
        ..NodeProperties::default()
    };
    let digest = rig
        .input(&[
            ("dir", Node::Dir(Some(props(1000, Some(0o700))))),
            ("dir/a", Node::With(b"a".to_vec(), props(2000, None))),
            ("dir/b", Node::With(b"b".to_vec(), props(3000, Some(0o4640)))),
            ("dir/c", file("a")),
        ])
        .await;
    let us = rustix::process::geteuid().as_raw();
    let theirs = owner().map_or(us, |owner| owner.uid);
    for round in 0..3 {
        let root = rig.prepare(&digest).await;
        let look = |path: &str| {
            let meta = fs::metadata(root.path().join(path)).unwrap();
            (meta.modified().unwrap(), meta.mode() & 0o7777, meta.uid())
        };
        let at = |seconds| UNIX_EPOCH + Duration::new(seconds, 5_000);
        assert_eq!(look("dir"), (at(1000), 0o700, theirs), "{round}");
        assert_eq!(look("dir/a"), (at(2000), 0o444, us));
        assert_eq!(look("dir/b"), (at(3000), 0o640, theirs));
        assert_ne!(look("dir/c").0, at(2000));
        run_well(&root, "touch dir/x && echo x > dir/b");
        rig.roots.release(root).await;
        rig.roots.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_kept_trees_are_used_for_others() {
    let rig = Rig::new();
    let shared: Vec<(String, Node)> =
        (0..50).map(|at| (format!("lib/d{}/f{at}", at % 5), file(&format!("{at}")))).collect();
    let with = |name: &'static str| {
        let mut nodes: Vec<(&str, Node)> =
            shared.iter().map(|(path, node)| (&**path, node.clone())).collect();
        nodes.push((name, file(name)));
        nodes
    };
    let (one, two) = (rig.input(&with("one")).await, rig.input(&with("two")).await);
    let first = rig.prepare(&one).await;
    let inode = fs::metadata(first.path().join("lib/d3")).unwrap().ino();
    rig.roots.release(first).await;
    rig.roots.settled().await;
    assert_eq!(rig.roots.kept().entries, 50 + 1 + 1 + 1 + 5);
    let second = rig.prepare(&two).await;
    assert_eq!(fs::metadata(second.path().join("lib/d3")).unwrap().ino(), inode);
    let third = rig.prepare(&one).await;
    assert_ne!(fs::metadata(third.path().join("lib/d3")).unwrap().ino(), inode);
    for (root, name) in [(&second, "two"), (&third, "one")] {
        assert_eq!(listing(root.path()).len(), 50 + 1 + 1 + 1 + 5);
        assert_eq!(fs::read_to_string(root.path().join(name)).unwrap(), name);
    }
    rig.roots.release(second).await;
    rig.roots.release(third).await;
    rig.roots.settled().await;
    rig.roots.forget_kept();
    assert_eq!(rig.roots.kept(), input_root::PoolUse::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_bounded_and_what_the_store_gave_up_is_not_kept() {
    // Only files of another user are linked.
    if owner().is_none() {
        return;
    }
    let rig = Rig::with(|config| config.kept_entries_max = 20);
    for at in 0..10 {
        let digest = rig.input(&[("a/x", file(&format!("{at}"))), ("a/y", file("y"))]).await;
        rig.roots.release(rig.prepare(&digest).await).await;
    }
    rig.roots.settled().await;
    assert_eq!(rig.roots.kept().entries, 20);
    rig.roots.forget_kept();
    let digest = rig.input(&[("x", file("gone"))]).await;
    let root = rig.prepare(&digest).await;
    let path = rig.cas.local_path(&SHA.digest(b"gone"), false).await.unwrap().unwrap();
    fs::remove_file(path).unwrap();
    rig.roots.release(root).await;
    rig.roots.settled().await;
    assert_eq!(rig.roots.kept().entries, 0);
    // The store believes that it still has the blob, and finds out that it does not.
    let refused = rig.prepare_for(&digest, &OutputSpec::default()).await;
    assert!(matches!(refused, Err(InputError::Missing(missing)) if missing == [SHA.digest(b"gone")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slots_prepare_at_once() {
    let rig = Rig::new();
    let nodes: Vec<(String, Node)> =
        (0..300).map(|at| (format!("d{}/e/f{at}", at % 7), file(&format!("{at}")))).collect();
    let digest =
        rig.input(&nodes.iter().map(|(path, node)| (&**path, node.clone())).collect::<Vec<_>>()).await;
    let fresh = listing(rig.prepare(&digest).await.path());
    let tasks = (0..8).map(|_| {
        let (roots, slot, fresh) = (rig.roots.clone(), rig.slot(), fresh.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let root = roots.prepare(&slot, &digest, &OutputSpec::default()).await.unwrap();
                assert_eq!(listing(root.path()), fresh);
                roots.release(root).await;
            }
        })
    });
    futures::future::try_join_all(tasks).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_preparation_and_a_restart_leave_nothing() {
    let rig = Rig::new();
    let nodes: Vec<(String, Node)> =
        (0..3000).map(|at| (format!("d{}/f{at}", at % 7), file(&format!("{at}")))).collect();
    let digest =
        rig.input(&nodes.iter().map(|(path, node)| (&**path, node.clone())).collect::<Vec<_>>()).await;
    for micros in [0, 200, 2000, 8000, 20_000] {
        let (slot, spec) = (rig.slot(), OutputSpec::default());
        let prepare = rig.roots.prepare(&slot, &digest, &spec);
        drop(tokio::time::timeout(Duration::from_micros(micros), prepare).await);
    }
    let root = rig.prepare(&digest).await;
    assert_eq!(listing(root.path()).len(), 3000 + 7 + 1);
    rig.roots.release(root).await;
    rig.roots.settled().await;
    let Rig { dir, cas, roots, .. } = rig;
    drop(roots);
    let config = input_root::InputRootsConfig::new(cas, dir.path().join("roots"), owner());
    let roots = InputRoots::open(config).unwrap();
    assert_eq!(roots.kept().entries, 0);
    assert!(fs::read_dir(dir.path().join("roots/kept")).unwrap().next().is_none());
}
