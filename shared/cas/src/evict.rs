//! Makes space: deletes the files that no caller relies on any more, oldest first.

mod kept;
mod meter;
mod scan;
mod zone_meter;
mod zone_queue;
mod zones;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    error::Error as _,
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use invariant::impossible;
use model::{Zone, ZoneUse};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use meter::CasRoom;
use meter::Meter;
use scan::{Candidate, Scan, scan};
pub use zone_meter::ZoneRoom;
use zone_queue::ZoneQueue;

use crate::{
    Cas, CasError, UsageSink,
    disk::put_back,
    layout::{Entry, Kind},
    local::Local,
};

/// Delay before another pass when linked files prevent eviction: unlinking a file sends no notification.
const LINKED_AGAIN: Duration = Duration::from_secs(60);
/// Interval of checks while the file system lacks free space.
const SHORT_AGAIN: Duration = Duration::from_secs(2);
/// Minimum time between two checks of the free space that follow writes, and maximum time without a check: other
/// processes may fill the file system.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
const CHECK_IDLE: Duration = Duration::from_secs(60);
/// Minimum time between two log lines about failures with the same cause.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// A scan may use one part in this many of the time.
const SCAN_SHARE: u32 = 20;

/// Limits of the space of a store.
#[derive(Debug, Clone, Copy)]
pub struct EvictorConfig {
    /// Maximum bytes of disk that the store uses, without the blobs that records name. Eviction starts at 90% of it and goes down to 80%; at 100% the
    /// store counts as full.
    pub bytes_max: u64,
    /// Minimum free bytes of the file system, whichever process uses the rest.
    pub free_bytes_min: u64,
}

/// Result of one eviction pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass {
    /// Number of files deleted.
    pub deleted: u64,
    /// Bytes of disk freed by the deleted files.
    pub freed: u64,
    /// Number of files moved back because a caller relied on them at that very moment.
    pub put_back: u64,
    /// Number of files skipped because they are linked from elsewhere: deleting them would free nothing.
    pub linked: u64,
    /// Set if the pass could not free enough: the delay after which another pass may free more.
    pub again: Option<Duration>,
}

impl Pass {
    /// Another pass may free more after this delay.
    fn again_after(&mut self, delay: Duration) {
        self.again = Some(self.again.map_or(delay, |known| known.min(delay)));
    }
}

/// Evicts from the folder of a store. There is one for each folder: it holds a lock on the folder, which the system
/// releases when the process ends. Cheap to clone.
///
/// It deletes what no client relied on for 1.25 times [`CasConfig::keep`](crate::CasConfig::keep), oldest first. When
/// that is not enough and the store is about to be full, it also deletes what no client relied on for 1.25 times
/// [`CasConfig::keep_min`](crate::CasConfig::keep_min), and nothing else: then writes are refused until time has
/// passed. Blobs that a record names ([`Evictor::keep`]) stay in any case and do not count towards
/// [`EvictorConfig::bytes_max`]. A store with an object store behind it may lose files of its local tier after only a quarter of `keep`,
/// since they can be fetched again.
///
/// Before that, it takes from each zone near its limit ([`CasConfig::zone_limits`](crate::CasConfig::zone_limits)) what that zone did not
/// rely on for as long, and deletes it if no other zone has it.
#[derive(Clone)]
pub struct Evictor {
    inner: Arc<EvictorInner>,
}

struct EvictorInner {
    local: Arc<Local>,
    root: PathBuf,
    config: EvictorConfig,
    /// Minimum age of a file that is deleted, and its minimum age when the store is about to be full.
    age_min: Duration,
    age_min_pressing: Duration,
    meter: Arc<Meter>,
    queue: Mutex<Queue>,
    suspended: AtomicBool,
    /// Folders of days that could not be removed and are logged already.
    stuck_days: Mutex<HashSet<PathBuf>>,
    _lock: Flock<File>,
}

/// The oldest files of the last scan, oldest first. All other files were younger than the last of these.
#[derive(Default)]
struct Queue {
    candidates: VecDeque<Candidate>,
    scanned: Option<(Instant, Duration)>,
    zones: BTreeMap<Zone, ZoneQueue>,
}

impl std::fmt::Debug for Evictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evictor").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl UsageSink for Evictor {
    fn used(&self, bytes: u64) {
        self.inner.meter.used(bytes);
    }

    fn possessed(&self, zone: &Zone, more: ZoneUse) {
        self.inner.meter.possessed(zone, more);
    }

    fn lacks_space(&self) {
        self.inner.meter.lacks_space();
    }
}

