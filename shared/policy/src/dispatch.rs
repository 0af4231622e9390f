//! Decides which groups may send a build to an idle workspace (section 4.4 of the paper).

mod supply;

use std::collections::VecDeque;

use model::{Esu, ExecutorType, Quota};

pub use supply::{Supplied, Supply, Taken};

use crate::Random;

/// The builds of a group that may start, in the order in which they must start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHead<B> {
    /// Relative probability that the group is chosen.
    pub weight: u64,
    /// Emergencies, in order: they start before the builds of all groups.
    pub emergencies: VecDeque<B>,
    /// Other builds that may start, in order.
    pub builds: VecDeque<B>,
}

impl<B> GroupHead<B> {
    /// Whether the group has nothing to start.
    pub fn is_empty(&self) -> bool {
        self.emergencies.is_empty() && self.builds.is_empty()
    }

    /// The build that starts first.
    pub fn first(&self) -> Option<&B> {
        self.emergencies.front().or(self.builds.front())
    }
}

/// The idle workspaces of the farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleWorkspaces {
    /// Number of workspaces that may be assigned now; bounded, so it may be smaller than `all`.
    pub usable: usize,
    /// Number of all idle workspaces of the farm.
    pub all: usize,
    /// Number of idle workspaces that are left for emergencies.
    pub kept: usize,
}

impl IdleWorkspaces {
    /// Number of workspaces that may be assigned to builds other than emergencies.
    pub fn for_others(self) -> usize {
        self.usable.min(self.all.saturating_sub(self.kept))
    }
}

/// A build that gets a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement<B> {
    /// Index of its group in the input.
    pub group: usize,
    /// The build to start.
    pub build: B,
}

/// Assigns idle workspaces to the heads of `groups`: each to a group that has a build left, chosen at random in
/// proportion to its weight. Emergencies come first; the others leave the workspaces that are kept. `take` takes one of the
/// workspaces that can run a build; a build without one is left out.
pub fn place<B>(
    groups: Vec<GroupHead<B>>,
    idle: IdleWorkspaces,
    mut take: impl FnMut(&B) -> bool,
    random: &mut Random,
) -> Vec<Placement<B>> {
    let (mut emergencies, mut others) = (Vec::new(), Vec::new());
    for (group, head) in groups.into_iter().enumerate() {
        if !head.emergencies.is_empty() {
            emergencies.push(Line { group, weight: head.weight, builds: head.emergencies });
        }
        others.push(Line { group, weight: head.weight, builds: head.builds });
    }
    let mut placed = Vec::new();
    // Without an emergency nothing is drawn for them, so that the other draws stay the same.
    if !emergencies.is_empty() {
        placed = place_lines(emergencies, idle.usable, &mut take, random);
    }
    // Each emergency has one workspace less left for others.
    let left = IdleWorkspaces {
        usable: idle.usable - placed.len(),
        all: idle.all.saturating_sub(placed.len()),
        kept: idle.kept,
    };
    placed.extend(place_lines(others, left.for_others(), &mut take, random));
    placed
}

/// Builds of a group that start in order.
struct Line<B> {
    group: usize,
    weight: u64,
    builds: VecDeque<B>,
}

fn place_lines<B>(
    mut lines: Vec<Line<B>>,
    workspaces: usize,
    take: &mut impl FnMut(&B) -> bool,
    random: &mut Random,
) -> Vec<Placement<B>> {
    lines.retain(|line| !line.builds.is_empty());
    let mut placed = Vec::new();
    while placed.len() < workspaces
        && let Some(chosen) = draw(lines.iter().map(|line| line.weight), random)
        && let Some(line) = lines.get_mut(chosen)
    {
        while let Some(build) = line.builds.pop_front() {
            if take(&build) {
                placed.push(Placement { group: line.group, build });
                break;
            }
        }
        if line.builds.is_empty() {
            lines.remove(chosen);
        }
    }
    placed
}

/// A random index in proportion to its weight; `None` if all weights are 0.
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

/// The weight of a group: proportional to its quota of x86, which all builds use. A group without such a
/// quota has a tenth of its other quotas or of one ESU, whichever is larger, so that its builds for other
/// executors are considered too.
pub fn weight(quota: Option<&Quota>) -> u64 {
    let Some(quota) = quota else { return units(Esu::ONE) };
    let x86 = quota.esu.get(&ExecutorType::x86());
    if x86 > Esu::ZERO {
        return units(x86);
    }
    let others: Esu = quota.esu.iter().map(|(_, amount)| amount.or_zero()).sum();
    units(others.max(Esu::ONE)) / 10
}

/// Thousandths of ESU: the sum for a million groups with a million ESU each still fits.
fn units(amount: Esu) -> u64 {
    u64::try_from(amount.micros() / 1000).unwrap_or_default().max(1)
}

/// Returns `count` independent draws by weight, as indices; an index may occur several times.
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
