//! Which writes a store refuses when room is short.

use std::sync::atomic::{AtomicU8, Ordering};

/// Up to this size a blob is taken by a store that is full, as far as its last twentieth goes: without small messages nothing
/// new runs.
const SMALL: u64 = 16 << 10;

/// Which writes are refused of what is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Refusal {
    /// None.
    #[default]
    Nothing,
    /// Of more than 16 KiB.
    Large,
    /// All.
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

/// The state of all handles of a store.
#[derive(Debug, Default)]
pub(crate) struct Refusing(AtomicU8);

impl Refusing {
    pub(crate) fn set(&self, refusal: Refusal) {
        self.0.store(refusal as u8, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Refusal {
        match self.0.load(Ordering::Relaxed) {
            0 => Refusal::Nothing,
            1 => Refusal::Large,
            _ => Refusal::All,
        }
    }
}
