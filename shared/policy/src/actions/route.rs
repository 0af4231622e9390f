//! Decides which executors are notified of a waiting execution: those where it is warm, then the emptier of
//! two drawn at random.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
};

use invariant::{Present as _, impossible};
use model::{ActionKey, ExecutorHome, ExecutorId, Resources};

use crate::{Random, hash::Hasher};

/// An executor that may be notified.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Id of the executor.
    pub executor: ExecutorId,
    /// Its folder, where actions are warm.
    pub home: ExecutorHome,
    /// Total resources of the executor.
    pub capacity: Resources,
    /// Load as a share of its capacity: running executions plus those in its queue. May be above 1.
    pub load: f64,
}

/// How executors are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// Number of executors that are notified.
    pub probes: usize,
    /// Whether executors where the execution is warm come first.
    pub affinity: bool,
    /// Whether the emptier of two executors is chosen, or a random one.
    pub load_aware: bool,
}

/// Indices of the candidates to notify, the best first; fewer than `probes` if not enough can ever hold `asked`.
/// Executors in `avoid` come last.
pub fn route(
    asked: &Resources,
    warm: &[ExecutorHome],
    avoid: &[ExecutorId],
    candidates: &[Candidate],
    routing: Routing,
    random: &mut Random,
) -> Vec<usize> {
    let fits = |candidate: &Candidate| asked.fits(&candidate.capacity);
    let (mut left, mut last): (Vec<usize>, Vec<usize>) = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| fits(candidate))
        .map(|(index, _)| index)
        .partition(|index| candidates.get(*index).is_none_or(|it| !avoid.contains(&it.executor)));
    let mut chosen = Vec::with_capacity(routing.probes);
    if routing.affinity {
        for home in warm.iter().take(routing.probes) {
            let at = left.iter().position(|index| candidates.get(*index).is_some_and(|it| it.home == *home));
            chosen.extend(at.map(|at| left.swap_remove(at)));
        }
    }
    let load = |index: usize| {
        candidates.get(index).map(|it| it.load).present_or(f64::MAX, "the load of a candidate")
    };
    for group in [&mut left, &mut last] {
        while chosen.len() < routing.probes && !group.is_empty() {
            let one = draw(group.len(), random);
            let two = if routing.load_aware { draw(group.len(), random) } else { one };
            let loads = [one, two].map(|at| {
                group
                    .get(at)
                    .map(|index| load(*index))
                    .present_or(f64::MAX, "a candidate drawn from its group")
            });
            let better = if loads[1] < loads[0] { two } else { one };
            chosen.push(group.swap_remove(better));
        }
    }
    chosen
}

fn draw(count: usize, random: &mut Random) -> usize {
    usize::try_from(random.below(count as u64)).present("an index below a number of executors")
}

/// Rank of an executor for an execution that has no other preference: all callers compute the same rank, and each
/// execution has another best executor (rendezvous hashing).
pub(super) fn rendezvous(execution: &str, executor: &ExecutorId) -> u64 {
    Hasher::new("rendezvous").text(execution).text(executor.as_str()).key()
}

/// Number of homes remembered per key.
const HOMES: usize = 2;

/// Where similar actions last ran with success. Bounded: the keys that were not used for the longest time are evicted.
#[derive(Debug)]
pub struct Warmth<S = RandomState> {
    homes: HashMap<ActionKey, (u64, Vec<ExecutorHome>), S>,
    /// Keys in the order of their use, with the time; only the last entry of a key counts.
    order: VecDeque<(ActionKey, u64)>,
    clock: u64,
    most: usize,
}

impl Warmth {
    /// Creates an empty memory for at most `most` keys.
    pub fn new(most: usize) -> Self {
        Self { homes: HashMap::default(), order: VecDeque::new(), clock: 0, most }
    }
}

impl<S: BuildHasher> Warmth<S> {
    /// Learns that an action with these keys ran at `home`. After a success it is warm there, before all other homes;
    /// after a failure, similar actions no longer prefer that home.
    pub fn learn(&mut self, keys: &[ActionKey], home: &ExecutorHome, success: bool) {
        for key in keys {
            self.clock += 1;
            let now = self.clock;
            if let Some((used, homes)) = self.homes.get_mut(key) {
                homes.retain(|known| known != home);
                if success {
                    homes.insert(0, home.clone());
                    homes.truncate(HOMES);
                }
                *used = now;
            } else if success {
                self.homes.insert(*key, (now, vec![home.clone()]));
            } else {
                continue;
            }
            self.order.push_back((*key, now));
        }
        self.forget();
    }

    /// Homes where an action with these keys is warm, the best first.
    pub fn homes(&self, keys: &[ActionKey]) -> Vec<ExecutorHome> {
        let mut found: Vec<ExecutorHome> = Vec::new();
        for (_, homes) in keys.iter().filter_map(|key| self.homes.get(key)) {
            for home in homes {
                if !found.contains(home) {
                    found.push(home.clone());
                }
            }
        }
        found
    }

    /// Number of known keys.
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }

    fn forget(&mut self) {
        // Outdated entries are removed too, or they would accumulate.
        while self.homes.len() > self.most || self.order.len() > self.most.saturating_mul(2) {
            let Some((key, at)) = self.order.pop_front() else {
                impossible!("{} keys are known and none is in the order of their use", self.homes.len());
                return;
            };
            match self.homes.get(&key) {
                Some((used, _)) if *used == at => {
                    self.homes.remove(&key);
                }
                Some(_) | None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
