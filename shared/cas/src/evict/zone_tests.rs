use std::sync::Barrier;

use bytes::Bytes;
use model::{BlobDigest, DigestFunction, Sight, ZoneLimit};

use super::*;
use crate::{CasConfig, local::LookUp};

const SHA: DigestFunction = DigestFunction::Sha256;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Bytes of disk of each blob.
const BLOCK: u64 = 4096;

struct Store {
    cas: Cas,
    _folder: tempfile::TempDir,
}

fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

/// A store in which zone `a` may have this.
fn store(bytes_max: u64, blobs_max: u64) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let limits = BTreeMap::from([("a".to_owned(), ZoneLimit { bytes_max, blobs_max })]);
    let zone_limits = limits.try_into().unwrap();
    let config = CasConfig { keep: HOUR, keep_min: HOUR, zone_limits, ..CasConfig::new(folder.path()) };
    Store { cas: Cas::open(config).unwrap(), _folder: folder }
}

impl Store {
    /// The store as a zone sees it in another process, which has seen nothing yet.
    fn seen_by(&self, name: &str) -> Cas {
        let other = Cas::open(self.cas.config().clone()).unwrap();
        bounded(&other, name)
    }

    fn evictor(&self, blobs: u64) -> Evictor {
        Evictor::open(&self.cas, EvictorConfig { bytes_max: blobs * BLOCK, free_bytes_min: 0 }).unwrap()
    }

    fn path(&self, blob: &BlobDigest) -> PathBuf {
        self.cas.local().path(&Entry::blob(*blob))
    }

