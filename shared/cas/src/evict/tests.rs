use std::{io::Write as _, os::unix::fs::PermissionsExt as _, sync::Barrier};

use bytes::Bytes;
use model::{BlobDigest, DigestFunction};

use super::*;
use crate::{CasConfig, Refusal, disk::Disk};

const SHA: DigestFunction = DigestFunction::Sha256;
const BLOB: usize = 40_000;
const BLOCKS: u64 = 40_960;

struct Store {
    cas: Cas,
    folder: tempfile::TempDir,
}

fn store(keep: Duration) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let cas = Cas::open(CasConfig { keep, keep_min: keep, ..CasConfig::new(folder.path()) }).unwrap();
    Store { cas, folder }
}

impl Store {
    fn evictor(&self, blobs: u64) -> Evictor {
        Evictor::open(&self.cas, EvictorConfig { bytes_max: blobs * BLOCKS, free_bytes_min: 0 }).unwrap()
    }

    /// The store as seen by another process.
    fn other(&self) -> Cas {
        Cas::open(self.cas.config().clone()).unwrap()
    }

    async fn keep(&self, n: u64) -> BlobDigest {
        self.cas.put_bytes(SHA, content(n)).await.unwrap()
    }

    fn path(&self, digest: &BlobDigest) -> std::path::PathBuf {
        self.cas.local().path(&Entry::blob(*digest))
    }

