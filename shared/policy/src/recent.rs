//! What is known of the keys that something was learned of lately.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Values by key, bounded: the key that was written to longest ago makes room.
#[derive(Debug, Clone)]
pub(crate) struct Recent<K, V> {
    values: HashMap<K, (u64, V)>,
    /// Keys by when they were written to last.
    turns: BTreeMap<u64, K>,
    turn: u64,
    most: usize,
}

impl<K: Copy + Eq + Hash, V: Default> Recent<K, V> {
    /// At most so many keys, one at least.
    pub(crate) fn new(most: usize) -> Self {
        Self { values: HashMap::new(), turns: BTreeMap::new(), turn: 0, most: most.max(1) }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.values.get(&key).map(|(_, value)| value)
    }

    /// The value of `key` to be written to, made if there is none.
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
