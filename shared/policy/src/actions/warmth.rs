//! Where similar actions ran before, so that their files are still there.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
};

use invariant::impossible;
use model::{ActionKey, ExecutorHome};

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
