//! What a handle sees of the store: the blobs and results of a zone, and of the zone that it reads from.
//!
//! Storage is shared by all zones. A zone sees a blob if it has proved to have it: it uploaded all of it, or its executors or
//! workers stored it for the zone. A mark records the proof: an empty file beside the blobs, and an object where
//! these are in an object store. The mark goes with the blob. One that outlives it does no harm, because
//! the zone had the content.
//!
//! A zone with a limit touches its marks when it relies on blobs: the evictor takes those away that it did not rely on for the
//! longest time. Whether other zones have or use a blob changes nothing for it, so that it cannot learn that.

mod admission;
mod marks;

use std::{collections::HashMap, sync::Arc};

use model::{BlobDigest, Sight, Zone, ZoneLimit};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::{
    CasConfig,
    backing::Backing,
    known::Moment,
    local::{Local, LookUp},
    trees::Trees,
};

/// How long a mark that was seen need not be looked up again: an object store may delete old ones.
const SEEN_MS: Moment = 3600 * 1000;

/// What a handle sees.
#[derive(Debug)]
pub(crate) struct View {
    sight: Sight,
    /// Present if the zone sees only the blobs that it has.
    bounds: Option<Bounds>,
}

#[derive(Debug)]
struct Bounds {
    /// How much the zone may have; none also if a farm behind the store decides.
    limit: Option<ZoneLimit>,
    marks: SeenMarks,
    trees: Trees,
    /// The farm behind the store, asked on behalf of the zone: it has the marks.
    backing: Option<Backing>,
}

/// The views of a store, each made once. Their number is bounded by the setting that names the zones.
#[derive(Debug, Default)]
pub(crate) struct Views(Mutex<HashMap<Sight, Arc<View>>>);

impl Views {
    pub(crate) fn get(&self, sight: &Sight, make: impl FnOnce() -> View) -> Arc<View> {
        let mut views = self.0.lock();
        if let Some(view) = views.get(sight) {
            return Arc::clone(view);
        }
        let view = Arc::new(make());
        views.insert(sight.clone(), Arc::clone(&view));
        view
    }
}

impl View {
    pub(crate) fn new(sight: &Sight, config: &CasConfig, backing: Option<&Backing>) -> Self {
        let limit = |zone| config.zone_limits.of(zone).filter(|_| backing.is_none());
        let bounds = sight.is_bounded.then(|| Bounds {
            limit: limit(&sight.zone),
            marks: SeenMarks {
                seen: Cache::new(config.known_max.max(64)),
                may_go: std::iter::once(&sight.zone).chain(&sight.parent).any(|zone| limit(zone).is_some()),
            },
            trees: Trees::new(config.memo_bytes),
            backing: match backing {
                Some(Backing::Remote(farm)) => {
                    Some(Backing::Remote(Box::new(farm.in_zone(&sight.zone, config))))
                }
                Some(Backing::Objects(_)) | None => None,
            },
        });
        Self { sight: sight.clone(), bounds }
    }

    pub(crate) fn trees(&self) -> Option<&Trees> {
        self.bounds.as_ref().map(|bounds| &bounds.trees)
    }

    pub(crate) fn backing(&self) -> Option<&Backing> {
        self.bounds.as_ref()?.backing.as_ref()
    }

    /// The zone of the handle.
    pub(crate) fn zone(&self) -> &Zone {
        &self.sight.zone
    }

    /// The zone whose results it reads too.
    pub(crate) fn parent(&self) -> Option<&Zone> {
        self.sight.parent.as_ref()
    }

    /// Whether it sees only the blobs that its zones have.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounds.is_some()
    }

    /// How much the zone may have, if that is limited.
    pub(crate) fn limit(&self) -> Option<ZoneLimit> {
        self.bounds.as_ref()?.limit
    }

    /// How the marks of one of its zones are looked up. What it reads from its parent the parent does not rely on: otherwise
    /// the zone could keep the parent from ever losing it.
    fn look_up(&self, zone: &Zone) -> LookUp {
        if self.limit().is_some() && *zone == self.sight.zone { LookUp::Relying } else { LookUp::Passive }
    }

    /// The zones whose blobs it sees, its own first, and the marks that were seen.
    fn marks(&self) -> Option<(Vec<&Zone>, &SeenMarks)> {
        let bounds = self.bounds.as_ref()?;
        let zones = std::iter::once(&self.sight.zone).chain(&self.sight.parent).collect();
        Some((zones, &bounds.marks))
    }
}

/// A mark that was seen.
#[derive(Debug, Clone, Copy)]
struct SeenMark {
    at: Moment,
    /// Whether it is of the own zone, and not of the one that it reads from.
    is_own: bool,
}

/// The marks that this process has seen of a zone.
#[derive(Debug)]
struct SeenMarks {
    seen: Cache<BlobDigest, SeenMark>,
    /// Whether the evictor takes marks away because of a limit.
    may_go: bool,
}

impl SeenMarks {
    fn fresh(&self, blob: &BlobDigest, local: &Local, now: Moment) -> Option<SeenMark> {
        let is_fresh = |at| {
            if self.may_go { local.is_fresh(at, now) } else { now.saturating_sub(at) < SEEN_MS }
        };
        self.seen.get(blob).filter(|seen| is_fresh(seen.at))
    }

    fn note(&self, blobs: &[BlobDigest], at: Moment, is_own: bool) {
        for blob in blobs {
            self.seen.insert(*blob, SeenMark { at, is_own });
        }
    }
}
