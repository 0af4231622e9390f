//! Counts what each zone has, and decides which zones lose blobs or are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{Zone, ZoneLimit, ZoneLimits, ZoneUse};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::refusal::Refusing;

/// Percentage of its limit above which a zone loses blobs.
pub(super) const HIGH: u64 = 90;
/// Percentage below which the blobs of a zone that was refused are accepted again.
const ACCEPTED_AGAIN: u64 = 95;

/// What a zone has, and what it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneRoom {
    pub zone: Zone,
    pub used: ZoneUse,
    pub limit: ZoneLimit,
    /// Whether its new blobs are refused.
    pub is_refused: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    used: ZoneUse,
    /// What it got since the start.
    gained: ZoneUse,
    is_refused: bool,
}

/// Counts what each zone has.
#[derive(Debug)]
pub(super) struct ZoneMeter {
    limits: ZoneLimits,
    zones: Mutex<BTreeMap<Zone, Counted>>,
    refused: watch::Sender<BTreeSet<Zone>>,
    refusing: Arc<Refusing>,
}

impl ZoneMeter {
    pub(super) fn new(limits: ZoneLimits, refusing: Arc<Refusing>) -> Self {
        Self { limits, zones: Mutex::default(), refused: watch::Sender::default(), refusing }
    }

    pub(super) fn refused(&self) -> watch::Receiver<BTreeSet<Zone>> {
        self.refused.subscribe()
    }

    pub(super) fn rooms(&self) -> Vec<ZoneRoom> {
        let room = |(zone, counted): (&Zone, &Counted)| ZoneRoom {
            zone: zone.clone(),
            used: counted.used,
            limit: self.limits.of(zone).unwrap_or_default(),
            is_refused: counted.is_refused,
        };
        self.zones.lock().iter().map(room).collect()
    }

    /// Returns whether the zone must lose blobs.
    pub(super) fn gained(&self, zone: &Zone, more: ZoneUse) -> bool {
        let used = self.change(zone, |counted| {
            counted.used = counted.used.plus(more);
            counted.gained = counted.gained.plus(more);
        });
        self.limits.of(zone).is_some_and(|limit| limit.excess(used, HIGH) != ZoneUse::NOTHING)
    }

    pub(super) fn lost(&self, zone: &Zone, less: ZoneUse) {
        self.change(zone, |counted| counted.used = counted.used.minus(less));
    }

    pub(super) fn gained_by_all(&self) -> BTreeMap<Zone, ZoneUse> {
        self.zones.lock().iter().map(|(zone, counted)| (zone.clone(), counted.gained)).collect()
    }

    /// Sets what zones have by a count of their marks, which began when they had got `before`: what they got since
    /// may be counted twice, until the next count.
    pub(super) fn counted(&self, found: &BTreeMap<Zone, ZoneUse>, before: &BTreeMap<Zone, ZoneUse>) {
        for (zone, found) in found {
            let before = before.get(zone).copied().unwrap_or_default();
            self.change(zone, |counted| counted.used = found.plus(counted.gained.minus(before)));
        }
    }

    fn change(&self, zone: &Zone, change: impl FnOnce(&mut Counted)) -> ZoneUse {
        let mut zones = self.zones.lock();
        let counted = match zones.get_mut(zone) {
            Some(counted) => counted,
            None => zones.entry(zone.clone()).or_default(),
        };
        change(counted);
        let used = counted.used;
        let is_refused = is_refused(self.limits.of(zone), used, counted.is_refused);
        if is_refused != counted.is_refused {
            counted.is_refused = is_refused;
            self.refused.send_modify(|refused| {
                if is_refused {
                    refused.insert(zone.clone());
                } else {
                    refused.remove(zone);
                }
                self.refusing.set_zones(refused.clone());
            });
        }
        used
    }

    /// What each zone above `high` percent of its limit has above `low` percent.
    pub(super) fn above(&self, high: u64, low: u64) -> Vec<(Zone, ZoneUse)> {
        let zones = self.zones.lock();
        let above = zones.iter().filter_map(|(zone, counted)| {
            let limit = self.limits.of(zone)?;
            let is_above = limit.excess(counted.used, high) != ZoneUse::NOTHING;
            is_above.then(|| (zone.clone(), limit.excess(counted.used, low)))
        });
        above.collect()
    }
}

/// Whether new blobs of a zone are refused. Not until it is well below its limit, so that this does not flap.
fn is_refused(limit: Option<ZoneLimit>, used: ZoneUse, is_refused: bool) -> bool {
    limit.is_some_and(|limit| {
        limit.is_reached(used) || is_refused && limit.excess(used, ACCEPTED_AGAIN) != ZoneUse::NOTHING
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_refused_zone_is_accepted_again_well_below_its_limit() {
        let limit = Some(ZoneLimit { bytes_max: 0, blobs_max: 100 });
        let of = |blobs| ZoneUse { blobs, bytes: blobs * 4096 };
        assert!(!is_refused(limit, of(99), false) && is_refused(limit, of(100), false));
        assert!(is_refused(limit, of(96), true) && !is_refused(limit, of(95), true));
        assert!(!is_refused(None, of(u64::from(u32::MAX)), true));
    }

    proptest! {
        #[test]
        fn the_sum_of_what_zones_got_and_lost_is_what_they_have(
            steps in proptest::collection::vec((0_usize..3, 0_u64..100_000, any::<bool>()), 0..60),
        ) {
            let zones: Vec<Zone> = ["a", "b", "c"].iter().map(|name| name.parse().unwrap()).collect();
            let limit = ZoneLimit { bytes_max: 0, blobs_max: 5 };
            let limits = ZoneLimits::try_from(BTreeMap::from([("*".to_owned(), limit)])).unwrap();
            let meter = ZoneMeter::new(limits, Arc::default());
            let mut had: BTreeMap<Zone, Vec<u64>> = BTreeMap::new();
            for (at, size, gains) in steps {
                let zone = &zones[at];
                let sizes = had.entry(zone.clone()).or_default();
                if gains {
                    let is_above = meter.gained(zone, ZoneUse::of_blob(size));
                    sizes.push(size);
                    prop_assert_eq!(is_above, sizes.len() >= 5);
                } else if let Some(size) = sizes.pop() {
                    meter.lost(zone, ZoneUse::of_blob(size));
                }
                for room in meter.rooms() {
                    let sizes = had.get(&room.zone).cloned().unwrap_or_default();
                    let sum = sizes.iter().map(|size| ZoneUse::of_blob(*size)).fold(ZoneUse::NOTHING, ZoneUse::plus);
                    prop_assert_eq!(room.used, sum);
                    prop_assert_eq!(room.is_refused, meter.refused().borrow().contains(&room.zone));
                    prop_assert!(room.is_refused || sizes.len() < 5);
                }
            }
        }
    }
}
