//! Tests that blobs are split into chunks and spliced again.

use crate::support::{SHA, Store, noise, store};
use cas::{CasError, ChunkingFunction, FAST_CDC_AVERAGE_BYTES, Split};
use model::{BlobDigest, DigestFunction};

const AVERAGE: u64 = FAST_CDC_AVERAGE_BYTES;

async fn joined(store: &Store, split: &Split) -> Vec<u8> {
    let mut all = Vec::new();
    for chunk in &split.chunks {
        all.extend(store.cas.get(chunk).await.unwrap().unwrap());
    }
    all
}

#[tokio::test]
async fn chunks_are_stored_and_make_up_the_blob() {
    let store = store();
    let content = noise(9_000_000, 1);
    let digest = store.keep(content.clone()).await;
    let split = store.cas.split(&digest).await.unwrap().unwrap();
    assert_eq!(split.function, ChunkingFunction::FastCdc2020);
    assert!(split.chunks.len() > 5);
    let (end, others) = split.chunks.split_last().unwrap();
    assert!(others.iter().all(|chunk| (AVERAGE / 4..=AVERAGE * 4).contains(&chunk.size)));
    assert!(end.size <= AVERAGE * 4);
    assert_eq!(joined(&store, &split).await, content);
    // An insertion changes few chunks.
    let mut changed = content.to_vec();
    changed.splice(4_000_000..4_000_000, *b"inserted");
    let changed = store.keep(changed).await;
    let other = store.cas.split(&changed).await.unwrap().unwrap();
    let shared = other.chunks.iter().filter(|chunk| split.chunks.contains(chunk)).count();
    assert!(shared + 3 >= split.chunks.len(), "{shared} of {}", split.chunks.len());
    // A lost chunk is created again.
    let lost = split.chunks[2];
    std::fs::remove_file(store.path(&lost)).unwrap();
    assert_eq!(store.reopened().split(&digest).await.unwrap().unwrap(), split);
    assert!(store.path(&lost).exists());
}

#[tokio::test]
async fn small_blobs_are_their_own_chunk() {
    let store = store();
    let small = store.keep(noise(4 * 512 * 1024 - 1, 1)).await;
    assert_eq!(store.cas.split(&small).await.unwrap().unwrap().chunks, [small]);
    assert!(store.cas.split(&SHA.empty()).await.unwrap().unwrap().chunks.is_empty());
    assert!(store.cas.split(&SHA.digest(b"absent")).await.unwrap().is_none());
}

async fn pieces(store: &Store, content: &[u8], size: usize) -> Vec<BlobDigest> {
    let mut chunks = Vec::new();
    for piece in content.chunks(size) {
        chunks.push(store.keep(piece.to_vec()).await);
    }
    chunks
}

#[tokio::test]
async fn a_splice_is_verified_and_found_by_a_later_split() {
    let store = store();
    let content = noise(3_000_000, 5);
    let digest = SHA.digest(&content);
    let chunks = pieces(&store, &content, 400_000).await;
    let mut turned = chunks.clone();
    turned.swap(0, 1);
    let unknown = ChunkingFunction::Unknown;
    for wrong in [&turned[..], &chunks[1..]] {
        let refused = store.cas.splice(&digest, wrong, unknown).await;
        assert!(matches!(refused, Err(CasError::Mismatch { .. })), "{refused:?}");
    }
    let twice = [&chunks[..], &chunks[..1]].concat();
    assert!(matches!(store.cas.splice(&digest, &twice, unknown).await, Err(CasError::TooLong { .. })));
    let absent = SHA.digest(b"absent");
    let missing = store.cas.splice(&digest, &[absent], unknown).await;
    assert!(matches!(missing, Err(CasError::Missing { digest }) if digest == absent));
    let mixed = [DigestFunction::Blake3.digest(b"x")];
    let mixed = store.cas.splice(&digest, &mixed, unknown).await;
    assert!(matches!(mixed, Err(CasError::MixedFunctions { .. })));
    assert!(!store.cas.contains(&digest).await.unwrap());

    store.cas.splice(&digest, &chunks, unknown).await.unwrap();
    assert_eq!(store.cas.get(&digest).await.unwrap().unwrap(), content);
    for cas in [&store.cas, &store.reopened()] {
        let split = cas.split(&digest).await.unwrap().unwrap();
        assert_eq!(split, Split { chunks: chunks.clone(), function: unknown });
    }
    // A wrong chunk list does not replace the correct one.
    assert!(store.cas.splice(&digest, &turned, unknown).await.is_err());
    assert_eq!(store.cas.split(&digest).await.unwrap().unwrap().chunks, chunks);
}

#[tokio::test]
async fn a_full_store_stores_no_chunks() {
    let store = store();
    let content = noise(5_000_000, 2);
    let digest = store.keep(content.clone()).await;
    let other = noise(100_000, 3);
    let chunks = pieces(&store, &other, 50_000).await;
    store.cas.set_full(true);
    assert!(matches!(store.cas.split(&digest).await, Err(CasError::Full)));
    let spliced = store.cas.splice(&SHA.digest(&other), &chunks, ChunkingFunction::FastCdc2020).await;
    assert!(matches!(spliced, Err(CasError::Full)));
}
