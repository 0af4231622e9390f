//! Tests that a zone sees the blobs and results that it has proved to have, and no others.

use cas::{Cas, CasError, ChunkingFunction, TreeCheck};
use model::{BlobDigest, Provenance, Sight, Zone};
use prost::Message as _;
use reapi::execution::{ActionResult, OutputFile};

use crate::support::{SHA, directory, file, noise, open, read_all, store, write_in_pieces};

fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

fn bounded(cas: &Cas, name: &str, parent: Option<&str>) -> Cas {
    cas.seen_by(&Sight { zone: zone(name), parent: parent.map(zone), is_bounded: true })
}

fn result(output: &BlobDigest) -> ActionResult {
    let file = OutputFile { digest: Some(reapi::digest::to_proto(output)), ..OutputFile::default() };
    ActionResult { output_files: vec![file], ..ActionResult::default() }
}

/// Whether each way to read a blob finds it.
async fn finds(cas: &Cas, digest: &BlobDigest) -> Vec<(&'static str, bool)> {
    let named = cas.resolve(&model::Digest::of_blob(digest), None).await;
    vec![
        ("missing", cas.missing(&[*digest, *digest]).await.unwrap().is_empty()),
        ("get", cas.get(digest).await.unwrap().is_some()),
        ("read", read_all(cas, digest, 0, None).await.is_some()),
        ("file", cas.local_path(digest, false).await.unwrap().is_some()),
        ("program", cas.local_path(digest, true).await.unwrap().is_some()),
        ("split", cas.split(digest).await.unwrap().is_some()),
        ("name", named.is_ok()),
    ]
}

async fn finds_all(cas: &Cas, digests: &[BlobDigest]) -> bool {
    for digest in digests {
        if finds(cas, digest).await.iter().any(|(_, found)| !found) {
            return false;
        }
    }
    true
}

async fn finds_none(cas: &Cas, digests: &[BlobDigest]) {
    for digest in digests {
        for (how, found) in finds(cas, digest).await {
            assert!(!found, "{how} finds {digest}");
        }
    }
}

/// Stores blobs in each way.
async fn stored(cas: &Cas, folder: &std::path::Path, seed: u64) -> Vec<BlobDigest> {
    let path = folder.join("source");
    std::fs::write(&path, noise(70_000, seed + 1)).unwrap();
    let small = noise(40, seed + 2);
    vec![
        cas.put_bytes(SHA, noise(30, seed)).await.unwrap(),
        cas.put_file(SHA, &path, true).await.unwrap(),
        write_in_pieces(cas, &small, 7).await,
        write_in_pieces(cas, &noise(3_000_000, seed + 3), 1 << 20).await,
    ]
}

