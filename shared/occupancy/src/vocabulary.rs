use crate::facts::Kind;
use crate::hash::ByHash;
use crate::intern::{Interner, Value};
use crate::number::{count, to_index};
use crate::rows::Interners;
use crate::slots::FIRST_WORD;

/// Maximum number of words of one kind; of more values, those seen most often are kept.
const MOST_WORDS: usize = 1 << 17;
/// Maximum number of words of all seven kinds.
pub(crate) const LARGEST: usize = 7 * MOST_WORDS;

/// The values that have their own weights; all others share one weight per kind for unknown values (OOV).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Vocabulary {
    /// Hashes of the words, in ascending order.
    hashes: Vec<u64>,
    slots: ByHash<u32>,
}

impl Vocabulary {
    /// Creates a vocabulary from the hashes of its words, in ascending order.
    pub(crate) fn new(hashes: Vec<u64>) -> Self {
        let slots = hashes.iter().zip(FIRST_WORD..).map(|(&hash, slot)| (hash, slot)).collect();
        Self { hashes, slots }
    }

    /// The values seen in at least `least` builds to learn from.
    pub(crate) fn of(values: &Interners, least: u32) -> Self {
        let mut hashes = Vec::new();
        for kind in [
            &values.commands,
            &values.groups,
            &values.priorities,
            &values.flags,
            &values.flag_names,
            &values.targets,
            &values.packages,
        ] {
            hashes.extend(words(kind, least));
        }
        hashes.sort_unstable();
        hashes.dedup();
        Self::new(hashes)
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Slot of the value of this kind with this hash.
    pub(crate) fn slot(&self, kind: Kind, hash: u64) -> u32 {
        self.slots.get(&hash).copied().unwrap_or(kind.unknown())
    }

    /// The first slot after those of the words.
    pub(crate) fn end(&self) -> u32 {
        FIRST_WORD + count(self.hashes.len())
    }
}

fn words(kind: &Interner, least: u32) -> Vec<u64> {
    let mut kept: Vec<Value> =
        kind.values().iter().copied().filter(|value| value.seen >= least.max(1)).collect();
    if kept.len() > MOST_WORDS {
        kept.sort_unstable_by_key(|value| (std::cmp::Reverse(value.seen), value.hash));
        kept.truncate(MOST_WORDS);
    }
    kept.iter().map(|value| value.hash).collect()
}

/// The slot of each value that a dataset's rows refer to by id.
#[derive(Debug)]
pub(crate) struct SlotTables {
    pub(crate) commands: SlotTable,
    pub(crate) groups: SlotTable,
    pub(crate) priorities: SlotTable,
    pub(crate) flags: SlotTable,
    pub(crate) flag_names: SlotTable,
    pub(crate) targets: SlotTable,
    pub(crate) packages: SlotTable,
}

impl SlotTables {
    pub(crate) fn new(values: &Interners, vocabulary: &Vocabulary) -> Self {
        let table = |interner, kind| SlotTable::new(interner, kind, vocabulary);
        Self {
            commands: table(&values.commands, Kind::Command),
            groups: table(&values.groups, Kind::Group),
            priorities: table(&values.priorities, Kind::Priority),
            flags: table(&values.flags, Kind::Flag),
            flag_names: table(&values.flag_names, Kind::FlagName),
            targets: table(&values.targets, Kind::Target),
            packages: table(&values.packages, Kind::Package),
        }
    }
}

#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<u32>,
    unknown: u32,
}

impl SlotTable {
    fn new(interner: &Interner, kind: Kind, vocabulary: &Vocabulary) -> Self {
        let slots = interner.values().iter().map(|value| vocabulary.slot(kind, value.hash)).collect();
        Self { slots, unknown: kind.unknown() }
    }

    #[inline]
    pub(crate) fn slot(&self, id: u32) -> u32 {
        self.slots.get(to_index(id)).copied().unwrap_or(self.unknown)
    }
}
