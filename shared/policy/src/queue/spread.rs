//! Decides which worker gets an arriving item, if each worker has its own queue.

use std::cmp::Reverse;

use invariant::Present as _;

use crate::Random;

/// Policy by which work is spread over workers as it arrives (section 3.6.2 of the thesis).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spread {
    /// In turn, see [`next_in_turn`].
    RoundRobin,
    /// To the worker with the lowest load, see [`least_loaded`].
    Load,
    /// To the better of two workers drawn at random, see [`two_of`] and [`less_loaded`].
    Rand2,
}

impl Spread {
    /// Its name in the thesis's notation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Load => "load",
            Self::Rand2 => "rand2",
        }
    }
}

/// A worker as input of the policies by load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Number that identifies the worker.
    pub number: u32,
    /// Whether it has no running or queued items.
    pub idle: bool,
    /// Load of its running and queued items, as a number of jobs or in milliseconds.
    pub load: u64,
}

/// A worker as input of the policy by turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Number that identifies the worker.
    pub number: u32,
    /// When it last got an item: a number that grows with each turn.
    pub last: u64,
}

/// The worker with the lowest load: of equals an idle one, then the lowest number. `None` without workers.
pub fn least_loaded(able: impl IntoIterator<Item = WorkerLoad>) -> Option<u32> {
    able.into_iter().reduce(less_loaded).map(|worker| worker.number)
}

/// The worker with the lower load: of equals an idle one, then the lower number.
pub fn less_loaded(a: WorkerLoad, b: WorkerLoad) -> WorkerLoad {
    let rank = |worker: &WorkerLoad| (worker.load, Reverse(worker.idle), worker.number);
    if rank(&b) < rank(&a) { b } else { a }
}

/// The worker whose last turn is the oldest. `None` without workers.
pub fn next_in_turn(able: impl IntoIterator<Item = Turn>) -> Option<u32> {
    able.into_iter().min_by_key(|turn| (turn.last, turn.number)).map(|turn| turn.number)
}

/// Two different numbers below `count`, the smaller first; all pairs are equally likely. `None` if `count` is below 2.
pub fn two_of(count: usize, random: &mut Random) -> Option<(usize, usize)> {
    let count = u64::try_from(count).ok().filter(|count| *count >= 2)?;
    let first = random.below(count);
    let second = random.below(count - 1);
    // The second is drawn from all but the first.
    let second = if second >= first { second + 1 } else { second };
    let index = |number: u64| usize::try_from(number).present("a number below that of items");
    Some((index(first.min(second)), index(first.max(second))))
}