#[tokio::test]
async fn a_zone_sees_what_it_stored_and_so_do_other_processes() {
    for has_objects in [false, true] {
        let (folder, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let url = has_objects.then(|| format!("file://{}/prefix", bucket.path().display()));
        let cas = open(&folder, |config| config.backing.clone_from(&url));
        let (a, b) = (bounded(&cas, "a", None), bounded(&cas, "b", None));
        let of_a = stored(&a, folder.path(), 10).await;
        assert!(finds_all(&a, &of_a).await && finds_all(&cas, &of_a).await);
        finds_none(&b, &of_a).await;
        let child = bounded(&cas, "b", Some("a"));
        assert!(finds_all(&child, &of_a).await);
        // On a machine with an empty disk too, if there is an object store.
        let other_folder = tempfile::tempdir().unwrap();
        let root = if has_objects { &other_folder } else { &folder };
        let other = open(root, |config| config.backing.clone_from(&url));
        assert!(finds_all(&bounded(&other, "a", None), &of_a).await);
        finds_none(&bounded(&other, "b", None), &of_a).await;
        // What both have is stored once, and each has proved it.
        let before = cas.stats().blobs_written;
        let of_b = stored(&b, folder.path(), 10).await;
        assert_eq!(of_b, of_a);
        assert_eq!(cas.stats().blobs_written, before);
        assert!(finds_all(&b, &of_a).await);
        // The whole store proves nothing for a zone.
        let of_farm = stored(&cas, folder.path(), 90).await;
        finds_none(&a, &of_farm).await;
    }
}

#[tokio::test]
async fn wrong_content_proves_nothing() {
    let store = store();
    let (a, b) = (bounded(&store.cas, "a", None), bounded(&store.cas, "b", None));
    let secret = a.put_bytes(SHA, noise(50, 1)).await.unwrap();
    assert!(matches!(b.put(&secret, noise(50, 2)).await, Err(CasError::Mismatch { .. })));
    let mut writer = b.writer(secret).await.unwrap();
    writer.write(noise(50, 3)).await.unwrap();
    assert!(writer.finish().await.is_err());
    // A blob of chunks that the zone does not have.
    let spliced = b.splice(&secret, &[secret], cas::ChunkingFunction::Unknown).await;
    assert!(matches!(spliced, Err(CasError::Missing { .. })));
    finds_none(&b, &[secret]).await;
}

#[tokio::test]
async fn a_tree_is_complete_only_for_the_zone_that_has_all_of_it() {
    let store = store();
    let (a, b) = (bounded(&store.cas, "a", None), bounded(&store.cas, "b", None));
    let leaf = a.put_bytes(SHA, noise(50, 1)).await.unwrap();
    let root = directory(vec![file("leaf", &leaf)], vec![]).encode_to_vec();
    let root_digest = a.put_bytes(SHA, root.clone().into()).await.unwrap();
    // The whole store and the other zone remember it as complete.
    assert_eq!(store.cas.check_tree(&root_digest).await.unwrap(), TreeCheck::Complete);
    assert_eq!(a.check_tree(&root_digest).await.unwrap(), TreeCheck::Complete);
    let missing = |digest| TreeCheck::Missing { digests: vec![digest], more: false };
    assert_eq!(b.check_tree(&root_digest).await.unwrap(), missing(root_digest));
    b.put_bytes(SHA, root.into()).await.unwrap();
    assert_eq!(b.check_tree(&root_digest).await.unwrap(), missing(leaf));
    let action = SHA.digest(b"an action");
    let of_leaf = result(&leaf);
    b.put_action("", &action, &of_leaf).await.unwrap();
    assert!(!b.has_outputs_of(&of_leaf, &action).await.unwrap());
    assert_eq!(b.get_action("", &action).await.unwrap(), None);
    assert!(a.has_outputs_of(&of_leaf, &action).await.unwrap());
}

#[tokio::test]
async fn results_are_those_of_the_zone_and_of_its_parent() {
    let store = store();
    let (main, pulls) = (bounded(&store.cas, "main", None), bounded(&store.cas, "pulls", Some("main")));
    let action = SHA.digest(b"an action");
    let (of_main, of_pulls) =
        (main.put_bytes(SHA, noise(9, 1)).await.unwrap(), pulls.put_bytes(SHA, noise(9, 2)).await.unwrap());
    pulls.put_action("", &action, &result(&of_pulls)).await.unwrap();
    assert_eq!(main.get_action("", &action).await.unwrap(), None);
    main.put_action("", &action, &result(&of_main)).await.unwrap();
    assert_eq!(*pulls.get_action("", &action).await.unwrap().unwrap(), result(&of_pulls));
    assert!(pulls.remove_action("", &action).await.unwrap());
    assert_eq!(*pulls.get_action("", &action).await.unwrap().unwrap(), result(&of_main));
    // Results of a farm before it had zones are those of the default zone; its blobs must be proved.
    let early = store.cas.put_bytes(SHA, noise(9, 3)).await.unwrap();
    store.cas.put_action("", &action, &result(&early)).await.unwrap();
    let default = bounded(&store.cas, "default", None);
    assert_eq!(default.get_action("", &action).await.unwrap(), None);
    default.put_bytes(SHA, noise(9, 3)).await.unwrap();
    assert_eq!(*default.get_action("", &action).await.unwrap().unwrap(), result(&early));
}

#[tokio::test]
async fn a_purge_removes_the_results_that_are_chosen() {
    for has_objects in [false, true] {
        let (folder, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let url = has_objects.then(|| format!("file://{}/prefix", bucket.path().display()));
        let cas = open(&folder, |config| config.backing.clone_from(&url));
        let zones = [bounded(&cas, "a", None), bounded(&cas, "b", None), cas.clone()];
        let action = |number: usize| SHA.digest(&number.to_le_bytes());
        for (number, handle) in zones.iter().enumerate() {
            for executor in ["e1", "e2"] {
                let mut entry = ActionResult { exit_code: 0, ..ActionResult::default() };
                let provenance =
                    serde_json::json!({ "action": action(number), "executor": executor, "at_ms": 1 });
                reapi::provenance::set(&mut entry, &serde_json::from_value(provenance).unwrap());
                handle.put_action(executor, &action(number), &entry).await.unwrap();
            }
        }
        cas.put_action("", &action(9), &ActionResult { exit_code: 1, ..Default::default() }).await.unwrap();
        let (mut seen, mut without) = (0, 0);
        let removed = cas.purge_actions(|provenance: Option<&Provenance>| {
            seen += 1;
            without += u32::from(provenance.is_none());
            provenance.is_some_and(|provenance| provenance.executor == "e1")
        });
        assert_eq!(removed.await.unwrap(), 3);
        assert_eq!((seen, without), (7, 1));
        for (number, handle) in zones.iter().enumerate() {
            assert!(handle.get_action("e1", &action(number)).await.unwrap().is_none());
            assert!(handle.get_action("e2", &action(number)).await.unwrap().is_some());
        }
    }
}

#[tokio::test]
async fn what_a_zone_splits_changes_no_chunks_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let cas = open(&folder, |_| ());
    let (a, b) = (bounded(&cas, "a", None), bounded(&cas, "b", None));
    let content = noise(5 << 20, 1);
    let digest = SHA.digest(&content);
    // Other chunks than the store would make.
    let mut chunks = Vec::new();
    for part in content.chunks(1 << 20) {
        chunks.push(b.put_bytes(SHA, content.slice_ref(part)).await.unwrap());
    }
    b.splice(&digest, &chunks, ChunkingFunction::FastCdc2020).await.unwrap();
    a.put_bytes(SHA, content).await.unwrap();
    assert_ne!(a.split(&digest).await.unwrap().unwrap().chunks, chunks);
    assert_eq!(b.split(&digest).await.unwrap().unwrap().chunks, chunks);
}