    /// Makes a blob look as if it was last used `age` ago.
    fn age(&self, digest: &BlobDigest, age: Duration) {
        let file = File::open(self.path(digest)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        self.cas.forget(digest);
    }

    fn count(&self, folder: &str) -> usize {
        fs::read_dir(self.folder.path().join(folder)).unwrap().count()
    }
}

impl Evictor {
    /// Runs a pass that does not rely on earlier scans.
    pub(super) async fn scan_and_pass(&self) -> Pass {
        *self.inner.queue.lock() = Queue::default();
        self.pass().await.unwrap()
    }
}

fn content(n: u64) -> Bytes {
    n.to_le_bytes().repeat(BLOB / 8).into()
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn the_oldest_go_first_and_only_as_many_as_needed() {
    let store = store(HOUR);
    let mut digests = Vec::new();
    for n in 0..20 {
        digests.push(store.keep(n).await);
        store.age(&digests[digests.len() - 1], HOUR * (40 - u32::try_from(n).unwrap()));
    }
    let evictor = store.evictor(20);
    let pass = evictor.pass().await.unwrap();
    // From 20 down to 80 % of 20.
    assert_eq!((pass.deleted, pass.freed), (4, 4 * BLOCKS));
    assert_eq!(store.cas.missing(&digests).await.unwrap(), digests[..4]);
    assert_eq!(evictor.room().borrow().used, 16 * BLOCKS);
    assert_eq!(evictor.pass().await.unwrap(), Pass::default());
}

#[tokio::test]
async fn what_is_promised_stays_when_the_store_is_full() {
    let store = store(HOUR);
    let evictor = store.evictor(10);
    evictor.pass().await.unwrap();
    let mut digests = Vec::new();
    let full = loop {
        let n = digests.len() as u64;
        match store.cas.put_bytes(SHA, content(n)).await {
            Ok(digest) => digests.push(digest),
            Err(error) => break error,
        }
        assert!(digests.len() <= 10);
    };
    assert!(matches!(full, CasError::Full));
    assert_eq!(digests.len(), 10);
    let pass = evictor.scan_and_pass().await;
    assert_eq!(pass.deleted, 0);
    assert!(pass.again.is_some_and(|again| again > HOUR && again <= HOUR + HOUR / 4));
    assert!(store.cas.missing(&digests).await.unwrap().is_empty());
    assert!(evictor.room().borrow().refusal == Refusal::Large && store.cas.is_full());
    // The time of one blob is over, which makes space for others.
    store.age(&digests[3], HOUR * 2);
    store.age(&digests[4], HOUR + HOUR / 8);
    assert_eq!(evictor.scan_and_pass().await.deleted, 1);
    assert!(!store.cas.is_full());
    assert_eq!(store.cas.missing(&digests).await.unwrap(), [digests[3]]);
}

#[tokio::test]
async fn a_store_that_is_about_to_be_full_loses_the_oldest_though_they_are_promised_for_longer() {
    let folder = tempfile::tempdir().unwrap();
    let config = CasConfig { keep: HOUR * 4, keep_min: HOUR / 4, ..CasConfig::new(folder.path()) };
    let store = Store { cas: Cas::open(config).unwrap(), folder };
    let mut digests = Vec::new();
    for n in 0..10 {
        digests.push(store.keep(n).await);
    }
    // Two blobs were used an hour ago, one was used a quarter of an hour ago.
    store.age(&digests[4], HOUR);
    store.age(&digests[7], HOUR * 2);
    store.age(&digests[2], HOUR / 4);
    let evictor = store.evictor(10);
    let pass = evictor.pass().await.unwrap();
    assert_eq!(pass.deleted, 1);
    assert_eq!(store.cas.missing(&digests).await.unwrap(), [digests[7]]);
    assert!(!store.cas.is_full());
    digests[7] = store.keep(20).await;
    assert_eq!(evictor.scan_and_pass().await.deleted, 0);
    assert_eq!(evictor.room().borrow().refusal, Refusal::Large);
}

#[tokio::test]
async fn small_blobs_are_taken_by_a_full_store_up_to_a_twentieth_more() {
    let store = store(HOUR);
    let evictor = store.evictor(20);
    evictor.pass().await.unwrap();
    for n in 0..20 {
        store.keep(n).await;
    }
    assert!(matches!(store.cas.put_bytes(SHA, content(99)).await, Err(CasError::Full)));
    let small = |n: u64| Bytes::from(n.to_string().repeat(1000));
    let mut taken = 0;
    while store.cas.put_bytes(SHA, small(taken + 1000)).await.is_ok() {
        taken += 1;
        assert!(taken < 100);
    }
    assert!(taken > 3, "{taken}");
    assert_eq!(evictor.room().borrow().refusal, Refusal::All);
}

#[tokio::test]
async fn relying_on_a_blob_by_any_call_keeps_it() {
    let store = store(HOUR);
    let mut digests = Vec::new();
    for n in 0..7 {
        digests.push(store.keep(n).await);
        store.age(&digests[digests.len() - 1], HOUR * 10);
    }
    let other = store.other();
    assert!(other.contains(&digests[0]).await.unwrap());
    assert!(other.get(&digests[1]).await.unwrap().is_some());
    assert!(other.read(&digests[2], 0, Some(1)).await.unwrap().is_some());
    assert!(other.local_path(&digests[3], true).await.unwrap().is_some());
    other.put(&digests[4], content(4)).await.unwrap();
    assert!(other.split(&digests[5]).await.unwrap().is_some());
    assert_eq!(store.evictor(1).pass().await.unwrap().deleted, 1);
    assert_eq!(store.other().missing(&digests).await.unwrap(), digests[6..]);
}

#[tokio::test]
async fn linked_files_stay_and_twins_go() {
    let store = store(HOUR);
    let (linked, twin) = (store.keep(1).await, store.keep(2).await);
    let twin_path = store.cas.local_path(&twin, true).await.unwrap().unwrap();
    assert_eq!(twin_path.metadata().unwrap().permissions().mode() & 0o777, 0o555);
    fs::hard_link(store.path(&linked), store.folder.path().join("in use")).unwrap();
    store.age(&linked, HOUR * 9);
    store.age(&twin, HOUR * 9);
    File::open(&twin_path).unwrap().set_modified(SystemTime::now() - HOUR * 9).unwrap();
    let pass = store.evictor(1).pass().await.unwrap();
    assert_eq!((pass.deleted, pass.linked), (2, 1));
    assert!(pass.again.is_some());
    assert!(store.path(&linked).exists() && !store.path(&twin).exists() && !twin_path.exists());
}

#[tokio::test]
async fn what_was_touched_between_the_looks_is_put_back() {
    let store = store(HOUR);
    let digest = store.keep(1).await;
    store.age(&digest, HOUR * 9);
    let layout = store.cas.local().layout();
    let entry = Entry::blob(digest);
    // The state after an evictor dies between its rename and its second check.
    fs::rename(layout.path(&entry), layout.trash_path(&entry)).unwrap();
    assert_eq!(store.other().get(&digest).await.unwrap().unwrap(), content(1));
    assert!(layout.path(&entry).exists());
    fs::rename(layout.path(&entry), layout.trash_path(&entry)).unwrap();
    assert!(store.other().contains(&digest).await.unwrap());
    fs::rename(layout.path(&entry), layout.trash_path(&entry)).unwrap();
    fs::write(layout.trash().join("rubbish"), "").unwrap();
    let _evictor = store.evictor(1);
    assert!(layout.path(&entry).exists());
    assert_eq!(store.count("trash"), 0);
}

#[tokio::test]
async fn one_evictor_a_folder() {
    let store = store(HOUR);
    let first = store.evictor(1);
    let second = Evictor::open(&store.other(), EvictorConfig { bytes_max: 1, free_bytes_min: 0 });
    assert!(matches!(second, Err(CasError::EvictorRuns { .. })));
    drop(first);
    store.evictor(1);
}

#[tokio::test]
async fn dead_writers_files_are_removed() {
    let store = store(HOUR);
    let temps = store.cas.local().layout().temps();
    for (name, age) in [("young", HOUR / 2), ("old", HOUR * 2)] {
        fs::write(temps.join(name), "x").unwrap();
        File::open(temps.join(name)).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }
    let _evictor = store.evictor(1);
    assert!(temps.join("young").exists() && !temps.join("old").exists());
}

#[tokio::test]
async fn a_disk_that_others_fill_makes_the_store_full() {
    let store = store(HOUR);
    let digest = store.keep(1).await;
    let config = EvictorConfig { bytes_max: 1 << 40, free_bytes_min: u64::MAX };
    let evictor = Evictor::open(&store.cas, config).unwrap();
    evictor.pass().await.unwrap();
    assert!(store.cas.is_full() && store.path(&digest).exists());
}

#[tokio::test]
async fn a_write_that_finds_no_space_wakes_it() {
    let store = store(HOUR);
    let evictor = store.evictor(10);
    let old = store.keep(1).await;
    // The first pass found nothing to do.
    evictor.pass().await.unwrap();
    evictor.inner.meter.checked().await;
    let woken = || tokio::time::timeout(Duration::from_millis(100), evictor.inner.meter.checked());
    assert!(woken().await.is_err(), "nothing was written since");
    store.cas.set_full(true);
    assert!(matches!(store.cas.put_bytes(SHA, content(2)).await, Err(CasError::Full)));
    assert!(woken().await.is_ok());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn({
        let evictor = evictor.clone();
        async move { evictor.run(async { drop(stopped.await) }, |_| ()).await }
    });
    // The second time, its first pass is over.
    for n in [2, 3] {
        store.cas.set_full(true);
        let put = async {
            while store.cas.put_bytes(SHA, content(n)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), put).await.expect("a pass finds that there is space");
    }
    stop.send(()).unwrap();
    running.await.unwrap();
    assert!(store.path(&old).exists());
}

#[tokio::test]
async fn it_runs_when_room_is_short_and_stops_when_told() {
    let store = store(Duration::ZERO);
    let evictor = store.evictor(10);
    let mut room = evictor.room();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn({
        let evictor = evictor.clone();
        async move { evictor.run(async { drop(stopped.await) }, |_| ()).await }
    });
    // Writes ten times the limit: this works as long as eviction keeps up.
    for n in 0..100 {
        while matches!(store.cas.put_bytes(SHA, content(n)).await, Err(CasError::Full)) {
            room.wait_for(|room| room.refusal == Refusal::Nothing).await.unwrap();
        }
    }
    stop.send(()).unwrap();
    running.await.unwrap();
    assert!(room.borrow().used <= 11 * BLOCKS);
}

/// A caller that gets the answer "present" finds the blob afterwards, and the answer "missing" is correct, whatever
/// the evictor does at that moment.
#[test]
fn touching_and_evicting_race_and_no_promise_is_broken() {
    const ROUNDS: u64 = 150;
    const BLOBS: u64 = 40;
    let store = store(HOUR);
    let evictor = store.evictor(1);
    let disk = || Disk::open(store.folder.path(), false, None).unwrap();
    let (writer, disks) = (disk(), [disk(), disk(), disk()]);
    let cutoff = SystemTime::now() - HOUR;
    let (mut stayed, mut went) = (0, 0);
    for round in 0..ROUNDS {
        let entries: Vec<Entry> =
            (0..BLOBS).map(|n| Entry::blob(SHA.digest(&content(round * BLOBS + n)))).collect();
        // No caller has relied on them for long.
        for (n, entry) in (0..).zip(&entries) {
            let temp = writer.temp(0o444).unwrap();
            temp.file().write_all(&content(round * BLOBS + n)).unwrap();
            writer.commit(temp, entry, false).unwrap();
            let file = File::open(store.path(&entry.digest)).unwrap();
            file.set_modified(cutoff - HOUR).unwrap();
        }
        let last = [Ask::Put, Ask::Open, Ask::Use][usize::try_from(round % 3).unwrap()];
        let start = Barrier::new(disks.len() + 1);
        let told: Vec<Vec<bool>> = std::thread::scope(|threads| {
            let askers: Vec<_> = disks
                .iter()
                .zip([Ask::One, Ask::Many, last])
                .map(|(disk, ask)| {
                    let (start, entries) = (&start, &entries);
                    threads.spawn(move || {
                        start.wait();
                        ask_for(disk, entries, ask, round * BLOBS)
                    })
                })
                .collect();
            start.wait();
            let mut pass = Pass::default();
            for entry in &entries {
                evictor.inner.evict(entry, cutoff, &mut pass).unwrap();
            }
            askers.into_iter().map(|asker| asker.join().unwrap()).collect()
        });
        for (n, entry) in entries.iter().enumerate() {
            let there = store.path(&entry.digest).exists();
            let answers: Vec<bool> = told.iter().map(|told| told[n]).collect();
            if there {
                assert_eq!(fs::read(store.path(&entry.digest)).unwrap(), content(round * BLOBS + n as u64));
                stayed += 1;
            } else {
                // Opening a blob promises nothing for later.
                assert!(!answers[0] && !answers[1] && (round % 3 == 1 || !answers[2]), "{answers:?}");
                went += 1;
            }
            // Without a writer, a blob that is present at the end was there all the time.
            assert!(!there || round % 3 == 0 || answers == [true; 3], "{answers:?}");
            let _ = fs::remove_file(store.path(&entry.digest));
        }
        assert_eq!((store.count("trash"), store.count("tmp")), (0, 0));
    }
    assert!(stayed > 20 && went > 20, "{stayed} stayed, {went} went: no race");
}

#[derive(Clone, Copy)]
enum Ask {
    One,
    Many,
    Open,
    Use,
    Put,
}

fn ask_for(disk: &Disk, entries: &[Entry], ask: Ask, first: u64) -> Vec<bool> {
    let one = |(n, entry): (u64, &Entry)| match ask {
        Ask::One => disk.touch(entry).unwrap(),
        Ask::Many => disk.touch_many(&[*entry]).unwrap()[0],
        Ask::Open => disk.open_file(entry).unwrap().is_some(),
        Ask::Use => disk.open_and_touch(entry, |age| age < Duration::from_millis(50)).unwrap().is_some(),
        Ask::Put => {
            let temp = disk.temp_beside(entry, 0o444, &content(first + n)).unwrap();
            disk.commit(temp, entry, false).unwrap();
            true
        }
    };
    (0..).zip(entries).map(one).collect()
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test]
async fn what_records_name_stays_and_does_not_count() {
    let store = store(HOUR);
    let named = store.keep(1).await;
    let evictor = store.evictor(10);
    evictor.pass().await.unwrap();
    let absent = SHA.digest(b"absent");
    let until = SystemTime::now() + 2 * DAY;
    assert_eq!(
        evictor.keep(vec![(named, until), (absent, until), (SHA.empty(), until)]).await.unwrap(),
        [absent]
    );
    store.age(&named, HOUR * 24);
    let mut others = Vec::new();
    for n in 10..20 {
        others.push(store.keep(n).await);
        store.age(&others[others.len() - 1], HOUR * 10);
    }
    // Ten blobs are the limit, and the named one is not among them.
    let pass = evictor.scan_and_pass().await;
    assert_eq!((pass.deleted, evictor.room().borrow().used), (2, 8 * BLOCKS));
    assert!(store.cas.contains(&named).await.unwrap());
    // Another process knows as well that it is there.
    assert!(store.other().contains(&named).await.unwrap());
    store.age(&named, HOUR * 24);
    assert_eq!(evictor.release(until, None).await.unwrap().deleted, 0);
    assert_eq!(evictor.release(until + 2 * DAY, None).await.unwrap().deleted, 1);
    assert!(!store.other().contains(&named).await.unwrap());
}

#[tokio::test]
async fn what_a_second_record_names_stays_longer() {
    let store = store(HOUR);
    let (named, used) = (store.keep(1).await, store.keep(2).await);
    let evictor = store.evictor(10);
    let now = SystemTime::now();
    for until in [now + DAY, now + 5 * DAY] {
        assert!(evictor.keep(vec![(named, until), (used, until)]).await.unwrap().is_empty());
    }
    assert_eq!(evictor.release(now + 3 * DAY, None).await.unwrap().deleted, 0);
    assert!(store.other().missing(&[named, used]).await.unwrap().is_empty());
    // The other one was used just before: then it stays as long as blobs that no record names.
    store.age(&named, HOUR * 2);
    assert_eq!(evictor.release(now + 8 * DAY, None).await.unwrap().deleted, 1);
    assert_eq!(store.other().missing(&[named, used]).await.unwrap(), [named]);
}

#[tokio::test]
async fn what_is_kept_longer_than_the_retention_allows_is_released() {
    let store = store(HOUR);
    let (long, both) = (store.keep(1).await, store.keep(2).await);
    let evictor = store.evictor(10);
    let now = SystemTime::now();
    assert!(evictor.keep(vec![(long, now + 9 * DAY), (both, now + 9 * DAY)]).await.unwrap().is_empty());
    assert!(evictor.keep(vec![(both, now + 4 * DAY)]).await.unwrap().is_empty());
    for digest in [&long, &both] {
        store.age(digest, HOUR * 24);
    }
    assert_eq!(evictor.release(now, Some(now + 9 * DAY)).await.unwrap().deleted, 0);
    assert_eq!(evictor.release(now, Some(now + 4 * DAY)).await.unwrap().deleted, 1);
    assert_eq!(store.other().missing(&[long, both]).await.unwrap(), [long]);
}

#[tokio::test]
async fn a_file_in_place_of_a_day_does_not_stop_the_deletion() {
    let store = store(HOUR);
    let named = store.keep(1).await;
    let evictor = store.evictor(10);
    let now = SystemTime::now();
    assert!(evictor.keep(vec![(named, now)]).await.unwrap().is_empty());
    store.age(&named, HOUR * 24);
    // The folder may list these before or after the day of the blob.
    let strays = ["0", "1", "77", "9999"].map(|day| store.folder.path().join("kept").join(day));
    for stray in &strays {
        fs::write(stray, "").unwrap();
    }
    assert_eq!(evictor.release(now + 3 * DAY, None).await.unwrap().deleted, 1);
    assert_eq!(evictor.inner.stuck_days.lock().len(), strays.len());
    assert_eq!(evictor.release(now + 3 * DAY, None).await.unwrap().deleted, 0);
    assert!(strays.iter().all(|stray| stray.exists()));
}

#[tokio::test]
async fn a_name_that_cannot_be_removed_does_not_stop_the_deletion_of_the_others() {
    let store = store(HOUR);
    let named = store.keep(1).await;
    let evictor = store.evictor(10);
    let now = SystemTime::now();
    assert!(evictor.keep(vec![(named, now)]).await.unwrap().is_empty());
    store.age(&named, HOUR * 24);
    let day = fs::read_dir(store.folder.path().join("kept")).unwrap().next().unwrap().unwrap().file_name();
    let day: u64 = day.to_str().unwrap().parse().unwrap();
    let layout = store.cas.local().layout();
    // The folder may list these before or after the blob.
    let folders: Vec<PathBuf> =
        (2..10).map(|n| layout.kept_path(day, &Entry::blob(SHA.digest(&content(n))))).collect();
    for folder in &folders {
        fs::create_dir_all(folder).unwrap();
    }
    assert_eq!(evictor.release(now + 3 * DAY, None).await.unwrap().deleted, 1);
    assert_eq!(evictor.inner.stuck_days.lock().len(), 1);
    for folder in &folders {
        fs::remove_dir(folder).unwrap();
    }
    assert_eq!(evictor.release(now + 3 * DAY, None).await.unwrap().deleted, 0);
    assert!(evictor.inner.stuck_days.lock().is_empty());
    assert_eq!(store.count("kept"), 0);
}

#[test]
fn failures_with_the_same_cause_are_logged_once_a_minute() {
    let failure = |path: &str, kind: io::ErrorKind| CasError::disk("evicting", path.as_ref(), kind.into());
    let mut logged = LoggedFailure::default();
    assert!(logged.is_due(&failure("/a", io::ErrorKind::ReadOnlyFilesystem)));
    assert!(!logged.is_due(&failure("/b", io::ErrorKind::ReadOnlyFilesystem)));
    assert!(logged.is_due(&failure("/b", io::ErrorKind::PermissionDenied)));
}

#[tokio::test]
async fn while_it_is_unknown_what_records_name_nothing_is_deleted() {
    let store = store(HOUR);
    for n in 0..3 {
        let digest = store.keep(n).await;
        store.age(&digest, HOUR * 24);
    }
    let evictor = store.evictor(1);
    evictor.suspend(true);
    assert_eq!(evictor.pass().await.unwrap().deleted, 0);
    evictor.suspend(false);
    assert_eq!(evictor.pass().await.unwrap().deleted, 3);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    #[test]
    fn nothing_that_a_record_names_is_deleted_and_the_rest_is(
        named in proptest::collection::vec((0_u64..6, 0_u32..6), 0..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = store(HOUR);
            let mut digests = Vec::new();
            for n in 0..6 {
                digests.push(store.keep(n).await);
            }
            // No other blob has room.
            let evictor = store.evictor(0);
            let now = SystemTime::now();
            for (n, days) in &named {
                let digest = digests[usize::try_from(*n).unwrap()];
                evictor.keep(vec![(digest, now + *days * DAY)]).await.unwrap();
            }
            for day in 0..10 {
                for digest in &digests {
                    store.age(digest, HOUR * 5);
                }
                evictor.release(now + day * DAY, None).await.unwrap();
                evictor.scan_and_pass().await;
                digests.retain(|digest| store.path(digest).exists());
                for (n, digest) in (0..6).map(|n| (n, SHA.digest(&content(n)))) {
                    let last = named.iter().filter(|(blob, _)| *blob == n).map(|(_, days)| *days).max();
                    let is_there = digests.contains(&digest);
                    if last.is_some_and(|last| day <= last) {
                        assert!(is_there, "blob {n} on day {day}, named until {last:?}");
                    } else if last.is_none_or(|last| day > last + 2) {
                        assert!(!is_there, "blob {n} on day {day}, named until {last:?}");
                    }
                }
            }
        });
    }
}
