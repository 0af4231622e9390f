//! The order in which groups take turns, and how many executions of each group a scheduler reads for it.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use super::fair::Standing;

/// ESU that an execution counts as before it is read.
const UNKNOWN_ESU: f64 = 1.0;

/// The turn of a group: the lowest comes first. A group with an emergency precedes all others, and one that holds its
/// share follows all others; otherwise the lowest debt comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    is_emergency: bool,
    holds_its_share: bool,
    debt: f64,
}

impl Turn {
    /// The turn of a group that may hold `share` ESU while others wait.
    pub(super) fn of(standing: &Standing, share: Option<f64>, is_emergency: bool) -> Self {
        let holds_its_share = share.is_some_and(|share| standing.held >= share);
        Self { is_emergency, holds_its_share, debt: standing.debt() }
    }
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let emergency = other.is_emergency.cmp(&self.is_emergency);
        let in_share = self.holds_its_share.cmp(&other.holds_its_share);
        emergency.then(in_share).then(self.debt.total_cmp(&other.debt))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

/// A group with waiting executions, before they are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WaitingGroup {
    /// Past and current use of the group.
    pub standing: Standing,
    /// ESU that the group may hold while others wait; `None` if that is not limited.
    pub share: Option<f64>,
    /// Whether its first execution is an emergency.
    pub is_emergency: bool,
}

/// Number of executions of each group among the next `count`, in the order of [`super::grant`], if each group has that
/// many and each of them holds 1 ESU. More than these need not be read before `count` are granted.
pub fn turns(groups: &[WaitingGroup], count: usize) -> Vec<usize> {
    let mut next: BinaryHeap<Reverse<(Turn, usize)>> = BinaryHeap::with_capacity(groups.len());
    let turn = |group: &WaitingGroup, count: usize| {
        let mut standing = group.standing;
        standing.hold(count as f64 * UNKNOWN_ESU);
        Turn::of(&standing, group.share, group.is_emergency)
    };
    next.extend(groups.iter().enumerate().map(|(at, group)| Reverse((turn(group, 0), at))));
    let mut counts = vec![0; groups.len()];
    for _ in 0..count {
        let Some(Reverse((_, at))) = next.pop() else { break };
        if let (Some(count), Some(group)) = (counts.get_mut(at), groups.get(at)) {
            *count += 1;
            next.push(Reverse((turn(group, *count), at)));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(held: f64, weight: u64) -> WaitingGroup {
        let standing = Standing { used: 0.0, held, weight };
        WaitingGroup { standing, share: None, is_emergency: false }
    }

    #[test]
    fn as_many_are_read_as_the_group_gets() {
        let three = [group(0.0, 1), group(4.0, 1), group(9.0, 1)];
        assert_eq!(turns(&three, 3), [3, 0, 0]);
        assert_eq!(turns(&three, 8), [6, 2, 0]);
        assert_eq!(turns(&three, 0), [0, 0, 0]);
        assert_eq!(turns(&[group(0.0, 1), group(0.0, 3)], 8), [2, 6]);
        assert!(turns(&[], 5).is_empty());
    }

    #[test]
    fn emergencies_are_read_first_and_groups_beyond_their_share_last() {
        let urgent = WaitingGroup { is_emergency: true, ..group(100.0, 1) };
        let full = WaitingGroup { share: Some(2.0), ..group(2.0, 1) };
        assert_eq!(turns(&[group(0.0, 1), urgent], 2), [0, 2]);
        assert_eq!(turns(&[full, group(50.0, 1)], 2), [0, 2]);
    }
}
