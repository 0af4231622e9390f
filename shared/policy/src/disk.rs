//! Decides which build is ended when a disk runs full.

/// Disk usage of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes or inodes used when free space began to be short, or 0 if it was not measured then.
    pub before: u64,
    /// Bytes or inodes used at present.
    pub now: u64,
}

impl DiskUse {
    fn growth(self) -> u64 {
        self.now.saturating_sub(self.before)
    }
}

/// Index of the run to end when `lost` bytes or inodes of free space disappeared since `before` was measured: the one
/// that grew most, if it grew by at least `least` and all runs together by at least a quarter of what disappeared.
/// `None` otherwise, because something else fills the disk.
pub fn to_blame(runs: &[DiskUse], lost: u64, least: u64) -> Option<usize> {
    let (index, worst) = runs.iter().enumerate().max_by_key(|(_, run)| run.growth())?;
    let together = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.growth()));
    (worst.growth() > 0 && worst.growth() >= least && together >= lost / 4).then_some(index)
}

/// Whether a build that failed because the disk was full is itself the reason: removing its `used` bytes or inodes would bring
/// the `reserve` back that must stay free.
pub fn is_own_fault(used: u64, reserve: u64) -> bool {
    used >= reserve
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn run(before: u64, now: u64) -> DiskUse {
        DiskUse { before, now }
    }

    #[test]
    fn who_grows_is_to_blame_and_not_who_is_large() {
        assert_eq!(to_blame(&[run(9_000, 9_010), run(0, 500), run(10, 20)], 600, 0), Some(1));
        assert_eq!(to_blame(&[run(9_000, 9_010)], 600, 0), None);
        assert_eq!(to_blame(&[run(9_000, 9_010)], 0, 100), None);
        assert_eq!(to_blame(&[run(9_000, 8_000)], 0, 0), None);
        assert_eq!(to_blame(&[], 600, 0), None);
    }

    #[test]
    fn a_full_disk_is_the_fault_of_a_build_that_used_the_reserve() {
        assert!(is_own_fault(1000, 1000) && !is_own_fault(999, 1000));
        assert!(is_own_fault(0, 0), "without a reserve, any build may be the reason");
    }

    #[test]
    fn of_many_that_grow_alike_one_is_to_blame() {
        let alike = [run(0, 100), run(0, 101), run(0, 99), run(0, 100), run(0, 100), run(0, 98), run(0, 100)];
        assert_eq!(to_blame(&alike, 700, 10), Some(1));
        assert_eq!(to_blame(&alike, 7_000, 10), None);
        assert_eq!(to_blame(&alike, 700, 200), None);
    }

    proptest! {
        #[test]
        fn none_grew_more_than_who_is_to_blame(
            runs in proptest::collection::vec((0..1000u64, 0..1000u64), 0..8), lost in 0..5000u64,
            least in 0..500u64,
        ) {
            let runs: Vec<DiskUse> = runs.into_iter().map(|(before, now)| run(before, now)).collect();
            if let Some(index) = to_blame(&runs, lost, least) {
                let blamed = runs[index].growth();
                let together: u64 = runs.iter().map(|run| run.growth()).sum();
                prop_assert!(blamed > 0 && together >= lost / 4 && blamed >= least);
                prop_assert!(runs.iter().all(|run| run.growth() <= blamed));
            }
        }
    }
}
