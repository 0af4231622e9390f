//! Decides whose turn it is among the groups of a pool.
//!
//! Fairness is measured in ESU-seconds: past use counts less the longer ago it was, and resources held now count as if
//! they were held for a while longer. Groups that always want more thus hold equal amounts, by weight, at any time,
//! however long their actions are; a group that returns after a pause is briefly served first.

use std::time::Duration;

use model::{Esu, Resources};

/// Time after which past use counts half.
pub const HALF_LIFE: Duration = Duration::from_secs(60);
/// Seconds for which resources held now are assumed to remain held.
const HORIZON: f64 = 10.0;

/// What a group has used of a pool, and holds now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Past use in ESU-seconds, discounted by age. See [`accrue`].
    pub used: f64,
    /// ESU that the group holds now.
    pub held: f64,
    /// Weight of the group in the fair order.
    pub weight: u64,
}

impl Standing {
    /// Use relative to the group's weight: the group with the lowest value is next.
    pub fn debt(&self) -> f64 {
        (self.used + HORIZON * self.held) / self.weight.max(1) as f64
    }

    /// Adds `esu` to the resources that the group holds.
    pub fn hold(&mut self, esu: f64) {
        self.held += esu;
    }
}

/// ESU that holding `size` counts as.
pub fn occupancy(size: &Resources) -> Esu {
    Esu::of_use(size.cpu_millis as f64 / 1000.0, size.memory_bytes as f64)
}

/// Past use after `elapsed`, if it was `used` before and the group held `held` ESU during that time.
pub fn accrue(used: f64, held: f64, elapsed: Duration) -> f64 {
    let life = HALF_LIFE.as_secs_f64() / std::f64::consts::LN_2;
    let left = (-elapsed.as_secs_f64() / life).exp();
    used * left + held * life * (1.0 - left)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_of_what_was_used_counts_after_the_half_life() {
        assert!((accrue(8.0, 0.0, HALF_LIFE) - 4.0).abs() < 1e-9);
        // In the beginning, each second of holding counts almost fully.
        assert!((accrue(0.0, 3.0, Duration::from_secs(1)) - 3.0).abs() < 0.02);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_often_it_is_counted(
            used in 0.0..1e6_f64, held in 0.0..1e4_f64, one in 0_u64..600_000, two in 0_u64..600_000,
        ) {
            let at = Duration::from_millis;
            let twice = accrue(accrue(used, held, at(one)), held, at(two));
            let once = accrue(used, held, at(one + two));
            prop_assert!((twice - once).abs() <= 1e-6 * once.max(1.0));
        }

        #[test]
        fn who_has_more_or_weighs_less_comes_later(
            used in 0.0..1e6_f64, held in 0.0..1e4_f64, more in 0.1..1e3_f64, weight in 1_u64..1_000_000,
        ) {
            let debt = |used, held, weight| Standing { used, held, weight }.debt();
            let now = debt(used, held, weight);
            prop_assert!(debt(used + more, held, weight) > now);
            prop_assert!(debt(used, held + more, weight) > now);
            prop_assert!(debt(used, held, weight + 1) <= now);
        }
    }
}
