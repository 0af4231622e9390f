//! Tasks as numbers in bitmaps.

use invariant::Present as _;
use model::TaskIndex;

/// A task's index as the bitmaps store it: the number of tasks fits into 32 bits.
pub(crate) fn number(index: TaskIndex) -> u32 {
    u32::try_from(index.get()).present_or(u32::MAX, "the index of a task in 32 bits")
}
