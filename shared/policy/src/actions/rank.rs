//! The order of a group's executions, encoded as the number that the index sorts them by.

use model::{Priority, Urgency};

/// Half of the priorities that are ordered inside a band; those beyond count as the nearest.
const PRIORITIES: i32 = 1 << 12;

/// Bits of a rank below the band.
const PRIORITY_BITS: u32 = 13;
/// Bits of a score of the index below the rank: those of a start tag.
const TAG_BITS: u32 = 38;

/// The rank of an execution inside its group: the lowest starts first. Below 2^15: two bits of band above thirteen of
/// priority, so that a sorted set's double has 38 bits left for start tags.
pub fn rank(urgency: Urgency) -> u32 {
    let priority = urgency.priority.clamp(-PRIORITIES, PRIORITIES - 1) + PRIORITIES;
    (u32::from(urgency.band.rank()) << PRIORITY_BITS) | priority.unsigned_abs()
}

/// The band of an execution with this score of the index.
pub fn band_of(score: u64) -> Priority {
    let band = usize::try_from(score >> (TAG_BITS + PRIORITY_BITS)).unwrap_or(usize::MAX);
    Priority::ALL.get(band).copied().unwrap_or(Priority::Batch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn urgencies() -> impl Strategy<Value = Urgency> {
        let bands = prop::sample::select(Priority::ALL.to_vec());
        (bands, prop_oneof![-5000..5000_i32, any::<i32>()])
            .prop_map(|(band, priority)| Urgency { band, priority })
    }

    #[test]
    fn ranks_fill_fifteen_bits() {
        assert_eq!(rank(Urgency { band: Priority::Emergency, priority: i32::MIN }), 0);
        assert_eq!(rank(Urgency { band: Priority::Batch, priority: i32::MAX }), (1 << 15) - 1);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_urgencies(one in urgencies(), other in urgencies()) {
            let limited = |it: Urgency| Urgency { priority: it.priority.clamp(-4096, 4095), ..it };
            prop_assert_eq!(rank(one).cmp(&rank(other)), limited(one).cmp(&limited(other)));
        }

        #[test]
        fn a_score_contains_its_band(urgency in urgencies(), tag in 0..1_u64 << 38) {
            prop_assert_eq!(band_of((u64::from(rank(urgency)) << 38) + tag), urgency.band);
        }

        #[test]
        fn g5_a_more_urgent_band_passes_every_priority(low: i32, high: i32) {
            for bands in Priority::ALL.windows(2) {
                let of = |band, priority| rank(Urgency { band, priority });
                prop_assert!(of(bands[0], low) < of(bands[1], high));
            }
        }
    }
}
