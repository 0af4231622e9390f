//! Counts the bytes of disk that a store takes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::sync::{Notify, watch};

use crate::{
    UsageSink,
    refusal::{Refusal, Refusing},
};

/// After so many bytes the file system's free space is looked at.
const LOOK_AFTER: u64 = 64 << 20;

/// How much room a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CasRoom {
    /// Bytes of disk taken.
    pub used: u64,
    /// Bytes of disk it may take.
    pub max: u64,
    /// Which writes are refused.
    pub refusal: Refusal,
}

pub(super) struct Meter {
    max: u64,
    used: AtomicU64,
    written: AtomicU64,
    looked_at: AtomicU64,
    /// The file system has too little free space left, after all that could be deleted.
    short: AtomicBool,
    refusal: Arc<Refusing>,
    wake: Notify,
    room: watch::Sender<CasRoom>,
}

impl UsageSink for Meter {
    fn used(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let written = self.written.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let due = written.saturating_sub(self.looked_at.load(Ordering::Acquire)) >= LOOK_AFTER;
        if used > self.high() || due {
            self.looked_at.store(written, Ordering::Release);
            self.wake.notify_one();
        }
        self.judge();
    }
}

impl Meter {
    pub(super) fn new(max: u64, refusal: Arc<Refusing>) -> Self {
        let (room, _) = watch::channel(CasRoom { used: 0, max, refusal: Refusal::Nothing });
        Self {
            max,
            used: AtomicU64::new(0),
            written: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            short: AtomicBool::new(false),
            refusal,
            wake: Notify::new(),
            room,
        }
    }

    pub(super) fn room(&self) -> watch::Receiver<CasRoom> {
        self.room.subscribe()
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Bytes written since the start.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// So many bytes are taken in truth.
    pub(super) fn counted(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Release);
        self.judge();
    }

    pub(super) fn freed(&self, bytes: u64) {
        // Never refused: the closure always has an answer.
        let _ = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| Some(used.saturating_sub(bytes)));
        self.judge();
    }

    pub(super) fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::Release);
        self.judge();
    }

    /// Once above the high mark: how far above the low mark.
    pub(super) fn above_low_mark(&self) -> u64 {
        let used = self.used.load(Ordering::Acquire);
        if used > self.high() { used.saturating_sub(self.max / 10 * 8) } else { 0 }
    }

    /// Once it is about to be full: how far above the mark at which it is not.
    pub(super) fn pressing(&self) -> u64 {
        let used = self.used.load(Ordering::Acquire);
        if used > self.max / 100 * 97 { used.saturating_sub(self.max / 20 * 19) } else { 0 }
    }

    fn high(&self) -> u64 {
        self.max / 10 * 9
    }

    /// Full at the limit, and for small blobs a twentieth above it; not full again a good way below, so that it does not
    /// flicker.
    fn judge(&self) {
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
