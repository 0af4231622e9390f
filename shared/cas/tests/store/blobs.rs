//! Tests that blobs are read as they were written, or not at all.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::support::{SHA, noise, read_all, store, store_with, write_in_pieces};
use bytes::Bytes;
use cas::CasError;
use model::{BlobDigest, DigestFunction};

#[tokio::test]
async fn a_blob_comes_out_as_it_went_in_by_every_way() {
    for fsync in [false, true] {
        let store = store_with(|config| config.fsync = fsync);
        for (index, size) in [1, 1000, 64 << 10, (64 << 10) + 1, 1 << 20, 5_000_001].into_iter().enumerate() {
            let content = noise(size, index as u64);
            let digest = if index % 2 == 0 {
                store.keep(content.clone()).await
            } else {
                write_in_pieces(&store.cas, &content, 77_777).await
            };
            for cas in [store.cas.clone(), store.reopened()] {
                assert!(cas.contains(&digest).await.unwrap());
                assert_eq!(cas.get(&digest).await.unwrap(), Some(content.clone()));
                assert_eq!(read_all(&cas, &digest, 0, None).await.unwrap(), content);
                let (start, length) = (size / 3, size / 2);
                let part = read_all(&cas, &digest, start as u64, Some(length as u64)).await.unwrap();
                assert_eq!(part, content[start..(start + length).min(size)]);
                let end = read_all(&cas, &digest, digest.size, None).await.unwrap();
                assert!(end.is_empty());
                assert_eq!(read_all(&cas, &digest, u64::MAX, Some(7)).await.unwrap(), b"");
            }
            let mode = store.path(&digest).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o444);
        }
        assert!(store.files("tmp").is_empty());
    }
}

#[tokio::test]
async fn both_functions_live_side_by_side() {
    let store = store();
    for function in DigestFunction::ALL {
        let digest = store.cas.put_bytes(function, Bytes::from_static(b"content")).await.unwrap();
        assert_eq!(digest, function.digest(b"content"));
        assert_eq!(store.cas.get(&digest).await.unwrap().unwrap(), "content");
        let other = BlobDigest { size: digest.size + 1, ..digest };
        assert!(!store.cas.contains(&other).await.unwrap());
    }
    assert_eq!(store.files("cas").len(), 2);
}

#[tokio::test]
async fn the_empty_blob_is_always_there_and_never_stored() {
    let store = store();
    for function in DigestFunction::ALL {
        let empty = function.empty();
        assert!(store.cas.contains(&empty).await.unwrap());
        assert_eq!(store.cas.get(&empty).await.unwrap(), Some(Bytes::new()));
        assert_eq!(read_all(&store.cas, &empty, 0, None).await.unwrap(), b"");
        store.cas.put(&empty, Bytes::new()).await.unwrap();
        store.cas.writer(empty).await.unwrap().finish().await.unwrap();
        assert!(store.files("cas").is_empty());
        let path = store.cas.local_path(&empty, false).await.unwrap().unwrap();
        assert_eq!(path.metadata().unwrap().len(), 0);
        std::fs::remove_file(path).unwrap();
        store.cas.forget(&empty);
    }
    let false_empty = BlobDigest { size: 0, ..SHA.digest(b"x") };
    assert!(!store.cas.contains(&false_empty).await.unwrap());
    assert!(store.cas.put(&false_empty, Bytes::new()).await.is_err());
}