    /// Makes a blob look as if the zone, and all others, last relied on it `age` ago.
    fn age(&self, name: &str, blob: &BlobDigest, age: Duration) {
        let mark = self.cas.local().layout().mark_path(&zone(name), blob);
        for path in [mark, self.path(blob)] {
            File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        self.cas.forget(blob);
    }
}

impl Evictor {
    fn blobs_of(&self, name: &str) -> u64 {
        self.zones()().iter().find(|room| room.zone == zone(name)).map_or(0, |room| room.used.blobs)
    }
}

fn bounded(cas: &Cas, name: &str) -> Cas {
    cas.seen_by(&Sight { zone: zone(name), parent: None, is_bounded: true })
}

fn content(n: u64) -> Bytes {
    n.to_le_bytes().to_vec().into()
}

async fn put(cas: &Cas, numbers: std::ops::Range<u64>) -> Vec<BlobDigest> {
    let mut digests = Vec::new();
    for n in numbers {
        digests.push(cas.put_bytes(SHA, content(n)).await.unwrap());
    }
    digests
}

#[tokio::test]
async fn a_zone_loses_its_own_oldest_blobs_and_no_others() {
    for (bytes_max, blobs_max) in [(10 * BLOCK, 0), (0, 10)] {
        let store = store(bytes_max, blobs_max);
        let (of_a, of_b) =
            (put(&bounded(&store.cas, "a"), 0..10).await, put(&bounded(&store.cas, "b"), 100..120).await);
        for (n, blob) in (0..).zip(&of_a) {
            store.age("a", blob, HOUR * (30 - n));
        }
        for blob in &of_b {
            store.age("b", blob, HOUR * 50);
        }
        let evictor = store.evictor(1000);
        let pass = evictor.pass().await.unwrap();
        // From 10 down to 80 % of 10.
        assert_eq!((pass.deleted, pass.freed), (2, 2 * BLOCK));
        assert_eq!(store.seen_by("a").missing(&of_a).await.unwrap(), of_a[..2]);
        assert!(store.seen_by("b").missing(&of_b).await.unwrap().is_empty());
        assert_eq!((evictor.blobs_of("a"), evictor.blobs_of("b")), (8, 20));
    }
}

#[tokio::test]
async fn a_zone_that_relies_on_all_it_has_is_refused_and_others_are_not() {
    let store = store(0, 10);
    let evictor = store.evictor(1000);
    evictor.pass().await.unwrap();
    let (a, b) = (bounded(&store.cas, "a"), bounded(&store.cas, "b"));
    let of_a = put(&a, 0..10).await;
    assert_eq!(evictor.pass().await.unwrap().deleted, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = |n: u64| {
        let path = folder.path().join(n.to_string());
        fs::write(&path, content(n)).unwrap();
        path
    };
    let is_refused =
        |outcome: Result<BlobDigest, CasError>| matches!(outcome, Err(CasError::ZoneFull { .. }));
    assert!(is_refused(a.put_bytes(SHA, content(10)).await));
    assert!(is_refused(a.put_file(SHA, &file(11), false).await));
    assert!(is_refused(a.writer(SHA.digest(&content(12))).await.map(|writer| *writer.digest())));
    for n in 10..13 {
        assert!(!store.path(&SHA.digest(&content(n))).exists(), "nothing is stored");
    }
    // What it has it may store again, also in another process that knows nothing of it yet.
    let other = store.seen_by("a");
    other.local().refusal().set_zones(evictor.refused_zones().borrow().clone());
    for cas in [&a, &other] {
        let batch = (0..12).map(|n| (SHA.digest(&content(n)), content(n))).collect();
        let stored: Vec<bool> = cas.put_many(batch).await.iter().map(Result::is_ok).collect();
        assert_eq!(stored, [[true; 10].as_slice(), &[false; 2]].concat());
        assert_eq!(cas.put_file(SHA, &file(3), false).await.unwrap(), of_a[3]);
        assert_eq!(cas.put_bytes(SHA, Bytes::new()).await.unwrap(), SHA.empty());
    }
    put(&b, 50..80).await;
    put(&store.cas, 90..95).await;
    // The time of three is over, which makes room for others.
    for blob in &of_a[..3] {
        store.age("a", blob, HOUR * 2);
    }
    assert_eq!(evictor.scan_and_pass().await.deleted, 2);
    put(&store.seen_by("a"), 10..11).await;
}

#[tokio::test]
async fn of_two_zones_that_have_a_blob_one_loses_it() {
    let store = store(0, 10);
    let (of_a, same) =
        (put(&bounded(&store.cas, "a"), 0..10).await, put(&bounded(&store.cas, "b"), 0..10).await);
    assert_eq!(of_a, same);
    for blob in &of_a {
        store.age("a", blob, HOUR * 2);
    }
    // That another zone relies on it does not keep it for this one.
    assert!(store.seen_by("b").missing(&of_a).await.unwrap().is_empty());
    let evictor = store.evictor(1000);
    assert_eq!(evictor.pass().await.unwrap().deleted, 0);
    assert_eq!((evictor.blobs_of("a"), evictor.blobs_of("b")), (8, 10));
    let lost = store.seen_by("a").missing(&of_a).await.unwrap();
    assert_eq!(lost.len(), 2);
    assert!(store.seen_by("b").missing(&of_a).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_a_zone_looks_up_stays_and_the_rest_goes() {
    let store = store(0, 10);
    let blobs = put(&bounded(&store.cas, "a"), 0..10).await;
    for blob in &blobs {
        store.age("a", blob, HOUR * 2);
    }
    let child = Sight { zone: zone("c"), parent: Some(zone("a")), is_bounded: true };
    let child = Cas::open(store.cas.config().clone()).unwrap().seen_by(&child);
    let a = store.seen_by("a");
    assert!(a.missing(&blobs[..4]).await.unwrap().is_empty());
    assert!(a.get(&blobs[4]).await.unwrap().is_some());
    // A zone that reads from it keeps nothing for it.
    assert!(child.missing(&blobs[5..]).await.unwrap().is_empty());
    let evictor = store.evictor(1000);
    evictor.pass().await.unwrap();
    assert_eq!(evictor.blobs_of("a"), 8);
    let lost = store.seen_by("a").missing(&blobs).await.unwrap();
    assert!(lost.len() == 2 && lost.iter().all(|blob| blobs[5..].contains(blob)), "{lost:?}");
}

#[tokio::test]
async fn what_records_name_stays_and_counts() {
    let store = store(0, 10);
    let blobs = put(&bounded(&store.cas, "a"), 0..10).await;
    let evictor = store.evictor(1000);
    evictor.pass().await.unwrap();
    let until = SystemTime::now() + DAY;
    assert!(evictor.keep(blobs.iter().map(|blob| (*blob, until)).collect()).await.unwrap().is_empty());
    for blob in &blobs {
        store.age("a", blob, HOUR * 5);
    }
    let pass = evictor.scan_and_pass().await;
    assert_eq!((pass.deleted, evictor.blobs_of("a")), (0, 10));
    let refused = bounded(&store.cas, "a").put_bytes(SHA, content(10)).await;
    assert!(matches!(refused, Err(CasError::ZoneFull { .. })), "{refused:?}");
    evictor.release(until + 3 * DAY, None).await.unwrap();
    evictor.scan_and_pass().await;
    assert!(evictor.blobs_of("a") < 10);
    put(&store.seen_by("a"), 10..11).await;
}

#[tokio::test]
async fn a_blob_larger_than_the_limit_is_refused() {
    let store = store(10 * BLOCK, 0);
    let a = bounded(&store.cas, "a");
    let content = Bytes::from(vec![7; 10 * 4096 + 1]);
    let digest = SHA.digest(&content);
    let is_refused = |outcome: Result<(), CasError>| matches!(outcome, Err(CasError::AboveZoneLimit { .. }));
    assert!(is_refused(a.put(&digest, content.clone()).await));
    assert!(is_refused(a.writer(digest).await.map(drop)));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), &content).unwrap();
    assert!(is_refused(a.put_file(SHA, &folder.path().join("file"), false).await.map(drop)));
    assert!(!store.path(&digest).exists());
    a.put_bytes(SHA, content.slice(1..)).await.unwrap();
    bounded(&store.cas, "b").put(&digest, content).await.unwrap();
}

#[tokio::test]
async fn what_killed_processes_did_not_report_is_counted_by_the_next_evictor() {
    let store = store(0, 100);
    let evictor = store.evictor(1000);
    evictor.pass().await.unwrap();
    // Each mark counts once, whichever process makes it.
    let blobs = put(&bounded(&store.cas, "a"), 0..20).await;
    put(&bounded(&store.cas, "a"), 0..20).await;
    assert_eq!(evictor.blobs_of("a"), 20);
    // This one has no receiver of reports.
    put(&store.seen_by("a"), 10..50).await;
    assert_eq!(evictor.blobs_of("a"), 20);
    // A mark of which the blob is gone, and one that an evictor was removing when it was killed.
    fs::remove_file(store.path(&blobs[0])).unwrap();
    let local = store.cas.local();
    for blob in &blobs[..2] {
        let mark = local.layout().mark_path(&zone("a"), blob);
        File::open(&mark).unwrap().set_modified(SystemTime::now() - DAY).unwrap();
    }
    fs::rename(local.layout().mark_path(&zone("a"), &blobs[1]), local.layout().trashed_mark()).unwrap();
    drop(evictor);
    let evictor = store.evictor(1000);
    evictor.pass().await.unwrap();
    let room = evictor.zones()();
    assert_eq!((room[0].used, room.len()), (ZoneUse { blobs: 48, bytes: 48 * BLOCK }, 1));
    assert!(!local.layout().trashed_mark().exists());
}

#[tokio::test]
async fn when_the_store_is_short_a_zone_near_its_limit_gives_way() {
    let store = store(0, 20);
    let (of_a, of_b) =
        (put(&bounded(&store.cas, "a"), 0..18).await, put(&bounded(&store.cas, "b"), 100..102).await);
    for blob in &of_a {
        store.age("a", blob, HOUR * 2);
    }
    for blob in &of_b {
        store.age("b", blob, HOUR * 9);
    }
    // 20 blobs where 22 have room: above 90 %, and to 80 % it is enough that the zone gives 2 and loses no more than its own share.
    let evictor = store.evictor(22);
    let pass = evictor.pass().await.unwrap();
    assert_eq!(evictor.blobs_of("a"), 16, "{pass:?}");
    assert!(store.seen_by("b").missing(&of_b).await.unwrap().is_empty());
}

/// A mark that a process made or touched stays, whatever the evictor does at that moment.
#[tokio::test]
async fn what_a_zone_relies_on_at_that_moment_is_not_lost() {
    const BLOBS: u64 = 100;
    let store = store(0, 10);
    let evictor = store.evictor(1000);
    let (mut stayed, mut went) = (0, 0);
    for round in 0..40_u64 {
        let blobs = put(&store.seen_by("a"), round * BLOBS..(round + 1) * BLOBS).await;
        for blob in &blobs {
            store.age("a", blob, HOUR * 2);
        }
        let (local, start) = (store.cas.local(), Barrier::new(2));
        let absent = std::thread::scope(|threads| {
            let asker = threads.spawn(|| {
                start.wait();
                if round % 2 == 0 {
                    return local.unmarked(&zone("a"), &blobs, LookUp::Relying).unwrap();
                }
                local.mark(&zone("a"), &blobs).unwrap();
                Vec::new()
            });
            start.wait();
            let mut pass = Pass::default();
            for blob in blobs.iter().rev() {
                evictor.inner.take_away(&zone("a"), blob, SystemTime::now() - HOUR, &mut pass).unwrap();
            }
            asker.join().unwrap()
        });
        for blob in &blobs {
            let is_there = local.layout().mark_path(&zone("a"), blob).exists();
            assert!(is_there || absent.contains(blob), "round {round}");
            if is_there { stayed += 1 } else { went += 1 }
        }
    }
    assert!(stayed > 20 && went > 20, "{stayed} stayed, {went} went: no race");
}
