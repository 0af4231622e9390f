//! Which worker gets what arrives, where each has a queue of its own.

use std::cmp::Reverse;

use crate::Random;

/// By what work is spread over workers as it arrives (section 3.6.2 of the thesis).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spread {
    /// In turn: [`next_in_turn`].
    RoundRobin,
    /// To the one with least in hand: [`least_loaded`].
    Load,
    /// To the better of two that chance names: [`two_of`], then [`less_loaded`].
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

/// A worker, as far as its load goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Which.
    pub number: u32,
    /// Whether it has nothing in hand at all.
    pub idle: bool,
    /// What it has in hand, running or queued: jobs, or milliseconds of them.
    pub load: u64,
}

/// A worker, as far as its turn goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Which.
    pub number: u32,
    /// When it got something last: a number that grows with each turn.
    pub last: u64,
}

/// The worker that has least in hand: of equals an idle one, then the lowest number. None of none.
pub fn least_loaded(able: impl IntoIterator<Item = WorkerLoad>) -> Option<u32> {
    able.into_iter().reduce(less_loaded).map(|worker| worker.number)
}

/// The one with less in hand: of equals an idle one, then the lower number.
pub fn less_loaded(a: WorkerLoad, b: WorkerLoad) -> WorkerLoad {
    let key = |worker: &WorkerLoad| (worker.load, Reverse(worker.idle), worker.number);
    if key(&b) < key(&a) { b } else { a }
}

/// The worker whose turn was longest ago. None of none.
pub fn next_in_turn(able: impl IntoIterator<Item = Turn>) -> Option<u32> {
    able.into_iter().min_by_key(|turn| (turn.last, turn.number)).map(|turn| turn.number)
}

/// Two different numbers below `count`, the smaller first, every pair as likely as any. None where there are no two.
pub fn two_of(count: usize, random: &mut Random) -> Option<(usize, usize)> {
    let count = u64::try_from(count).ok().filter(|count| *count >= 2)?;
    let first = random.below(count);
    let second = random.below(count - 1);
    // The second is drawn from all but the first.
    let second = if second >= first { second + 1 } else { second };
    Some((usize::try_from(first.min(second)).ok()?, usize::try_from(first.max(second)).ok()?))
}
