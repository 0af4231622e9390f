//! A bounded map of recently updated values.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Values by key, bounded: the least recently updated key is evicted.
#[derive(Debug, Clone)]
pub(crate) struct Recent<K, V> {
    values: HashMap<K, (u64, V)>,
    /// Keys in the order of their last update.
    turns: BTreeMap<u64, K>,
    turn: u64,
    most: usize,
}

impl<K: Copy + Eq + Hash, V: Default> Recent<K, V> {
    /// Creates a map for at most `most` keys, at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { values: HashMap::new(), turns: BTreeMap::new(), turn: 0, most: most.max(1) }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.values.get(&key).map(|(_, value)| value)
    }

    /// The value of `key` for an update; created if it does not exist.
    pub(crate) fn of(&mut self, key: K) -> &mut V {
        self.turn += 1;
        if let Some((turn, _)) = self.values.get(&key) {
            self.turns.remove(turn);
        } else if self.values.len() >= self.most
            && let Some((_, oldest)) = self.turns.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.turns.insert(self.turn, key);
        let (turn, value) = self.values.entry(key).or_default();
        *turn = self.turn;
        value
    }
}
