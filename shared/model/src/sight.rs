//! What a call sees of the store of blobs.

use crate::Zone;

/// The zones whose results and blobs a call sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The zone whose results it reads and writes.
    pub zone: Zone,
    /// A zone whose results and blobs it reads too.
    pub parent: Option<Zone>,
    /// Whether it sees only blobs that these zones have proved to have.
    pub is_bounded: bool,
}
