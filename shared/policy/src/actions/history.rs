//! Usage of actions by their keys: robust statistics of the last runs, bounded in memory.

mod entry;

use std::time::Duration;

use invariant::Present as _;
use model::{ActionKey, ActionKeys, Measured};

use super::ending::grown;
use crate::recent::Recent;
use entry::{Entry, Sample};

/// Default maximum number of keys: some 30 MB when all are full.
const MOST_KEYS: usize = 50_000;
/// Minimum number of runs of a command or a target to derive from their 95th percentile which run is slow.
const SLOW_AFTER: usize = 10;
/// The same minimum for all runs of a kind, which vary more.
const SLOW_AFTER_OF_KIND: usize = 20;

/// Usage of actions that ended. The keys that were not updated for the longest time are evicted first.
#[derive(Debug, Clone)]
pub struct History {
    entries: Recent<ActionKey, Entry>,
    /// Mean run time of recent actions in milliseconds, with any keys; `None` before the first.
    usual_ms: Option<f64>,
}

/// Assumed run time of an action before any has ended.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Number of recent actions that dominate the mean of all.
const RECENT: f64 = 32.0;

/// Expected usage of an action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Learned {
    /// Thousandths of a processor; `None` if only its memory is known.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory at its peak, with a margin; `None` if only its processor time is known.
    pub memory_bytes: Option<u64>,
    /// Whether this is only a lower bound: only the use of actions of its kind is known, which may differ much from it,
    /// or only that it ran out of memory. The client's request counts if that is higher.
    pub at_least: bool,
}

/// How precisely a key describes an action: the coarser, the more runs are required and the larger the margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Command,
    Target,
    Kind,
}

impl Likeness {
    /// The keys of `keys` with their precision: the first is the exact command; the last, if there is
    /// another, is the kind.
    fn of(keys: &ActionKeys) -> impl Iterator<Item = (Self, ActionKey)> {
        let last = keys.history.len().saturating_sub(1);
        let which = move |at| match at {
            0 => Self::Command,
            at if at == last => Self::Kind,
            _ => Self::Target,
        };
        keys.history.iter().enumerate().map(move |(at, key)| (which(at), *key))
    }

    /// Minimum number of runs for the key to be used.
    fn least(self) -> usize {
        match self {
            Self::Command => 1,
            Self::Target => 3,
            Self::Kind => 8,
        }
    }

    /// Percentile of processor use that is expected.
    fn cpu_percent(self) -> usize {
        match self {
            Self::Command => 90,
            Self::Target | Self::Kind => 95,
        }
    }

    /// Minimum margin in percent on the largest memory seen in the last `runs`: the fewer runs, the larger the margin.
    fn margin_percent(self, runs: usize) -> u64 {
        let known = match self {
            Self::Command => 15,
            Self::Target => 25,
            Self::Kind => 40,
        };
        known + 60 / (runs.max(1) as u64)
    }

    /// The largest memory seen plus a margin: the difference between it and the usual run, because the next
    /// run may exceed it by as much, but at least [`Self::margin_percent`]. Actions of a kind differ for
    /// more reasons than chance.
    fn memory_bytes(self, entry: &Entry) -> Option<u64> {
        let peak = entry.memory_bytes(100)?;
        let part = peak / 100 * self.margin_percent(entry.runs());
        let above = match self {
            Self::Command | Self::Target => {
                let usual = entry.memory_bytes(50).present_or(peak, "the median of known peaks");
                peak - usual.min(peak)
            }
            Self::Kind => 0,
        };
        Some(peak.saturating_add(part.max(above)))
    }

    /// The expected usage that follows from `entry` for an action described this precisely.
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
    /// Creates a history without runs, for at most `most_keys` keys.
    pub fn new(most_keys: usize) -> Self {
        Self { entries: Recent::new(most_keys), usual_ms: None }
    }

    /// Number of keys with a history.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the history is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Learns from an action with these keys that ended with success. Failed actions must not be passed, since they
    /// may have stopped early.
    pub fn learn(&mut self, keys: &ActionKeys, measured: &Measured) {
        let wall = measured.wall_ms as f64;
        self.usual_ms = Some(self.usual_ms.map_or(wall, |mean| mean + (wall - mean) / RECENT));
        let sample = Sample::of(measured);
        for key in &keys.history {
            self.entries.of(*key).ran(sample);
        }
    }

    /// Learns that an action with these keys ran out of the `had` bytes of memory that it was given. It is expected to
    /// need the amount of its next run until a similar action succeeds, which shows how much it needs.
    pub fn learn_out_of_memory(&mut self, keys: &ActionKeys, had: u64) {
        for key in &keys.history {
            self.entries.of(*key).ran_out(had);
        }
    }

    /// Expected usage of an action with these keys, from the most precise key with enough runs. If it ran out of
    /// memory, or another action of its target did, or one of its kind while little is known of the action, the memory
    /// is at least the amount of the next run after that.
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

    /// Median run time of actions with these keys.
    pub fn wall(&self, keys: &ActionKeys) -> Option<Duration> {
        self.wall_of(keys, 50, Likeness::least)
    }

    /// Expected run time of an action with these keys: the median, else the mean of recent actions. With a constant
    /// instead, unknown actions of milliseconds would count a hundred times too much against their invocation.
    pub fn expected_wall(&self, keys: &ActionKeys) -> Duration {
        let usual = || self.usual_ms.map(|mean| Duration::from_secs_f64(mean / 1000.0));
        self.wall(keys).or_else(usual).unwrap_or(UNKNOWN)
    }

    /// Time that 95 of 100 actions with these keys took at most: one that takes longer is slow. `None` if there
    /// are too few runs.
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
