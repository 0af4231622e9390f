//! The slots of weights: first the fixed slots below, then one for each word of the vocabulary, then the buckets that
//! the crosses' values are hashed into. The numbers are part of the model's format.

use crate::facts::Kind;

pub(crate) const BIAS: u32 = 0;
pub(crate) const LOG_TARGETS: u32 = 1;
pub(crate) const TARGETS: u32 = 2;
pub(crate) const LOG_PACKAGES: u32 = 3;
pub(crate) const PACKAGES: u32 = 4;
/// In a cross, a flag that the build does not have. It has no weight.
pub(crate) const ABSENT: u32 = 5;
/// The first slot of the vocabulary's words.
pub(crate) const FIRST_WORD: u32 = 16;

impl Kind {
    /// The slot that all values of this kind outside the vocabulary share.
    pub(crate) const fn unknown(self) -> u32 {
        match self {
            Self::Command => 8,
            Self::Flag => 9,
            Self::FlagName => 10,
            Self::Target => 11,
            Self::Package => 12,
            Self::Group => 13,
            Self::Priority => 14,
        }
    }
}
