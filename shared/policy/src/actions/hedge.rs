//! Decides when another copy of a slow execution is started.

use std::time::Duration;

use model::Millis;

/// Rules for starting copies beside the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HedgeRules {
    /// Maximum number of copies beside the first; 0 means none.
    pub most: u16,
    /// Delay of the first additional copy; each further copy waits that much longer (linear backoff).
    /// Zero disables this reason.
    pub delay: Duration,
    /// Whether a copy is started when an execution takes longer than others of its kind did.
    pub by_history: bool,
    /// Factor on the time that nearly all executions of the kind took, after which one counts as slow.
    pub factor: f64,
}

impl HedgeRules {
    /// When the next copy is due of an execution whose last copy started at `begun` and was number `started`
    /// beside the first (0 for the first copy itself). `slow_after` is the time that 95 % of its kind took at
    /// most. `None` means never.
    pub fn due(&self, begun: Millis, started: u16, slow_after: Option<Duration>) -> Option<Millis> {
        let most = if self.by_history { self.most.max(1) } else { self.most };
        if started >= most {
            return None;
        }
        let turns = u32::from(started) + 1;
        let by_delay = (!self.delay.is_zero() && started < self.most).then(|| self.delay * turns);
        let by_history = slow_after.filter(|_| self.by_history).map(|slow| slow.mul_f64(self.factor) * turns);
        let wait = by_delay.into_iter().chain(by_history).min()?;
        Some(begun.after(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: HedgeRules = HedgeRules { most: 0, delay: Duration::ZERO, by_history: false, factor: 1.5 };
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_started_unless_it_is_asked_for() {
        assert_eq!(OFF.due(Millis(5), 0, Some(SECOND)), None);
        let no_delay = HedgeRules { most: 3, ..OFF };
        assert_eq!(no_delay.due(Millis(5), 0, Some(SECOND)), None);
    }

    #[test]
    fn each_copy_waits_longer_than_the_one_before_up_to_the_last() {
        let rules = HedgeRules { most: 2, delay: SECOND, ..OFF };
        assert_eq!(rules.due(Millis(0), 0, None), Some(Millis(1000)));
        assert_eq!(rules.due(Millis(1000), 1, None), Some(Millis(3000)));
        assert_eq!(rules.due(Millis(3000), 2, None), None);
    }

    #[test]
    fn what_takes_longer_than_its_kind_is_hedged_once_by_history_alone() {
        let rules = HedgeRules { by_history: true, ..OFF };
        assert_eq!(rules.due(Millis(0), 0, Some(SECOND * 2)), Some(Millis(3000)));
        assert_eq!(rules.due(Millis(0), 0, None), None, "nothing is known of its kind");
        assert_eq!(rules.due(Millis(0), 1, Some(SECOND)), None);
        let both = HedgeRules { most: 1, delay: SECOND, ..rules };
        assert_eq!(both.due(Millis(0), 0, Some(SECOND * 2)), Some(Millis(1000)), "whichever is sooner");
    }
}
