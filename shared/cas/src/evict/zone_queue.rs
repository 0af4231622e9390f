//! The marks of a zone, oldest first.

use std::{
    collections::{BinaryHeap, VecDeque},
    time::{Duration, Instant},
};

use model::{Zone, ZoneUse};

use crate::local::{Local, Mark};

/// Maximum number of marks of a zone remembered from one scan, the oldest ones.
const CANDIDATES: usize = 100_000;

/// The oldest marks of the last scan of a zone, oldest first.
#[derive(Default)]
pub(super) struct ZoneQueue {
    pub(super) marks: VecDeque<Mark>,
    pub(super) scanned: Option<(Instant, Duration)>,
}

/// The oldest marks of a zone, oldest first, and what it has in all.
pub(super) fn oldest_marks(local: &Local, zone: &Zone) -> (VecDeque<Mark>, ZoneUse) {
    let mut oldest = BinaryHeap::new();
    let mut used = ZoneUse::NOTHING;
    for (blob, file) in local.marks_of(zone) {
        used = used.plus(ZoneUse::of_blob(blob.size));
        let Ok(touched) = file.metadata().and_then(|meta| meta.modified()) else { continue };
        oldest.push(Mark { touched, blob });
        if oldest.len() > CANDIDATES {
            oldest.pop();
        }
    }
    (oldest.into_sorted_vec().into(), used)
}
