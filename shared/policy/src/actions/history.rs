//! What actions were seen to use, by their keys: robust statistics of the last runs, bounded in memory.

mod entry;

use std::time::Duration;

use model::{ActionKey, ActionKeys, Measured};

use super::ending::grown;
use crate::recent::Recent;
use entry::{Entry, Sample};

/// Keys that are kept where nobody says how many: some 30 MB when all are full.
const MOST_KEYS: usize = 50_000;
/// Runs of a command or a target whose 95 % say that one is slow.
const SLOW_AFTER: usize = 10;
/// The same for all runs of a kind, which differ more.
const SLOW_AFTER_OF_KIND: usize = 20;

/// What actions were seen to use. Those that nothing was learned of for longest are forgotten first.
#[derive(Debug, Clone)]
pub struct History {
    entries: Recent<ActionKey, Entry>,
}

/// What an action is expected to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Learned {
    /// Thousandths of a processor; `None` where only its memory is known.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory at its peak, with a margin; `None` where only its processor time is known.
    pub memory_bytes: Option<u64>,
    /// Whether this is no more than what it needs at least: known is only what actions of its kind use, which may differ
    /// much from it, or that it ran out of memory. What its client asks for counts where that is more.
    pub at_least: bool,
}

/// How well a key describes an action: the coarser, the more must be known and the more is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Command,
    Target,
    Kind,
}

impl Likeness {
    /// The keys of `keys` with what they are: the first is the exact command, the last, where there is another, the kind.
    fn of(keys: &ActionKeys) -> impl Iterator<Item = (Self, ActionKey)> {
        let last = keys.history.len().saturating_sub(1);
        let which = move |at| match at {
            0 => Self::Command,
            at if at == last => Self::Kind,
            _ => Self::Target,
        };
        keys.history.iter().enumerate().map(move |(at, key)| (which(at), *key))
    }

    /// Runs without which it says nothing.
    fn least(self) -> usize {
        match self {
            Self::Command => 1,
            Self::Target => 3,
            Self::Kind => 8,
        }
    }

    /// Percent of the runs that used no more processors than are expected.
    fn cpu_percent(self) -> usize {
        match self {
            Self::Command => 90,
            Self::Target | Self::Kind => 95,
        }
    }

    /// Percent that are added at least to the largest memory seen in the last `runs`: the fewer they are, the more is
    /// beyond what they showed.
    fn margin_percent(self, runs: usize) -> u64 {
        let known = match self {
            Self::Command => 15,
            Self::Target => 25,
            Self::Kind => 40,
        };
        known + 60 / (runs.max(1) as u64)
    }

    /// The largest memory seen with what is added to it: as much as it is above the usual run, for the next may be as much
    /// above it, but no less than a part of it. Actions of a kind differ for other reasons than chance.
    fn memory_bytes(self, entry: &Entry) -> Option<u64> {
        let peak = entry.memory_bytes(100)?;
        let part = peak / 100 * self.margin_percent(entry.runs());
        let above = match self {
            Self::Command | Self::Target => peak - entry.memory_bytes(50).unwrap_or(peak).min(peak),
            Self::Kind => 0,
        };
        Some(peak.saturating_add(part.max(above)))
    }

    /// What `entry` says of an action that it describes so well.
    fn learned(self, entry: &Entry) -> Learned {
        Learned {
            cpu_millis: entry.cpu_millis(self.cpu_percent()),
            memory_bytes: self.memory_bytes(entry),
            at_least: self == Self::Kind,
        }
    }

    fn slow_after(self) -> usize {
        match self {
            Self::Command | Self::Target => SLOW_AFTER,
            Self::Kind => SLOW_AFTER_OF_KIND,
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new(MOST_KEYS)
    }
}

impl History {
    /// Nothing is known; of at most so many keys something will be.
    pub fn new(most_keys: usize) -> Self {
        Self { entries: Recent::new(most_keys) }
    }

    /// Keys of which something is known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// An action with these keys ended with success and used so much. Others teach nothing: what failed may have stopped
    /// early.
    pub fn learn(&mut self, keys: &ActionKeys, measured: &Measured) {
        let sample = Sample::of(measured);
        for key in &keys.history {
            self.entries.of(*key).ran(sample);
        }
    }

    /// An action with these keys ran out of the `had` bytes of memory that it was given: until one like it succeeds, which
    /// tells how much it needs, it is thought to need what it is given next.
    pub fn learn_out_of_memory(&mut self, keys: &ActionKeys, had: u64) {
        for key in &keys.history {
            self.entries.of(*key).ran_out(had);
        }
    }

    /// What an action with these keys is expected to use, by the best of them of which enough is known. Where it ran out of
    /// memory, or one of its target, or one of its kind while little is known of that, it is at least what these are given
    /// next.
    pub fn size(&self, keys: &ActionKeys) -> Option<Learned> {
        let mut learned = Learned { at_least: true, ..Learned::default() };
        let mut ran_out = None;
        for (likeness, key) in Likeness::of(keys) {
            let Some(entry) = self.entries.get(key) else { continue };
            let is_known = entry.runs() >= likeness.least();
            if !is_known || likeness != Likeness::Kind {
                ran_out = ran_out.max(entry.ran_out_of());
            }
            if is_known {
                learned = likeness.learned(entry);
                break;
            }
        }
        learned.memory_bytes = learned.memory_bytes.max(ran_out.map(grown));
        (learned.memory_bytes.is_some() || learned.cpu_millis.is_some()).then_some(learned)
    }

    /// How long an action with these keys is expected to run: the median.
    pub fn wall(&self, keys: &ActionKeys) -> Option<Duration> {
        self.wall_of(keys, 50, Likeness::least)
    }

    /// How long 95 of 100 actions with these keys ran at most: one that takes longer is slow. `None` while too few are
    /// known to tell.
    pub fn slow_after(&self, keys: &ActionKeys) -> Option<Duration> {
        self.wall_of(keys, 95, Likeness::slow_after)
    }

    fn wall_of(
        &self,
        keys: &ActionKeys,
        percent: usize,
        least: impl Fn(Likeness) -> usize,
    ) -> Option<Duration> {
        Likeness::of(keys).find_map(|(likeness, key)| {
            let entry = self.entries.get(key).filter(|entry| entry.runs() >= least(likeness))?;
            entry.wall(percent)
        })
    }
}

#[cfg(test)]
mod tests;
