//! The writes that a store refuses when space is short.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU8, Ordering},
};

use model::Zone;
use parking_lot::RwLock;

/// Maximum size in bytes of a blob that a full store still accepts, as long as its last twentieth has space: without
/// small messages no new work can run.
const SMALL: u64 = 16 << 10;

/// Which writes of new blobs are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Refusal {
    #[default]
    Nothing,
    /// Blobs larger than 16 KiB are refused.
    Large,
    All,
}

impl Refusal {
    /// Whether a blob of `size` bytes is refused.
    pub fn refuses(self, size: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::Large => size > SMALL,
            Self::All => true,
        }
    }
}

/// The refusal that all handles of a store share.
#[derive(Debug, Default)]
pub(crate) struct Refusing {
    of_all: AtomicU8,
    /// The zones whose new blobs are refused.
    zones: RwLock<BTreeSet<Zone>>,
}

impl Refusing {
    pub(crate) fn set(&self, refusal: Refusal) {
        self.of_all.store(refusal as u8, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Refusal {
        match self.of_all.load(Ordering::Relaxed) {
            0 => Refusal::Nothing,
            1 => Refusal::Large,
            _ => Refusal::All,
        }
    }

    pub(crate) fn set_zones(&self, zones: BTreeSet<Zone>) {
        *self.zones.write() = zones;
    }

    pub(crate) fn refuses_zone(&self, zone: &Zone) -> bool {
        self.zones.read().contains(zone)
    }
}
