//! Counts the bytes of disk that a store uses.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use model::{Zone, ZoneLimits, ZoneUse};
use tokio::sync::{Notify, watch};

use super::zone_meter::ZoneMeter;
use crate::{
    UsageSink,
    refusal::{Refusal, Refusing},
};

/// Number of written bytes after which the free space of the file system is checked at once.
const CHECK_AFTER: u64 = 64 << 20;

/// Usage of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CasRoom {
    /// Bytes of disk used.
    pub used: u64,
    /// Maximum bytes of disk that the store may use.
    pub max: u64,
    pub refusal: Refusal,
}

pub(super) struct Meter {
    max: u64,
    used: AtomicU64,
    written: AtomicU64,
    checked_at: AtomicU64,
    /// The file system has too little free space, although everything that may be deleted is deleted.
    short: AtomicBool,
    refusal: Arc<Refusing>,
    wake: Notify,
    /// Something was written or could not be written.
    check: Notify,
    room: watch::Sender<CasRoom>,
    zones: ZoneMeter,
}

impl UsageSink for Meter {
    fn used(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let written = self.written.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let due = written.saturating_sub(self.checked_at.load(Ordering::Acquire)) >= CHECK_AFTER;
        if used > self.high() || due {
            self.checked_at.store(written, Ordering::Release);
            self.wake.notify_one();
        }
        self.check.notify_one();
        self.update_refusal();
    }

    fn possessed(&self, zone: &Zone, more: ZoneUse) {
        if self.zones.gained(zone, more) {
            self.wake.notify_one();
        }
    }

    fn lacks_space(&self) {
        self.check.notify_one();
    }
}

impl Meter {
    pub(super) fn new(max: u64, limits: ZoneLimits, refusal: Arc<Refusing>) -> Self {
        let zones = ZoneMeter::new(limits, Arc::clone(&refusal));
        let (room, _) = watch::channel(CasRoom { used: 0, max, refusal: Refusal::Nothing });
        Self {
            max,
            used: AtomicU64::new(0),
            written: AtomicU64::new(0),
            checked_at: AtomicU64::new(0),
            short: AtomicBool::new(false),
            refusal,
            wake: Notify::new(),
            check: Notify::new(),
            room,
            zones,
        }
    }

    pub(super) fn zones(&self) -> &ZoneMeter {
        &self.zones
    }

    pub(super) fn room(&self) -> watch::Receiver<CasRoom> {
        self.room.subscribe()
    }

    /// The usage at this moment; `room` announces larger changes only.
    pub(super) fn now(&self) -> CasRoom {
        CasRoom { used: self.used.load(Ordering::Acquire), ..*self.room.borrow() }
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Waits for a write, whether or not it succeeded: the free space of the file system may be short.
    pub(super) async fn checked(&self) {
        self.check.notified().await;
    }

    /// Bytes written since the start.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Sets the exact number of bytes used.
    pub(super) fn counted(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Release);
        self.update_refusal();
    }

    pub(super) fn freed(&self, bytes: u64) {
        // Never fails: the closure always returns a value.
        let _ = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| Some(used.saturating_sub(bytes)));
        self.update_refusal();
    }

    pub(super) fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::Release);
        self.update_refusal();
    }

    /// Returns how far the usage is above the low mark, if it is above the high mark.
    pub(super) fn above_low_mark(&self) -> u64 {
        let used = self.used.load(Ordering::Acquire);
        if used > self.high() { used.saturating_sub(self.max / 10 * 8) } else { 0 }
    }

    /// Returns how many bytes must be freed, if the store is about to be full.
    pub(super) fn pressing(&self) -> u64 {
        let used = self.used.load(Ordering::Acquire);
        if used > self.max / 100 * 97 { used.saturating_sub(self.max / 20 * 19) } else { 0 }
    }

    fn high(&self) -> u64 {
        self.max / 10 * 9
    }

    /// The store becomes full at the limit, and for small blobs a twentieth above it. It stops being full only well
    /// below the limit, so that the state does not flap.
    fn update_refusal(&self) {
        let used = self.used.load(Ordering::Acquire);
        let (max, short) = (self.max, self.short.load(Ordering::Acquire));
        self.room.send_if_modified(|room| {
            let all = short || used >= max / 20 * 21 || (room.refusal == Refusal::All && used > max);
            let large = used >= max || (room.refusal != Refusal::Nothing && used > max / 20 * 19);
            let refusal = match (all, large) {
                (true, _) => Refusal::All,
                (false, true) => Refusal::Large,
                (false, false) => Refusal::Nothing,
            };
            self.refusal.set(refusal);
            let changed = room.refusal != refusal || room.used.abs_diff(used) >= max / 100;
            *room = CasRoom { used: if changed { used } else { room.used }, max, refusal };
            changed
        });
    }
}
