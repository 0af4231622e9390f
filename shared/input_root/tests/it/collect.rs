//! Tests of the outputs of actions.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use input_root::{CollectError, OutputSpec};
use prost::Message as _;
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check},
    execution::{
        ActionResult, Command, Digest, Directory, ExecutedActionMetadata, Tree,
        command::OutputDirectoryFormat,
    },
};

use crate::common::*;

#[expect(deprecated, reason = "the fields of clients before version 2.1")]
fn old(files: &[&str], directories: &[&str]) -> OutputSpec {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    let (output_files, output_directories) = (owned(files), owned(directories));
    OutputSpec::of(&Command { output_files, output_directories, ..Command::default() }).unwrap()
}

fn formatted(path: &str, format: OutputDirectoryFormat, properties: &[&str]) -> OutputSpec {
    OutputSpec::of(&Command {
        output_paths: vec![path.into()],
        output_directory_format: format.into(),
        output_node_properties: properties.iter().map(|name| (*name).to_owned()).collect(),
        ..Command::default()
    })
    .unwrap()
}

async fn act(rig: &Rig, script: &str, spec: &OutputSpec) -> Result<ActionResult, CollectError> {
    let digest = rig
        .input(&[("in/a", file("a")), ("in/tool", Node::Executable(b"tool".to_vec())), ("in/b/c", file("c"))])
        .await;
    let root = rig.prepare_for(&digest, spec).await.unwrap();
    run_well(&root, script);
    let collected = rig.collect(&root, spec).await;
    rig.roots.release(root).await;
    collected.map(|collected| collected.into_result(0, ExecutedActionMetadata::default()))
}

