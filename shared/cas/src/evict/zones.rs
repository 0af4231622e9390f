//! Keeps each zone within its limit: it loses what it did not rely on for the longest time, and a blob that no other zone has is
//! deleted with its mark.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant, SystemTime},
};

use model::{BlobDigest, Zone, ZoneUse};

use super::{
    EvictorInner, Pass, Queue, SCAN_SHARE, present,
    zone_meter::HIGH,
    zone_queue::{ZoneQueue, oldest_marks},
};
use crate::{CasError, layout::Entry, local::TakenMark};

/// Percentage of its limit down to which a zone loses blobs.
const LOW: u64 = 80;
/// The percentages for blobs that it relied on within `keep`, though not within `keep_min`.
const HIGH_PRESSING: u64 = 97;
const LOW_PRESSING: u64 = 95;

impl EvictorInner {
    /// Takes from zones near their limits what they did not rely on for `age_min`. If the store is `short` of space, zones
    /// that use most of their limit give way before the others.
    pub(super) fn shrink_zones(
        &self,
        queue: &mut Queue,
        pass: &mut Pass,
        short: bool,
    ) -> Result<(), CasError> {
        let high = if short { LOW } else { HIGH };
        for (zone, excess) in self.meter.zones().above(high, LOW) {
            self.shrink(&zone, (queue, pass), excess, self.age_min)?;
        }
        Ok(())
    }

    /// The same when a zone is about to be refused, or the store: also what it did not rely on for a shorter time.
    pub(super) fn press_zones(
        &self,
        queue: &mut Queue,
        pass: &mut Pass,
        short: bool,
    ) -> Result<(), CasError> {
        let (high, low) = if short { (LOW, LOW) } else { (HIGH_PRESSING, LOW_PRESSING) };
        for (zone, excess) in self.meter.zones().above(high, low) {
            self.shrink(&zone, (queue, pass), excess, self.age_min_pressing)?;
        }
        Ok(())
    }

    /// Takes blobs away from a zone, those first that it did not rely on for the longest time, until it lost `excess`.
    fn shrink(
        &self,
        zone: &Zone,
        (queue, pass): (&mut Queue, &mut Pass),
        mut excess: ZoneUse,
        age_min: Duration,
    ) -> Result<(), CasError> {
        let queue = queue.zones.entry(zone.clone()).or_default();
        while excess != ZoneUse::NOTHING {
            let Some(oldest) = queue.marks.front().copied() else {
                if let Some((at, took)) = queue.scanned
                    && at.elapsed() < took * SCAN_SHARE
                {
                    pass.again_after((took * SCAN_SHARE).saturating_sub(at.elapsed()));
                    break;
                }
                *queue = self.scan_zone(zone);
                if queue.marks.is_empty() {
                    break;
                }
                continue;
            };
            let now = SystemTime::now();
            let life = age_min.saturating_sub(now.duration_since(oldest.touched).unwrap_or_default());
            if !life.is_zero() {
                pass.again_after(life);
                break;
            }
            queue.marks.pop_front();
            if self.take_away(zone, &oldest.blob, now - age_min, pass)? {
                excess = excess.minus(ZoneUse::of_blob(oldest.blob.size));
            }
        }
        Ok(())
    }

    fn scan_zone(&self, zone: &Zone) -> ZoneQueue {
        let started = Instant::now();
        let before = self.meter.zones().gained_by_all();
        let (marks, used) = oldest_marks(&self.local, zone);
        self.meter.zones().counted(&BTreeMap::from([(zone.clone(), used)]), &before);
        ZoneQueue { marks, scanned: Some((Instant::now(), started.elapsed())) }
    }

    /// Takes a blob away from a zone that did not rely on it since `cutoff`, and deletes it if no other zone has it. Blobs that
    /// records name or actions use stay. Returns whether the zone lost it.
    pub(super) fn take_away(
        &self,
        zone: &Zone,
        blob: &BlobDigest,
        cutoff: SystemTime,
        pass: &mut Pass,
    ) -> Result<bool, CasError> {
        let mark = self.local.layout().mark_path(zone, blob);
        let failed = |source| CasError::disk("taking away", &mark, source);
        let file = present(fs::symlink_metadata(self.local.path(&Entry::blob(*blob)))).map_err(failed)?;
        if file.is_some_and(|meta| meta.nlink() > 1) {
            pass.linked += 1;
            return Ok(false);
        }
        match self.local.take_mark(zone, blob, cutoff).map_err(failed)? {
            TakenMark::Removed => self.zone_lost(zone, blob),
            TakenMark::Absent => return Ok(false),
            TakenMark::Young => {
                pass.put_back += 1;
                return Ok(false);
            }
        }
        if !self.local.has_marks(blob) {
            for entry in [Entry::twin(*blob), Entry::blob(*blob)] {
                let freed = self.evict(&entry, cutoff, pass)?;
                self.meter.freed(freed);
            }
        }
        Ok(true)
    }

    pub(super) fn zone_lost(&self, zone: &Zone, blob: &BlobDigest) {
        self.meter.zones().lost(zone, ZoneUse::of_blob(blob.size));
    }
}
