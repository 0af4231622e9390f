//! The order of a group's builds of the same priority.

use model::{BandOrder, Sequence};

/// Where a build stands among those of its group and priority: the lowest starts first. At most 2^48.
///
/// `queued_at` is the position of its first BUILD_ENQUEUED, which a build keeps when it is queued again.
pub fn band_rank(order: BandOrder, queued_at: Sequence) -> u64 {
    match order {
        BandOrder::RequestTime => queued_at.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_the_first_asked_for_is_the_first_started() {
        let rank = |position| band_rank(BandOrder::default(), Sequence(position));
        assert!(rank(1) < rank(2));
    }
}
