use std::{ops::Add as _, path::Path};

use proptest::prelude::*;

use super::*;
use crate::unsent::Unsent;

fn file(text: &str) -> Node {
    Node::File { content: Arc::new(Content::remote(FUNCTION.digest(text.as_bytes()))), executable: false }
}

fn tree(files: &[(&str, &str)]) -> Arc<Folder> {
    let mut root = Arc::default();
    for (path, text) in files {
        Folder::insert_at(&mut root, path, file(text));
    }
    root
}

fn digest(folder: &Folder) -> BlobDigest {
    folder.message().unwrap().0
}

#[test]
fn a_tree_does_not_depend_on_the_way_it_came_about() {
    let one = tree(&[("a/b", "1"), ("a/c", "2"), ("d", "3")]);
    let mut other = tree(&[("d", "9"), ("a/c", "2")]);
    let before = digest(&other);
    let kept = Arc::clone(&other);
    Folder::insert_at(&mut other, "d", file("3"));
    Folder::merge(&mut other, &tree(&[("a/b", "1")]));
    assert_eq!(digest(&one), digest(&other));
    assert_eq!(digest(&kept), before, "another holder still has the old tree");
    Folder::remove_at(&mut other, "a/b");
    Folder::remove_at(&mut other, "nothing/here");
    assert_eq!(digest(&other), digest(&tree(&[("a/c", "2"), ("d", "3")])));
}

#[test]
fn what_is_laid_on_something_of_another_kind_replaces_it() {
    let mut root = tree(&[("a", "1")]);
    Folder::insert_at(&mut root, "a/b", file("2"));
    assert_eq!(digest(&root), digest(&tree(&[("a/b", "2")])));
    Folder::insert_at(&mut root, "a", file("1"));
    assert_eq!(digest(&root), digest(&tree(&[("a", "1")])));
}

#[test]
fn it_is_the_same_as_a_scan_of_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("a/b/c", "1");
    write("a/d", "2");
    write("z", "");
    std::os::unix::fs::symlink("b/c", folder.path().join("a/link")).unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let scanned = input_root::local::scan(folder.path(), &[".".into()], FUNCTION).unwrap();
    let ours = crate::scan::scan(folder.path(), &AtomicBool::new(false)).unwrap();
    assert_eq!(digest(&ours), scanned.root);
}

fn paths(found: Option<Vec<(String, Node)>>) -> Option<Vec<String>> {
    Some(found?.into_iter().map(|(path, _)| path).collect())
}

#[test]
fn symlinks_are_followed_within_the_tree() {
    let mut root = tree(&[("a/file", "1"), ("b/other", "2")]);
    let link = |to: &str| Node::Link(to.into());
    Folder::insert_at(&mut root, "b/up", link("../a"));
    Folder::insert_at(&mut root, "b/it", link("up/file"));
    Folder::insert_at(&mut root, "gone", link("nowhere"));
    Folder::insert_at(&mut root, "out", link("../../etc/passwd"));
    Folder::insert_at(&mut root, "far", link("/etc/passwd"));
    Folder::insert_at(&mut root, "loop", link("loop"));
    let resolved = |path| paths(root.resolve(path));
    assert_eq!(resolved("b/it"), Some(vec!["b/it".into(), "b/up".into(), "a/file".into()]));
    assert_eq!(resolved("b/up/file"), Some(vec!["b/up".into(), "a/file".into()]));
    assert_eq!(resolved("gone"), Some(vec!["gone".into()]), "a broken symlink is a symlink");
    assert_eq!(resolved("far"), Some(vec!["far".into()]));
    assert!(resolved("out").is_none());
    assert!(resolved("loop/x").is_none());
    assert_eq!(resolved("a"), Some(vec!["a".into()]));
    for missing in ["a/x", "a/file/x", "x", "gone/x"] {
        assert!(resolved(missing).is_none(), "{missing}");
    }
}

#[test]
fn what_was_sent_is_not_sent_again_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "1").unwrap();
    let mut root = tree(&[("far/away", "2")]);
    let local = Node::File { content: Arc::new(Content::local(path)), executable: true };
    Folder::insert_at(&mut root, "here/file", local.clone());
    let unsent = Unsent::of(&root, false);
    assert_eq!((unsent.folders.len(), unsent.contents.len()), (3, 1));
    unsent.mark_sent();
    assert_eq!(Unsent::of(&root, false).folders.len(), 0);
    assert_eq!(Unsent::of(&root, true).contents.len(), 1);
    Folder::insert_at(&mut root, "here/too", local);
    let unsent = Unsent::of(&root, false);
    assert_eq!((unsent.folders.len(), unsent.contents.len()), (2, 0), "only the changed folders");
}

