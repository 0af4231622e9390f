//! Which groups may send a build to an idle workspace (section 4.4 of the paper).

use std::collections::VecDeque;

use model::{Esu, ExecutorType, Quota};

use crate::Random;

/// The builds of a group that may start, in the order in which they must.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHead<B> {
    /// How often it is chosen, compared with others.
    pub weight: u64,
    /// The builds.
    pub builds: VecDeque<B>,
}

/// A build that gets a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement<B> {
    /// Index of its group in what was given.
    pub group: usize,
    /// The build.
    pub build: B,
}

/// Gives `workspaces` places to the heads of `groups`: each to a group chosen by chance, in proportion to its weight, of
/// those that have a build left.
pub fn place<B>(groups: Vec<GroupHead<B>>, workspaces: usize, random: &mut Random) -> Vec<Placement<B>> {
    let mut heads: Vec<(usize, GroupHead<B>)> =
        groups.into_iter().enumerate().filter(|(_, head)| !head.builds.is_empty()).collect();
    let mut placed = Vec::new();
    while placed.len() < workspaces
        && let Some(chosen) = draw(heads.iter().map(|(_, head)| head.weight), random)
        && let Some((group, head)) = heads.get_mut(chosen)
    {
        placed.extend(head.builds.pop_front().map(|build| Placement { group: *group, build }));
        if head.builds.is_empty() {
            heads.remove(chosen);
        }
    }
    placed
}

/// An index, by chance in proportion to its weight; `None` when all weigh nothing.
fn draw(weights: impl Iterator<Item = u64> + Clone, random: &mut Random) -> Option<usize> {
    let total: u64 = weights.clone().sum();
    let mut left = random.below(total);
    for (index, weight) in weights.enumerate() {
        if left < weight {
            return Some(index);
        }
        left -= weight;
    }
    None
}

/// How often a group is chosen: in proportion to its quota of x86, which all builds use. A group without has a tenth of
/// its other quotas or of one ESU, so that its builds for other executors are looked at too.
pub fn weight(quota: Option<&Quota>) -> u64 {
    let Some(quota) = quota else { return units(Esu::ONE) };
    let x86 = quota.esu.get(&ExecutorType::x86());
    if x86 > Esu::ZERO {
        return units(x86);
    }
    let others: Esu = quota.esu.iter().map(|(_, amount)| amount.or_zero()).sum();
    units(others.max(Esu::ONE)) / 10
}

/// In thousandths: a million groups with a million ESU each still have a sum.
fn units(amount: Esu) -> u64 {
    u64::try_from(amount.micros() / 1000).unwrap_or_default().max(1)
}

/// `count` draws by weight, each of all: indices, of which one may come several times.
pub fn draws(weights: &[u64], count: usize, random: &mut Random) -> Vec<usize> {
    let mut sums: Vec<u64> = Vec::with_capacity(weights.len());
    let mut total = 0_u64;
    for weight in weights {
        total = total.saturating_add(*weight);
        sums.push(total);
    }
    if total == 0 {
        return Vec::new();
    }
    (0..count).map(|_| random.below(total)).map(|at| sums.partition_point(|sum| *sum <= at)).collect()
}

#[cfg(test)]
mod tests;
