use crate::hash::ByHash;
use crate::number::{count, to_index};
use invariant::impossible;

/// Maximum number of distinct values of one kind; values that come later count as unknown. It bounds the memory to some
/// 130 MiB per kind, and is far more than a vocabulary keeps.
const MOST_VALUES: usize = 1 << 22;

/// Id of a value that found the interner full.
pub(crate) const OVERFLOW: u32 = 0;

/// Small ids for the values of one kind, and how often each was seen. Only the hashes of the texts are kept.
#[derive(Debug)]
pub(crate) struct Interner {
    ids: ByHash<u32>,
    values: Vec<Value>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) hash: u64,
    /// Number of builds to learn from that have it.
    pub(crate) seen: u32,
}

impl Default for Interner {
    fn default() -> Self {
        Self { ids: ByHash::default(), values: vec![Value { hash: 0, seen: 0 }] }
    }
}

impl Interner {
    /// Id of the value with this hash; its count is incremented if `counts` is set.
    pub(crate) fn id(&mut self, hash: u64, counts: bool) -> u32 {
        let id = self.ids.get(&hash).copied().unwrap_or_else(|| self.add(hash));
        if let Some(value) = self.values.get_mut(to_index(id)) {
            value.seen = value.seen.saturating_add(u32::from(counts && id != OVERFLOW));
        } else {
            impossible!("value {id} of {} is known", self.values.len());
        }
        id
    }

    fn add(&mut self, hash: u64) -> u32 {
        if self.values.len() >= MOST_VALUES {
            return OVERFLOW;
        }
        let id = count(self.values.len());
        self.ids.insert(hash, id);
        self.values.push(Value { hash, seen: 0 });
        id
    }

    /// All values, in order of their ids.
    pub(crate) fn values(&self) -> &[Value] {
        &self.values
    }
}
