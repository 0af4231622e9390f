//! Confidence intervals, and how two of them lie to each other.

/// A confidence interval of a statistic, in the unit of its sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval, at least `low`.
    pub high: f64,
}

/// How one interval lies to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// It lies wholly below the other: the statistic is lower.
    Below,
    /// It lies wholly above the other: the statistic is higher.
    Above,
    /// One contains the other: the statistic is probably the same.
    Same,
    /// They overlap: nothing follows.
    Unknown,
}

impl Interval {
    /// Whether it has no value outside of `other`.
    fn is_inside(self, other: Self) -> bool {
        other.low <= self.low && self.high <= other.high
    }

    /// How this interval lies to `other`.
    pub fn relation(self, other: Self) -> Relation {
        if self.high < other.low {
            Relation::Below
        } else if other.high < self.low {
            Relation::Above
        } else if self.is_inside(other) || other.is_inside(self) {
            Relation::Same
        } else {
            Relation::Unknown
        }
    }
}