impl Evictor {
    /// Locks the store's folder, moves back the files that a dead evictor left in the trash, and removes the
    /// temporary files of dead writers. From now on `cas` reports its writes to this evictor.
    pub fn open(cas: &Cas, config: EvictorConfig) -> Result<Self, CasError> {
        let (local, store) = (cas.local(), cas.config());
        let layout = local.layout();
        let path = layout.lock_path();
        let failed = |source| CasError::disk("locking", &path, source);
        let file = ::disk::lock_file(&path).map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| CasError::EvictorRuns { path: store.root.display().to_string() })?;
        scan::empty_trash(layout);
        scan::remove_stale_temps(layout);
        let meter =
            Arc::new(Meter::new(config.bytes_max, store.zone_limits.clone(), Arc::clone(local.refusal())));
        cas.set_usage_sink(Arc::clone(&meter) as Arc<dyn UsageSink>);
        let is_copy = cas.backing().is_some();
        let age_min = if is_copy { store.keep / 4 } else { store.keep + store.keep / 4 };
        let floor = store.floor();
        Ok(Self {
            inner: Arc::new(EvictorInner {
                local: Arc::clone(local),
                root: store.root.clone(),
                config,
                age_min,
                age_min_pressing: age_min.min(floor + floor / 4),
                meter,
                queue: Mutex::new(Queue::default()),
                suspended: AtomicBool::new(false),
                stuck_days: Mutex::default(),
                _lock: lock,
            }),
        })
    }

    /// Publishes the usage of the store as it changes. A refusal applies to all processes that use the folder: pass
    /// it to them with [`Cas::set_refusal`]. The store that this evictor was opened with knows it already.
    pub fn room(&self) -> watch::Receiver<CasRoom> {
        self.inner.meter.room()
    }

    /// Returns a function that reads the exact usage of the store. It does not keep the evictor alive.
    pub fn usage(&self) -> impl Fn() -> CasRoom + Send + Sync + use<> {
        let meter = Arc::clone(&self.inner.meter);
        move || meter.now()
    }

    /// Publishes the zones whose new blobs are refused, like [`Evictor::room`]: pass them on with [`Cas::set_refused_zones`].
    pub fn refused_zones(&self) -> watch::Receiver<BTreeSet<Zone>> {
        self.inner.meter.zones().refused()
    }

    /// Returns a function that reads what each zone has. It does not keep the evictor alive.
    pub fn zones(&self) -> impl Fn() -> Vec<ZoneRoom> + Send + Sync + use<> {
        let meter = Arc::clone(&self.inner.meter);
        move || meter.zones().rooms()
    }

    /// Stops deleting files, or starts again: while it is unknown which blobs records name.
    pub fn suspend(&self, suspended: bool) {
        self.inner.suspended.store(suspended, Ordering::Release);
    }

    /// Measures the usage, then makes space whenever it is short, until `stop` resolves. Checks the free space of the
    /// file system after writes, also those that fail, and once a minute. Calls `passed` after each pass.
    pub async fn run(&self, stop: impl Future<Output = ()>, passed: impl Fn(Pass)) {
        tokio::pin!(stop);
        let mut logged = LoggedFailure::default();
        loop {
            let again = match self.pass().await {
                Ok(pass) => {
                    passed(pass);
                    pass.again.unwrap_or(CHECK_IDLE).min(CHECK_IDLE)
                }
                Err(error) => {
                    if logged.is_due(&error) {
                        tracing::error!(error = &error as &dyn std::error::Error, "eviction failed");
                    }
                    LINKED_AGAIN
                }
            };
            let ended = tokio::time::Instant::now();
            let check = async {
                self.inner.meter.checked().await;
                tokio::time::sleep_until(ended + CHECK_AGAIN).await;
            };
            tokio::select! {
                () = &mut stop => return,
                () = self.inner.meter.woken() => {}
                () = check => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// Makes space once, if it is short.
    pub async fn pass(&self) -> Result<Pass, CasError> {
        let evictor = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || evictor.pass());
        done.await.map_err(|_| CasError::Stopping)?
    }
}

/// Cause and time of the last failure that was logged.
#[derive(Debug, Default)]
struct LoggedFailure(Option<(String, Instant)>);

impl LoggedFailure {
    /// Whether to log a failure; if so, it becomes the last one.
    fn is_due(&mut self, error: &CasError) -> bool {
        // Without its path, which is another one in each pass.
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let is_due = self.0.as_ref().is_none_or(|(last, at)| *last != cause || at.elapsed() >= LOG_AGAIN);
        if is_due {
            self.0 = Some((cause, Instant::now()));
        }
        is_due
    }
}

impl EvictorInner {
    fn pass(&self) -> Result<Pass, CasError> {
        let mut queue = self.queue.lock();
        let mut pass = Pass::default();
        if queue.scanned.is_none() {
            self.scan(&mut queue);
        }
        if self.suspended.load(Ordering::Acquire) {
            pass.again = Some(SHORT_AGAIN);
        } else {
            let short = self.wanted()? > 0;
            self.shrink_zones(&mut queue, &mut pass, short)?;
            let wanted = self.wanted()?;
            self.make_room(&mut queue, &mut pass, wanted, self.age_min)?;
            let short = self.pressing()? > 0;
            self.press_zones(&mut queue, &mut pass, short)?;
            let pressing = self.pressing()?;
            self.make_room(&mut queue, &mut pass, pressing, self.age_min_pressing)?;
        }
        let short = self.free_short()? > 0;
        self.meter.set_short(short);
        if short {
            // Other processes may free space without a notification.
            pass.again_after(SHORT_AGAIN);
        }
        if pass.deleted > 0 {
            tracing::info!(deleted = pass.deleted, freed = pass.freed, "evicted from the store");
        }
        Ok(pass)
    }

    /// Deletes files older than `keep`, oldest first, until `wanted` bytes are freed.
    fn make_room(
        &self,
        queue: &mut Queue,
        pass: &mut Pass,
        mut wanted: u64,
        keep: Duration,
    ) -> Result<(), CasError> {
        while wanted > 0 {
            let now = SystemTime::now();
            let Some(oldest) = queue.candidates.front() else {
                match queue.scanned {
                    Some((at, took)) if at.elapsed() < took * SCAN_SHARE => {
                        pass.again_after((took * SCAN_SHARE).saturating_sub(at.elapsed()));
                        break;
                    }
                    _ => self.scan(queue),
                }
                // The scan result is exact; the space may even suffice.
                wanted = wanted.min(self.wanted()?);
                if queue.candidates.is_empty() {
                    break;
                }
                continue;
            };
            let life = keep.saturating_sub(now.duration_since(oldest.touched).unwrap_or_default());
            if !life.is_zero() {
                pass.again_after(life);
                break;
            }
            let Some(oldest) = queue.candidates.pop_front() else {
                impossible!("the oldest file disappeared from the queue");
                break;
            };
            let freed = self.evict(&oldest.entry, now - keep, pass)?;
            self.meter.freed(freed);
            wanted = wanted.saturating_sub(freed);
        }
        if wanted > 0 && pass.linked > 0 {
            pass.again_after(LINKED_AGAIN);
        }
        Ok(())
    }

    fn scan(&self, queue: &mut Queue) {
        let started = Instant::now();
        let (before, had) = (self.meter.written(), self.meter.zones().gained_by_all());
        let Scan { candidates, bytes } = scan(self.local.layout());
        let possessed = self.local.count_marks(SystemTime::now() - self.age_min);
        // Files written during the scan may be counted twice, until the next scan.
        self.meter.counted(bytes + (self.meter.written() - before));
        self.meter.zones().counted(&possessed, &had);
        queue.candidates = candidates;
        queue.scanned = Some((Instant::now(), started.elapsed()));
    }

    /// Number of bytes to free.
    fn wanted(&self) -> Result<u64, CasError> {
        Ok(self.meter.above_low_mark().max(self.free_short()?))
    }

    /// Number of bytes that must be freed before writes are refused.
    fn pressing(&self) -> Result<u64, CasError> {
        Ok(self.meter.pressing().max(self.free_short()?))
    }

    /// Number of free bytes that the file system lacks.
    fn free_short(&self) -> Result<u64, CasError> {
        let root = &self.root;
        let stat = nix::sys::statvfs::statvfs(root)
            .map_err(|error| CasError::disk("checking the free space of", root, error.into()))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        Ok(self.config.free_bytes_min.saturating_sub(free))
    }

    /// Deletes a file that no caller relied on since `cutoff`. Returns the bytes of disk that this freed.
    fn evict(&self, entry: &Entry, cutoff: SystemTime, pass: &mut Pass) -> Result<u64, CasError> {
        let path = self.local.path(entry);
        let trashed = self.local.layout().trash_path(entry);
        let failed = |source| CasError::disk("evicting", &path, source);
        let Some(meta) = present(fs::symlink_metadata(&path)).map_err(failed)? else { return Ok(0) };
        match verdict(&meta, cutoff) {
            Verdict::Old => {}
            Verdict::Young => return Ok(0),
            Verdict::Linked => {
                pass.linked += 1;
                return Ok(0);
            }
        }
        if present(fs::rename(&path, &trashed)).map_err(failed)?.is_none() {
            return Ok(0);
        }
        // A touch before the rename is visible now; a later caller takes the file out of the trash.
        let Some(meta) = present(fs::symlink_metadata(&trashed)).map_err(failed)? else { return Ok(0) };
        if verdict(&meta, cutoff) != Verdict::Old {
            put_back(&trashed, &path);
            pass.put_back += 1;
            return Ok(0);
        }
        if present(fs::remove_file(&trashed)).map_err(failed)?.is_none() {
            return Ok(0);
        }
        self.local.forget(&entry.digest);
        if entry.kind == Kind::Blob {
            for zone in self.local.unmark(&entry.digest, cutoff) {
                self.zone_lost(&zone, &entry.digest);
            }
        }
        pass.deleted += 1;
        pass.freed += meta.blocks() * 512;
        Ok(meta.blocks() * 512)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Old,
    Young,
    Linked,
}

fn verdict(meta: &Metadata, cutoff: SystemTime) -> Verdict {
    if meta.modified().is_ok_and(|touched| touched > cutoff) {
        Verdict::Young
    } else if meta.nlink() > 1 {
        Verdict::Linked
    } else {
        Verdict::Old
    }
}

fn present<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod zone_tests;
