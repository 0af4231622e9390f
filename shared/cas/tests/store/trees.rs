//! Tests that input trees are checked once for each distinct directory.

use std::time::Instant;

use crate::support::{SHA, Store, directory, file, folder, noise, store, store_with};
use cas::{TreeCheck, TreeFault};
use model::BlobDigest;
use reapi::{
    directory::AbsoluteTargets,
    execution::{Directory, SymlinkNode},
};

/// A tree of `folders` directories with `files` files each. Returns its root and all its blobs.
async fn tree(store: &Store, folders: usize, files: usize) -> (BlobDigest, Vec<BlobDigest>) {
    let mut all = Vec::new();
    let mut below = Vec::new();
    for d in 0..folders {
        let blobs = (0..files).map(|f| {
            let content = noise(40, (d * files + f) as u64);
            (SHA.digest(&content), content)
        });
        let blobs: Vec<_> = blobs.collect();
        let digests: Vec<BlobDigest> = blobs.iter().map(|(digest, _)| *digest).collect();
        assert!(store.cas.put_many(blobs).await.iter().all(Result::is_ok));
        let nodes = digests.iter().enumerate().map(|(f, digest)| file(&format!("{f:05}"), digest)).collect();
        let digest = store.keep_message(&directory(nodes, vec![])).await;
        below.push(folder(&format!("{d:05}"), &digest));
        all.extend(digests);
        all.push(digest);
    }
    let root = store.keep_message(&directory(vec![], below)).await;
    all.push(root);
    (root, all)
}

#[tokio::test]
async fn all_that_is_missing_is_named() {
    let store = store();
    let (root, all) = tree(&store, 5, 20).await;
    assert_eq!(store.cas.check_tree(&root).await.unwrap(), TreeCheck::Complete);
    let lost: Vec<BlobDigest> = all.iter().step_by(9).copied().collect();
    for digest in &lost {
        std::fs::remove_file(store.path(digest)).unwrap();
    }
    let TreeCheck::Missing { mut digests, more } = store.reopened().check_tree(&root).await.unwrap() else {
        panic!()
    };
    digests.sort();
    let mut lost = lost;
    lost.sort();
    assert_eq!((digests, more), (lost, false));
    let absent = SHA.digest(b"absent");
    let missing = store.cas.check_tree(&absent).await.unwrap();
    assert_eq!(missing, TreeCheck::Missing { digests: vec![absent], more: false });
    assert_eq!(store.cas.check_tree(&SHA.empty()).await.unwrap(), TreeCheck::Complete);
}

#[tokio::test]
async fn the_list_of_what_is_missing_has_an_end() {
    let store = store();
    let nodes = (0..10_500_u32).map(|n| file(&format!("{n:05}"), &SHA.digest(&n.to_le_bytes()))).collect();
    let root = store.keep_message(&directory(nodes, vec![])).await;
    let TreeCheck::Missing { digests, more } = store.cas.check_tree(&root).await.unwrap() else { panic!() };
    assert_eq!((digests.len(), more), (10_000, true));
}

#[tokio::test]
async fn a_diamond_is_walked_once() {
    let store = store();
    let leaf = store.keep("leaf").await;
    let mut below = store.keep_message(&directory(vec![file("leaf", &leaf)], vec![])).await;
    for _ in 0..30 {
        let twice = vec![folder("a", &below), folder("b", &below)];
        below = store.keep_message(&directory(vec![], twice)).await;
    }
    let cas = store.reopened();
    let started = Instant::now();
    assert_eq!(cas.check_tree(&below).await.unwrap(), TreeCheck::Complete);
    assert!(started.elapsed().as_millis() < 500);
    std::fs::remove_file(store.path(&leaf)).unwrap();
    let missing = store.reopened().check_tree(&below).await.unwrap();
    assert_eq!(missing, TreeCheck::Missing { digests: vec![leaf], more: false });
}

/// The root of `depth` nested directories.
async fn chain(store: &Store, depth: usize) -> BlobDigest {
    let mut below = store.keep_message(&directory(vec![], vec![])).await;
    for _ in 1..depth {
        below = store.keep_message(&directory(vec![], vec![folder("d", &below)])).await;
    }
    below
}