#[tokio::test]
async fn what_is_absent_is_missing_once_each_in_order() {
    let store = store();
    let there = store.keep("there").await;
    let absent: Vec<BlobDigest> = (0..5000_u32).map(|n| SHA.digest(&n.to_le_bytes())).collect();
    let mut asked = absent.clone();
    asked.insert(3, there);
    asked.extend(&absent[..10]);
    asked.push(there);
    for cas in [&store.cas, &store.reopened()] {
        assert_eq!(cas.missing(&asked).await.unwrap(), absent);
        assert_eq!(cas.missing(&[]).await.unwrap(), []);
    }
    store.cas.put(&absent[2], Bytes::copy_from_slice(&2_u32.to_le_bytes())).await.unwrap();
    assert_eq!(store.cas.missing(&absent[1..4]).await.unwrap(), [absent[1], absent[3]]);
    assert_eq!(store.cas.get(&absent[0]).await.unwrap(), None);
    assert!(store.cas.read(&absent[0], 0, None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_batch_stores_the_good_and_names_the_bad() {
    let store = store_with(|config| config.blob_bytes_max = 1000);
    let good = Bytes::from_static(b"good");
    let large = noise(1001, 1);
    let blobs = vec![
        (SHA.digest(&good), good.clone()),
        (SHA.digest(b"promised"), Bytes::from_static(b"delivered")),
        (SHA.digest(&large), large),
        (SHA.digest(&good), good.clone()),
    ];
    let digests: Vec<BlobDigest> = blobs.iter().map(|(digest, _)| *digest).collect();
    let outcomes = store.cas.put_many(blobs).await;
    assert!(outcomes[0].is_ok() && outcomes[3].is_ok());
    let Err(CasError::Mismatch { wanted, found }) = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
    assert_eq!((*wanted, *found), (digests[1], SHA.digest(b"delivered")));
    assert!(matches!(outcomes[2], Err(CasError::TooLarge { max: 1000, .. })));
    assert_eq!(store.cas.missing(&digests).await.unwrap(), digests[1..3]);
    let many = store.cas.get_many(&digests).await.unwrap();
    assert_eq!(many, [Some(good.clone()), None, None, Some(good)]);
}

#[tokio::test]
async fn a_writer_refuses_early_and_leaves_nothing() {
    let store = store_with(|config| config.blob_bytes_max = 10 << 20);
    let content = noise(3 << 20, 1);
    let wanted = SHA.digest(&content);

    let too_large = BlobDigest { size: (10 << 20) + 1, ..wanted };
    assert!(matches!(store.cas.writer(too_large).await, Err(CasError::TooLarge { .. })));

    let mut writer = store.cas.writer(wanted).await.unwrap();
    writer.write(content.clone()).await.unwrap();
    let more = writer.write(Bytes::from_static(b"!")).await;
    assert!(matches!(more, Err(CasError::TooLong { .. })));
    assert!(writer.finish().await.is_err());

    let mut writer = store.cas.writer(wanted).await.unwrap();
    writer.write(content.slice(1..)).await.unwrap();
    let short = writer.finish().await;
    let Err(CasError::Mismatch { found, .. }) = short else { panic!("{short:?}") };
    assert_eq!(found, SHA.digest(&content[1..]));

    let mut writer = store.cas.writer(wanted).await.unwrap();
    writer.write(noise(3 << 20, 2)).await.unwrap();
    assert!(matches!(writer.finish().await, Err(CasError::Mismatch { .. })));

    let mut dropped = store.cas.writer(wanted).await.unwrap();
    dropped.write(content.clone()).await.unwrap();
    drop(dropped);

    assert!(!store.cas.contains(&wanted).await.unwrap());
    write_in_pieces(&store.cas, &content, 1 << 20).await;
    // The dropped writer's thread may still be working; the last write used the same folder after it.
    assert_eq!(store.files("cas"), [store.path(&wanted)]);
}

#[tokio::test]
async fn many_writers_share_a_small_budget() {
    let store = store_with(|config| config.in_flight_bytes = 4 << 20);
    let writes = (0..40).map(|seed| {
        let cas = store.cas.clone();
        tokio::spawn(async move { write_in_pieces(&cas, &noise(3_000_000, seed), 900_000).await })
    });
    for (seed, write) in writes.collect::<Vec<_>>().into_iter().enumerate() {
        let digest = write.await.unwrap();
        assert_eq!(read_all(&store.cas, &digest, 0, None).await.unwrap(), noise(3_000_000, seed as u64));
    }
}

#[tokio::test]
async fn writers_of_one_blob_all_succeed_and_count_once() {
    let store = store();
    let content = noise(2_500_000, 9);
    let writes: Vec<_> = (0..16)
        .map(|n| {
            let (cas, content) = (store.cas.clone(), content.clone());
            tokio::spawn(async move {
                if n % 2 == 0 {
                    write_in_pieces(&cas, &content, 100_000).await
                } else {
                    cas.put_bytes(SHA, content).await.unwrap()
                }
            })
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    assert_eq!(store.cas.stats().blobs_written, 1);
    assert!(store.files("tmp").is_empty());
}

#[tokio::test]
async fn when_full_only_what_is_there_is_taken() {
    let store = store();
    let there = store.keep("there").await;
    store.cas.set_full(true);
    store.cas.put(&there, Bytes::from_static(b"there")).await.unwrap();
    assert_eq!(write_in_pieces(&store.cas, &Bytes::from_static(b"there"), 2).await, there);
    let new = Bytes::from_static(b"new");
    assert!(matches!(store.cas.put_bytes(SHA, new.clone()).await, Err(CasError::Full)));
    assert!(matches!(store.cas.writer(SHA.digest(&new)).await, Err(CasError::Full)));
    let source = store.folder.path().join("source");
    std::fs::write(&source, &new).unwrap();
    for take in [false, true] {
        assert!(matches!(store.cas.put_file(SHA, &source, take).await, Err(CasError::Full)));
        assert_eq!(std::fs::read(&source).unwrap(), new, "it stays with its owner");
    }
    std::fs::remove_file(&source).unwrap();
    std::fs::write(&source, "there").unwrap();
    assert_eq!(store.cas.put_file(SHA, &source, false).await.unwrap(), there);
    store.cas.set_full(false);
    store.keep(new).await;
}

#[tokio::test]
async fn b4_damage_is_found_and_heals() {
    let store = store();
    let content = noise(100_000, 1);
    let digest = store.keep(content.clone()).await;
    // Truncated, as by a power cut.
    std::fs::remove_file(store.path(&digest)).unwrap();
    std::fs::write(store.path(&digest), &content[..500]).unwrap();
    let cas = store.reopened();
    assert_eq!(cas.missing(&[digest]).await.unwrap(), [digest]);
    assert_eq!((cas.stats().damaged, store.path(&digest).exists()), (1, false));
    cas.put(&digest, content.clone()).await.unwrap();
    // Changed content of the same length.
    std::fs::remove_file(store.path(&digest)).unwrap();
    std::fs::write(store.path(&digest), noise(100_000, 2)).unwrap();
    assert!(cas.read(&digest, 0, None).await.unwrap().is_some(), "streams are verified by their reader");
    assert!(!cas.verify(&digest).await.unwrap());
    assert!(!cas.contains(&digest).await.unwrap());
    cas.put(&digest, content.clone()).await.unwrap();
    assert!(cas.verify(&digest).await.unwrap());
    std::fs::remove_file(store.path(&digest)).unwrap();
    std::fs::write(store.path(&digest), noise(100_000, 3)).unwrap();
    assert_eq!(cas.get(&digest).await.unwrap(), None);
    assert!(!cas.contains(&digest).await.unwrap());
}

#[tokio::test]
async fn small_blobs_are_read_from_memory_once_known() {
    let store = store();
    let small = store.keep(noise(1000, 1)).await;
    let cas = store.reopened();
    for _ in 0..5 {
        assert!(cas.get(&small).await.unwrap().is_some());
    }
    let stats = cas.stats();
    assert_eq!((stats.memory_hits, stats.memory_misses), (4, 1));
    let large = store.keep(noise(100_000, 1)).await;
    assert!(cas.get(&large).await.unwrap().is_some());
    assert_eq!(cas.stats().memory_hits, 4);
    let huge = BlobDigest { size: 1 << 40, ..small };
    assert!(matches!(cas.get(&huge).await, Err(CasError::TooLargeAtOnce { .. })));
}

/// Counts the bytes written and the writes that failed.
#[derive(Default)]
struct Sink {
    used: std::sync::atomic::AtomicU64,
    failed: std::sync::atomic::AtomicU64,
}

impl cas::UsageSink for Sink {
    fn used(&self, bytes: u64) {
        self.used.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    fn possessed(&self, _: &model::Zone, _: model::ZoneUse) {}

    fn lacks_space(&self) {
        self.failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[tokio::test]
async fn usage_is_told_in_blocks() {
    let store = store();
    let sink = std::sync::Arc::new(Sink::default());
    store.cas.set_usage_sink(sink.clone());
    let mut digests = Vec::new();
    for size in [1, 5000, 100_000, 3_000_000] {
        digests.push(store.keep(noise(size, size as u64)).await);
        digests.push(write_in_pieces(&store.cas, &noise(size, size as u64), 4096).await);
    }
    store.cas.local_path(&digests[2], true).await.unwrap();
    let mut blocks = 0;
    for path in store.files("cas").into_iter().chain(store.files("cas-x")) {
        blocks += path.metadata().unwrap().blocks() * 512;
    }
    assert_eq!(sink.used.load(std::sync::atomic::Ordering::Relaxed), blocks);
    assert_eq!(sink.failed.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn every_write_that_finds_no_space_is_reported() {
    let store = store();
    let sink = std::sync::Arc::new(Sink::default());
    store.cas.set_usage_sink(sink.clone());
    store.cas.set_full(true);
    let reports = || sink.failed.swap(0, std::sync::atomic::Ordering::Relaxed);
    let source = store.folder.path().join("source");
    for size in [1000, 100_000] {
        let content = noise(size, 1);
        assert!(store.cas.put_bytes(SHA, content.clone()).await.is_err());
        assert_eq!(reports(), 1, "{size}");
        assert!(store.cas.writer(SHA.digest(&content)).await.is_err());
        assert_eq!(reports(), 1, "{size}");
        std::fs::write(&source, &content).unwrap();
        assert!(store.cas.put_file(SHA, &source, false).await.is_err());
        assert_eq!(reports(), 1, "{size}");
    }
}

#[tokio::test]
async fn blobs_are_listed_page_by_page() {
    let store = store();
    let mut wanted = Vec::new();
    for n in 0..300_usize {
        let function = DigestFunction::ALL[n % 2];
        wanted.push(store.cas.put_bytes(function, noise(n + 1, n as u64)).await.unwrap());
    }
    wanted.sort();
    let mut listed: Vec<BlobDigest> = Vec::new();
    loop {
        let page = store.cas.list(listed.last().copied(), 37).await.unwrap();
        listed.extend(page.iter().map(|blob| blob.digest));
        assert!(page.iter().all(|blob| blob.disk_bytes > 0));
        if page.len() < 37 {
            break;
        }
    }
    assert_eq!(listed, wanted);
}