#[test]
fn what_cannot_be_sent_is_named() {
    let mut root = Arc::default();
    Folder::insert_at(&mut root, "a/link", Node::Link("/etc/passwd".into()));
    let error = root.message().unwrap_err().to_string();
    assert!(error.contains("link") && error.contains("/etc/passwd"), "{error}");
    let gone = Content::local(Path::new("/nowhere/file").into());
    Folder::insert_at(&mut root, "a/link", Node::File { content: Arc::new(gone), executable: false });
    assert!(root.message().unwrap_err().to_string().contains("/nowhere/file"));
}

#[derive(Debug, Clone)]
enum Deed {
    Lay(String, u8),
    Take(String),
    Look,
}

fn deed() -> impl Strategy<Value = Deed> {
    let path = prop::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"));
    prop_oneof![
        (path.clone(), 0..3_u8).prop_map(|(path, text)| Deed::Lay(path, text)),
        path.prop_map(Deed::Take),
        Just(Deed::Look),
    ]
}

proptest! {
    /// Reading messages in between changes nothing: the tree equals that of the same edits without reads.
    #[test]
    fn a_look_at_a_tree_changes_nothing(deeds in prop::collection::vec(deed(), 0..24)) {
        let (mut looked, mut unseen) = (Arc::default(), Arc::default());
        let mut held = Vec::new();
        for deed in deeds {
            match deed {
                Deed::Lay(path, text) => {
                    Folder::insert_at(&mut looked, &path, file(&text.to_string()));
                    Folder::insert_at(&mut unseen, &path, file(&text.to_string()));
                }
                Deed::Take(path) => {
                    Folder::remove_at(&mut looked, &path);
                    Folder::remove_at(&mut unseen, &path);
                }
                Deed::Look => held.push((Arc::clone(&looked), digest(&looked))),
            }
        }
        prop_assert_eq!(digest(&looked), digest(&unseen));
        for (tree, was) in held {
            prop_assert_eq!(digest(&Folder::clone(&tree)), was);
        }
    }
}

/// Nested folders, with a file in the innermost.
fn deep(levels: usize) -> Arc<Folder> {
    (0..levels).fold(tree(&[("file", "1")]), |below, _| {
        let mut above = Arc::default();
        Folder::put(&mut above, "a", Node::Folder(below));
        above
    })
}

#[test]
fn what_is_as_deep_as_may_be_can_be_walked_through_on_a_small_stack() {
    let walk = || {
        let root = deep(998);
        root.check("place").unwrap();
        digest(&root);
        assert_eq!(Unsent::of(&root, true).folders.len(), 999);
        let mut other = deep(998);
        Folder::merge(&mut other, &root);
        Folder::insert_at(&mut other, &"a/".repeat(998).add("more"), file("2"));
    };
    // Threads of tokio have 2 MiB. Frames are larger without optimisation.
    let stack = 2 << 20;
    std::thread::Builder::new().stack_size(stack).spawn(walk).unwrap().join().unwrap();
    assert!(matches!(
        deep(1000).check("place"),
        Err(TreeError::Extent(ExtentError::Deep { depth: 1001, .. }))
    ));
}

#[test]
fn copies_in_copies_cost_no_more_than_their_original_and_are_refused_before_they_are_walked_through() {
    let mut copies = tree(&[("file", "1")]);
    for _ in 0..18 {
        let mut twice = Arc::default();
        Folder::put(&mut twice, "x", Node::Folder(Arc::clone(&copies)));
        Folder::put(&mut twice, "y", Node::Folder(copies));
        copies = twice;
    }
    assert_eq!(copies.extent(), Extent { entries: (1 << 18) + (2 << 18) - 2, depth: 18 });
    copies.check("").unwrap();
    for _ in 0..60 {
        let mut twice = Arc::default();
        Folder::put(&mut twice, "x", Node::Folder(Arc::clone(&copies)));
        Folder::put(&mut twice, "y", Node::Folder(copies));
        copies = twice;
    }
    assert!(matches!(
        copies.check("f"),
        Err(TreeError::Extent(ExtentError::Large { entries: u64::MAX, .. }))
    ));
    assert_eq!(Unsent::of(&copies, true).folders.len(), 79);
}

#[test]
fn s10_a_file_of_the_workspace_is_read_through_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let [inside, outside] = ["inside", "outside"].map(|name| folder.path().join(name));
    for folder in [&inside, &outside] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("file"), "content").unwrap();
    }
    let scanned = crate::scan::scan(folder.path(), &AtomicBool::new(false)).unwrap();
    let Some(Node::File { content, .. }) = scanned.at("inside/file") else { panic!() };
    std::fs::remove_dir_all(&inside).unwrap();
    std::os::unix::fs::symlink(&outside, &inside).unwrap();
    assert!(matches!(content.digest(), Err(TreeError::Unreadable { .. })));
}