#[tokio::test]
async fn nesting_has_a_limit() {
    let store = store();
    let too_deep = TreeCheck::Faulty(TreeFault::TooDeep { max: 1000 });
    let deepest = chain(&store, 1000).await;
    assert_eq!(store.cas.check_tree(&deepest).await.unwrap(), TreeCheck::Complete);
    // The subtree is known from before and not walked again, but its depth still counts.
    let deeper = store.keep_message(&directory(vec![], vec![folder("d", &deepest)])).await;
    assert_eq!(store.cas.check_tree(&deeper).await.unwrap(), too_deep);
    assert_eq!(store.reopened().check_tree(&deeper).await.unwrap(), too_deep);
    // Met first on a short path, then on a long one.
    let half = chain(&store, 600).await;
    let mut long = half;
    for n in 0..500 {
        let name = format!("{n}");
        long = store.keep_message(&directory(vec![], vec![folder(&name, &long)])).await;
    }
    let both = vec![folder("a", &half), folder("b", &long)];
    let both = store.keep_message(&directory(vec![], both)).await;
    assert_eq!(store.reopened().check_tree(&both).await.unwrap(), too_deep);
}

#[tokio::test]
async fn malformed_directories_are_named() {
    let store = store();
    let leaf = store.keep("leaf").await;
    let no_digest = Directory {
        files: vec![reapi::execution::FileNode { digest: None, ..file("a", &leaf) }],
        ..Directory::default()
    };
    let bad = [
        store.keep_message(&directory(vec![file("b", &leaf), file("a", &leaf)], vec![])).await,
        store.keep_message(&directory(vec![file("..", &leaf)], vec![])).await,
        store.keep_message(&directory(vec![file("a/b", &leaf)], vec![])).await,
        store.keep_message(&no_digest).await,
        store.keep("no directory at all").await,
    ];
    for digest in bad {
        let root = store.keep_message(&directory(vec![], vec![folder("d", &digest)])).await;
        for _ in 0..2 {
            let TreeCheck::Faulty(TreeFault::Malformed { digest: named, why }) =
                store.cas.check_tree(&root).await.unwrap()
            else {
                panic!("{digest}")
            };
            assert_eq!(named, digest);
            assert!(!why.is_empty());
        }
    }
}

#[tokio::test]
async fn absolute_symlinks_are_taken_where_they_are_allowed() {
    let store = store();
    let link = SymlinkNode { name: "l".into(), target: "/usr".into(), ..SymlinkNode::default() };
    let linked = Directory { symlinks: vec![link], ..Directory::default() };
    let linked = store.keep_message(&linked).await;
    let root = store.keep_message(&directory(vec![], vec![folder("d", &linked)])).await;
    for _ in 0..2 {
        let allowed = store.cas.check_tree_with(&root, AbsoluteTargets::Allowed).await.unwrap();
        assert_eq!(allowed, TreeCheck::Complete);
        let refused = store.cas.check_tree(&root).await.unwrap();
        assert!(matches!(refused, TreeCheck::Faulty(TreeFault::Malformed { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_tree_that_is_known_costs_nothing() {
    let store = store();
    let (root, _) = tree(&store, 50, 100).await;
    let cas = store.reopened();
    assert_eq!(cas.check_tree(&root).await.unwrap(), TreeCheck::Complete);
    let before = cas.stats();
    for _ in 0..1000 {
        assert_eq!(cas.check_tree(&root).await.unwrap(), TreeCheck::Complete);
    }
    assert_eq!(cas.stats(), before);
}

#[tokio::test]
async fn with_little_memory_it_is_slower_and_as_right() {
    let store = store_with(|config| {
        (config.memo_bytes, config.memory_bytes, config.known_max) = (0, 0, 0);
    });
    let (root, all) = tree(&store, 20, 50).await;
    assert_eq!(store.cas.check_tree(&root).await.unwrap(), TreeCheck::Complete);
    let lost = all[77];
    std::fs::remove_file(store.path(&lost)).unwrap();
    let missing = store.reopened().check_tree(&root).await.unwrap();
    assert_eq!(missing, TreeCheck::Missing { digests: vec![lost], more: false });
}