/// Checks a tree as a client would. Returns all its directories, root first.
async fn tree_of(rig: &Rig, digest: &Digest) -> Vec<Directory> {
    let bytes = rig.content(digest).await;
    let tree = Tree::decode(&*bytes).unwrap();
    assert_eq!(tree.encode_to_vec(), bytes, "records only, in order");
    let mut all = vec![tree.root.unwrap()];
    all.extend(tree.children);
    let mut known: Vec<String> = vec![];
    for (at, directory) in all.iter().enumerate() {
        check(directory).unwrap();
        let own = SHA.digest(&directory.encode_to_vec()).hex();
        assert!(at == 0 || known.contains(&own), "parents come before their children");
        assert!(!all[..at].contains(directory), "each once");
        known.extend(directory.directories.iter().map(|node| node.digest.clone().unwrap().hash));
        for file in &directory.files {
            let digest = from_proto(file.digest.as_ref().unwrap(), SHA).unwrap();
            assert!(rig.cas.contains(&digest).await.unwrap(), "{}", file.name);
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn files_directories_and_what_is_not_there() {
    let rig = Rig::new();
    let script =
        "echo x > x; echo y > d/y; chmod 700 d/y; mkdir -p d/e/f d/g; echo same > d/e/f/s; cp -r d/e d/g/e";
    let spec = outputs(&["none/where", "x", "d", "d/y", "missing"]);
    let result = act(&rig, &format!("mkdir -p d; {script}"), &spec).await.unwrap();
    let files: Vec<_> = result.output_files.iter().map(|file| (&*file.path, file.is_executable)).collect();
    assert_eq!(files, [("x", false), ("d/y", true)]);
    for (file, content) in result.output_files.iter().zip(["x\n", "y\n"]) {
        assert_eq!(rig.content(file.digest.as_ref().unwrap()).await, content.as_bytes());
    }
    let [d] = &*result.output_directories else { panic!("{result:?}") };
    assert!(d.path == "d" && d.is_topologically_sorted && d.root_directory_digest.is_none());
    let tree = tree_of(&rig, d.tree_digest.as_ref().unwrap()).await;
    // The distinct directories d, g, e (which occurs twice) and f.
    assert_eq!(tree.len(), 4);
    assert!(tree[0].files[0].is_executable);
    let again = act(&rig, &format!("mkdir -p d; {script}"), &spec).await.unwrap();
    assert_eq!(again.output_directories, result.output_directories);
}

#[tokio::test(flavor = "multi_thread")]
async fn s11_stored_files_belong_to_us_and_are_read_only() {
    // Only files of another user are linked.
    if owner().is_none() {
        return;
    }
    let rig = Rig::new();
    let result = act(&rig, "echo content > out; chmod 6777 out", &outputs(&["out"])).await.unwrap();
    let digest = from_proto(result.output_files[0].digest.as_ref().unwrap(), SHA).unwrap();
    let path = rig.cas.local_path(&digest, false).await.unwrap().unwrap();
    let meta = fs::metadata(path).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o444));
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_writers_cannot_change_what_was_stored() {
    // Only files of another user are linked.
    if owner().is_none() {
        return;
    }
    let rig = Rig::new();
    // A second name elsewhere, and attributes on the file.
    let result = act(&rig, "echo one > out; ln out other; chmod 666 out", &outputs(&["out"])).await.unwrap();
    let digest = from_proto(result.output_files[0].digest.as_ref().unwrap(), SHA).unwrap();
    assert_eq!(fs::metadata(rig.cas.local_path(&digest, false).await.unwrap().unwrap()).unwrap().nlink(), 1);
    let spec = outputs(&["out"]);
    let root = rig.prepare_for(&rig.input(&[]).await, &spec).await.unwrap();
    run_well(&root, "echo two > out");
    if rustix::fs::setxattr(root.path().join("out"), "user.x", b"x", rustix::fs::XattrFlags::empty()).is_ok()
    {
        let collected = rig.collect(&root, &spec).await.unwrap();
        let digest = from_proto(collected.files[0].digest.as_ref().unwrap(), SHA).unwrap();
        let path = rig.cas.local_path(&digest, false).await.unwrap().unwrap();
        assert_eq!(rustix::fs::listxattr(path, &mut [0_u8; 256]).unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_are_put_out_again_are_recognised() {
    for rig in [Rig::new(), Rig::with(|config| config.link = false)] {
        let before = rig.cas.stats().blobs_written;
        let result = act(&rig, "echo new > new", &old(&[], &[""])).await.unwrap();
        let [all] = &*result.output_directories else { panic!("{result:?}") };
        assert_eq!(all.path, "");
        let tree = tree_of(&rig, all.tree_digest.as_ref().unwrap()).await;
        assert_eq!(tree.len(), 3);
        assert_eq!(tree[0].files[0].name, "new");
        // Blobs and directories of the input, then the new file and the tree.
        assert_eq!(rig.cas.stats().blobs_written - before, 6 + 2);
        rig.roots.settled().await;
        assert!(rig.roots.kept().trees > 0, "they were not taken away");
        let tampered =
            act(&rig, "rm in/a; echo b > in/a; mv in/tool in/b/c", &outputs(&["in"])).await.unwrap();
        let tree = tree_of(&rig, tampered.output_directories[0].tree_digest.as_ref().unwrap()).await;
        assert_eq!(rig.content(tree[0].files[0].digest.as_ref().unwrap()).await, b"b\n");
        assert_eq!(rig.content(tree[1].files[0].digest.as_ref().unwrap()).await, b"tool");
        assert!(tree[1].files[0].is_executable);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_is_a_tree_with_an_empty_root() {
    let rig = Rig::new();
    let result = act(&rig, "mkdir d", &outputs(&["d"])).await.unwrap();
    let digest = result.output_directories[0].tree_digest.as_ref().unwrap();
    assert_eq!(rig.content(digest).await, [0x0a, 0]);
    assert_eq!(tree_of(&rig, digest).await, [Directory::default()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_format_says_how_directories_are_stored() {
    let rig = Rig::new();
    let script = "mkdir -p d/e d/f; echo x > d/e/x; echo y > d/f/y";
    let tree = act(&rig, script, &formatted("d", OutputDirectoryFormat::TreeOnly, &[])).await.unwrap();
    let only = act(&rig, script, &formatted("d", OutputDirectoryFormat::DirectoryOnly, &[])).await.unwrap();
    let both =
        act(&rig, script, &formatted("d", OutputDirectoryFormat::TreeAndDirectory, &[])).await.unwrap();
    let [tree, only, both] = [tree, only, both].map(|result| result.output_directories[0].clone());
    assert!(tree.root_directory_digest.is_none() && only.tree_digest.is_none());
    assert_eq!(
        (&tree.tree_digest, &only.root_directory_digest),
        (&both.tree_digest, &both.root_directory_digest)
    );
    let all = tree_of(&rig, both.tree_digest.as_ref().unwrap()).await;
    let root = Directory::decode(&*rig.content(both.root_directory_digest.as_ref().unwrap()).await).unwrap();
    assert_eq!(root, all[0]);
    for node in &root.directories {
        let child = Directory::decode(&*rig.content(node.digest.as_ref().unwrap()).await).unwrap();
        assert!(all.contains(&child));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_are_given_when_asked_for() {
    let rig = Rig::new();
    let script = "mkdir -m 750 d; echo x > d/x; chmod 640 d/x; touch -d @12345.000000006 d/x";
    let spec = formatted("d", OutputDirectoryFormat::TreeOnly, &["mtime", "unix_mode"]);
    let result = act(&rig, script, &spec).await.unwrap();
    let tree = tree_of(&rig, result.output_directories[0].tree_digest.as_ref().unwrap()).await;
    let props = tree[0].files[0].node_properties.clone().unwrap();
    let mtime = props.mtime.unwrap();
    assert_eq!((mtime.seconds, mtime.nanos, props.unix_mode.unwrap().value), (12345, 6, 0o640));
    assert_eq!(tree[0].node_properties.clone().unwrap().unix_mode.unwrap().value, 0o750);
}

#[tokio::test(flavor = "multi_thread")]
#[expect(deprecated, reason = "the fields of clients before version 2.1")]
async fn symlinks_are_kept_as_they_are() {
    let rig = Rig::new();
    let script =
        "ln -s in/a file; ln -s in dir; ln -s nowhere gone; ln -s loop loop; mkdir d; ln -s ../in d/l";
    let result = act(&rig, script, &outputs(&["file", "dir", "gone", "loop", "d"])).await.unwrap();
    let names = |links: &[reapi::execution::OutputSymlink]| {
        links.iter().map(|link| format!("{}>{}", link.path, link.target)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&result.output_symlinks), "file>in/a dir>in gone>nowhere loop>loop");
    assert_eq!(names(&result.output_file_symlinks), "file>in/a gone>nowhere loop>loop");
    assert_eq!(names(&result.output_directory_symlinks), "dir>in");
    let tree = tree_of(&rig, result.output_directories[0].tree_digest.as_ref().unwrap()).await;
    assert_eq!(tree[0].symlinks[0].target, "../in");
    let result = act(&rig, script, &old(&["file", "gone"], &["dir", "loop"])).await.unwrap();
    assert_eq!(names(&result.output_file_symlinks), "file>in/a gone>nowhere");
    assert_eq!(names(&result.output_directory_symlinks), "dir>in loop>loop");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_kind_is_the_actions_fault() {
    let rig = Rig::new();
    for (script, spec) in [
        ("mkdir out", old(&["out"], &[])),
        ("echo > out", old(&[], &["out"])),
        ("ln -s in out", old(&["out"], &[])),
        ("ln -s in/a out", old(&[], &["out"])),
    ] {
        let error = act(&rig, script, &spec).await.unwrap_err();
        assert!(matches!(&error, CollectError::WrongKind { path, .. } if path == "out"), "{script}: {error}");
        assert!(error.is_the_actions());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn absolute_symlinks_are_refused_unless_they_are_allowed() {
    for (script, shown) in [("ln -s /etc out", "out"), ("mkdir -p out/d; ln -s /etc out/d/l", "out/d/l")] {
        let error = act(&Rig::new(), script, &outputs(&["out"])).await.unwrap_err();
        assert!(matches!(&error, CollectError::AbsoluteTarget { path, .. } if path == shown), "{error}");
        let rig = Rig::with(|config| config.absolute_targets = AbsoluteTargets::Allowed);
        act(&rig, script, &outputs(&["out"])).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_nothing_outside_of_the_input_root_is_read() {
    let rig = Rig::with(|config| config.absolute_targets = AbsoluteTargets::Allowed);
    for script in [
        "ln -s /etc d",
        "ln -s ../../../../../../../../etc d",
        "ln -s in/up d; ln -s ../.. in/up",
        "ln -s /proc/self/root/etc d",
    ] {
        let spec = outputs(&["d/passwd"]);
        // The directory of the output is created first; the action puts a symlink in its place.
        let error = act(&rig, &format!("rmdir d; {script}"), &spec).await.unwrap_err();
        assert!(matches!(&error, CollectError::Outside { path } if path == "d/passwd"), "{script}: {error}");
    }
    let result = act(&rig, "rmdir d; ln -s in d; echo x > in/x", &outputs(&["d/x"])).await.unwrap();
    assert_eq!(result.output_files[0].path, "d/x");
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_special_files_are_named_and_not_opened() {
    let rig = Rig::new();
    for (script, shown) in [("mkfifo out", "out"), ("mkdir -p out/d; mkfifo out/d/pipe", "out/d/pipe")] {
        let spec = outputs(&["out"]);
        let error = tokio::time::timeout(Duration::from_secs(20), act(&rig, script, &spec));
        let error = error.await.unwrap().unwrap_err();
        assert!(
            matches!(&error, CollectError::Special { path, kind: "named pipe" } if path == shown),
            "{error}"
        );
    }
    let error = act(&rig, "mkdir out; touch out/$(printf '\\377')", &outputs(&["out"])).await.unwrap_err();
    assert!(matches!(error, CollectError::NotText { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_may_read_is_read_all_the_same() {
    let rig = Rig::new();
    let result = act(&rig, "mkdir out; echo x > out/x; chmod 0 out/x out", &outputs(&["out"])).await.unwrap();
    assert_eq!(
        tree_of(&rig, result.output_directories[0].tree_digest.as_ref().unwrap()).await[0].files.len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_inlined_when_short_and_stored_always() {
    let rig = Rig::new();
    let root = rig.prepare(&rig.input(&[]).await).await;
    let long = vec![b'x'; 3 << 20];
    for (stdout, inlined) in [(&b"short"[..], true), (&long[..100 << 10], false), (&long, false), (b"", true)]
    {
        fs::write(rig.dir.path().join("stdout"), stdout).unwrap();
        let collected = rig.collect(&root, &OutputSpec::default()).await.unwrap();
        assert_eq!(collected.stdout, if inlined { stdout } else { b"" });
        assert_eq!(collected.stdout_digest, Some(reapi::digest::to_proto(&SHA.digest(stdout))));
        if !stdout.is_empty() {
            assert_eq!(rig.content(&collected.stdout_digest.unwrap()).await, stdout);
        }
        assert_eq!(collected.stderr_digest, Some(reapi::digest::to_proto(&SHA.empty())));
    }
}
