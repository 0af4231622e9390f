//! Tests that a stored result is served only when everything that it references is present.

use std::time::{Duration, SystemTime};

use crate::support::{SHA, Store, directory, file, folder, noise, store, store_with};
use cas::{Cas, CasError};
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::execution::{ActionResult, OutputDirectory, OutputFile, Tree};

fn proto(digest: &BlobDigest) -> reapi::execution::Digest {
    reapi::digest::to_proto(digest)
}

fn output(path: &str, digest: &BlobDigest) -> OutputFile {
    OutputFile { path: path.into(), digest: Some(proto(digest)), ..OutputFile::default() }
}

/// A result that references one blob of every kind, and those blobs.
async fn result(store: &Store) -> (ActionResult, Vec<BlobDigest>) {
    let mut named = Vec::new();
    for content in ["output", "stdout", "stderr", "in the root", "in a child", "by directory"] {
        named.push(store.keep(content).await);
    }
    let child = directory(vec![file("c", &named[4])], vec![]);
    // Not stored as a blob: a Tree contains its directories.
    let child_digest = SHA.digest(&child.encode_to_vec());
    let root = directory(vec![file("r", &named[3])], vec![folder("child", &child_digest)]);
    let tree = store.keep_message(&Tree { root: Some(root), children: vec![child] }).await;
    let leaf = store.keep_message(&directory(vec![file("l", &named[5])], vec![])).await;
    let top = store.keep_message(&directory(vec![], vec![folder("leaf", &leaf)])).await;
    named.extend([tree, leaf, top]);
    let outputs = |path: &str, tree: Option<&BlobDigest>, root: Option<&BlobDigest>| OutputDirectory {
        path: path.into(),
        tree_digest: tree.map(proto),
        root_directory_digest: root.map(proto),
        ..OutputDirectory::default()
    };
    let result = ActionResult {
        output_files: vec![output("o", &named[0])],
        output_directories: vec![outputs("t", Some(&tree), None), outputs("d", None, Some(&top))],
        stdout_digest: Some(proto(&named[1])),
        stderr_digest: Some(proto(&named[2])),
        exit_code: 3,
        ..ActionResult::default()
    };
    (result, named)
}

async fn get(cas: &Cas, instance: &str, action: &BlobDigest) -> Option<ActionResult> {
    cas.get_action(instance, action).await.unwrap().map(|result| (*result).clone())
}

#[tokio::test]
async fn a_result_is_served_while_all_it_names_is_there() {
    let store = store();
    let (result, named) = result(&store).await;
    let action = SHA.digest(b"action");
    assert_eq!(get(&store.cas, "main", &action).await, None);
    store.cas.put_action("main", &action, &result).await.unwrap();
    for cas in [&store.cas, &store.reopened(), &store.cas] {
        assert_eq!(get(cas, "main", &action).await, Some(result.clone()));
        assert_eq!(get(cas, "other", &action).await, None);
        assert_eq!(get(cas, "main", &SHA.digest(b"other")).await, None);
    }
    for lost in &named {
        let content = std::fs::read(store.path(lost)).unwrap();
        std::fs::remove_file(store.path(lost)).unwrap();
        let cas = store.reopened();
        assert_eq!(get(&cas, "main", &action).await, None, "without {lost}");
        assert_eq!((cas.stats().action_incomplete, cas.stats().action_hits), (1, 0));
        cas.put(lost, content.into()).await.unwrap();
        assert_eq!(get(&cas, "main", &action).await, Some(result.clone()));
    }
}

#[tokio::test]
async fn a_hit_extends_the_life_of_all_it_names() {
    let store = store();
    let (result, _) = result(&store).await;
    let action = SHA.digest(b"action");
    store.cas.put_action("", &action, &result).await.unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    let mut all = store.files("cas");
    all.extend(store.files("ac"));
    assert_eq!(all.len(), 10);
    for path in &all {
        std::fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }
    assert!(get(&store.reopened(), "", &action).await.is_some());
    for path in &all {
        let age = path.metadata().unwrap().modified().unwrap().elapsed().unwrap_or_default();
        assert!(age < Duration::from_secs(3600), "{}", path.display());
    }
}

#[tokio::test]
async fn processes_see_each_others_results() {
    let store = store();
    let (a, b) = (store.cas.clone(), store.reopened());
    let action = DigestFunction::Blake3.digest(b"action");
    for exit_code in 0..20 {
        let (writer, reader) = if exit_code % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let result = ActionResult { exit_code, ..ActionResult::default() };
        writer.put_action("", &action, &result).await.unwrap();
        for cas in [reader, writer, reader] {
            assert_eq!(get(cas, "", &action).await.unwrap().exit_code, exit_code);
        }
    }
    assert!(a.remove_action("", &action).await.unwrap());
    assert!(!b.remove_action("", &action).await.unwrap());
    assert_eq!((get(&a, "", &action).await, get(&b, "", &action).await), (None, None));
}

#[tokio::test]
async fn what_is_wrong_is_refused_or_a_miss() {
    let store = store();
    let action = SHA.digest(b"action");
    let mut wrong = output("o", &action);
    wrong.digest.as_mut().unwrap().hash = "nonsense".into();
    for file in [wrong, OutputFile { path: "o".into(), ..OutputFile::default() }] {
        let result = ActionResult { output_files: vec![file], ..ActionResult::default() };
        let refused = store.cas.put_action("", &action, &result).await;
        assert!(matches!(refused, Err(CasError::Malformed { .. })));
    }
    let no_tree = store.keep(noise(500, 1)).await;
    let outputs = OutputDirectory { tree_digest: Some(proto(&no_tree)), ..OutputDirectory::default() };
    let result = ActionResult { output_directories: vec![outputs], ..ActionResult::default() };
    store.cas.put_action("", &action, &result).await.unwrap();
    assert_eq!(get(&store.cas, "", &action).await, None);
    // The store removes a damaged entry.
    let entry = store.files("ac").pop().unwrap();
    let content = std::fs::read(&entry).unwrap();
    std::fs::remove_file(&entry).unwrap();
    std::fs::write(&entry, &content[..content.len() - 1]).unwrap();
    assert_eq!(get(&store.reopened(), "", &action).await, None);
    assert!(!entry.exists());
    store.cas.set_full(true);
    assert!(matches!(store.cas.put_action("", &action, &result).await, Err(CasError::Full)));
}

#[tokio::test]
async fn a_huge_tree_is_checked_within_bounds() {
    let store = store_with(|config| config.memo_bytes = 1 << 20);
    let leaf = store.keep("leaf").await;
    let root = directory((0..50_000).map(|n| file(&format!("{n:06}"), &leaf)).collect(), vec![]);
    let tree = store.keep_message(&Tree { root: Some(root), children: vec![] }).await;
    let outputs = OutputDirectory { tree_digest: Some(proto(&tree)), ..OutputDirectory::default() };
    let result = ActionResult { output_directories: vec![outputs], ..ActionResult::default() };
    let action = SHA.digest(b"action");
    store.cas.put_action("", &action, &result).await.unwrap();
    for _ in 0..2 {
        assert!(get(&store.cas, "", &action).await.is_some());
    }
    std::fs::remove_file(store.path(&leaf)).unwrap();
    assert_eq!(get(&store.reopened(), "", &action).await, None);
}
