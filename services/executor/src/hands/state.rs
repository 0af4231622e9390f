//! What is in hand, and what follows when that changes.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    time::{Duration, Instant},
};

use model::{Claimed, ExecutionKey, Resources, WindowState};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    pace::Pace,
    room::{Free, Room, Want},
};

/// The hold on one action. One that is claimed again while its last end is being written is another.
#[derive(Debug, Clone)]
pub(crate) struct Hand {
    /// Cancelled when its processes are to die and its result is wanted by nobody.
    pub(crate) stop: CancellationToken,
    number: u64,
}

/// An action that can begin.
#[derive(Debug)]
pub(crate) struct Work {
    /// What was claimed.
    pub(crate) claimed: Box<Claimed>,
    /// The hold on it.
    pub(crate) hand: Hand,
    /// Its inputs are being fetched from afar; tells how long that took.
    pub(crate) fetching: Option<JoinHandle<Duration>>,
}

impl Work {
    /// Which.
    pub(crate) fn key(&self) -> ExecutionKey {
        self.claimed.record.execution.key()
    }

    fn exclusive(&self) -> bool {
        self.claimed.record.execution.needs.exclusive
    }
}

/// The files that a running command writes to.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

/// How far an action has come.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// It waits for room.
    Waiting,
    /// Its inputs are made ready.
    Starting,
    /// Its command runs.
    Running(Outputs),
    /// It has left its slot: only its end is still to be written.
    Finishing,
}

/// What is asked of the schedulers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// What is free.
    pub(crate) free: Free,
    /// How many more are taken in hand.
    pub(crate) ahead: u16,
    /// Whether nothing runs or waits to run.
    pub(crate) idle: bool,
}

/// How full an executor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fullness {
    /// Actions it runs at a time at most.
    pub(crate) slots: u16,
    /// What it has in all.
    pub(crate) capacity: Resources,
    /// What those hold that run.
    pub(crate) held: Resources,
    /// Its congestion window.
    pub(crate) window: WindowState,
}

/// All that is in hand.
#[derive(Debug)]
pub(super) struct State {
    pub(super) held: HashMap<ExecutionKey, Held>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) room: Room,
    pub(super) pace: Pace,
    pub(super) draining: bool,
    starting: u16,
    starting_max: u16,
    count: u64,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) hand: Hand,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) work: Work,
    pub(super) since: Instant,
}

impl State {
    /// Nothing is in hand. `starting_max` may fetch their inputs at a time; 0 is any number.
    pub(super) fn new(room: Room, starting_max: u16) -> Self {
        Self {
            held: HashMap::new(),
            waiting: VecDeque::new(),
            room,
            pace: Pace::new(Instant::now()),
            draining: false,
            starting: 0,
            starting_max,
            count: 0,
        }
    }

    /// Takes in hand what is not: what only waits for its end to be written is not.
    pub(super) fn take(
        &mut self,
        claimed: Claimed,
        fetch: impl FnOnce(&Claimed, &Hand) -> Option<JoinHandle<Duration>>,
    ) {
        let key = claimed.record.execution.key();
        if self.held.get(&key).is_some_and(|held| !matches!(held.phase, Phase::Finishing)) {
            return;
        }
        self.count += 1;
        let hand = Hand { stop: CancellationToken::new(), number: self.count };
        let fetching = fetch(&claimed, &hand);
        self.held.insert(key, Held { hand: hand.clone(), phase: Phase::Waiting });
        let work = Work { claimed: Box::new(claimed), hand, fetching };
        self.waiting.push_back(Waiting { work, since: Instant::now() });
    }

    /// All that wait and can begin now, which hold their room from now on.
    pub(super) fn start(&mut self) -> Vec<Work> {
        let mut begin = Vec::new();
        while let Some(index) = self.room.next(self.wants())
            && let Some(Waiting { work, .. }) = self.waiting.remove(index)
        {
            self.room.begin(&work.claimed.size, work.exclusive());
            self.starting = self.starting.saturating_add(1);
            self.enter(&work.key(), &work.hand, Phase::Starting);
            begin.push(work);
        }
        begin
    }

    /// It has come so far.
    pub(super) fn enter(&mut self, key: &ExecutionKey, hand: &Hand, phase: Phase) {
        let Some(held) = self.held.get_mut(key).filter(|held| held.hand.number == hand.number) else {
            return;
        };
        if matches!(std::mem::replace(&mut held.phase, phase), Phase::Starting) {
            self.starting = self.starting.saturating_sub(1);
        }
    }

    /// It is done with.
    pub(super) fn release(&mut self, key: &ExecutionKey, hand: &Hand) {
        if self.held.get(key).is_some_and(|held| held.hand.number == hand.number) {
            self.held.remove(key);
        }
    }

    /// Puts down those that wait for room and are meant, and tells which.
    pub(super) fn put_down(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<ExecutionKey> {
        let (down, stay): (VecDeque<_>, _) = std::mem::take(&mut self.waiting).into_iter().partition(which);
        self.waiting = stay;
        let put_down = |Waiting { work, .. }: Waiting| {
            work.hand.stop.cancel();
            let key = work.key();
            self.release(&key, &work.hand);
            key
        };
        down.into_iter().map(put_down).collect()
    }

    /// Those whose inputs are made ready, in a slot or before.
    pub(super) fn starting(&self) -> u16 {
        let fetches = |it: &&Waiting| it.work.fetching.as_ref().is_some_and(|fetch| !fetch.is_finished());
        let fetching = self.waiting.iter().filter(fetches).count();
        self.starting.saturating_add(u16::try_from(fetching).unwrap_or(u16::MAX))
    }

    /// Whether that is limited.
    pub(super) fn limits_starting(&self) -> bool {
        self.starting_max > 0
    }

    /// What is free beside what waits; see [`Room::free`].
    pub(super) fn free(&self) -> Option<Free> {
        self.room.free(self.wants())
    }

    /// What to ask the schedulers for.
    pub(super) fn wish(&self, now: Instant) -> Option<Wish> {
        if self.draining {
            return None;
        }
        let mut free = self.free()?;
        let mut ahead = if self.room.is_short() { 0 } else { self.ahead(now, free.starts) };
        if self.starting_max > 0 {
            let more = self.starting_max.saturating_sub(self.starting());
            free.starts = free.starts.min(more);
            ahead = ahead.min(more - free.starts);
        }
        let idle = self.waiting.is_empty() && self.room.started() == 0;
        (free.starts > 0 || ahead > 0).then_some(Wish { free, ahead, idle })
    }

    /// While all slots are busy, half of those ahead may begin before it is asked for more: fewer questions.
    fn ahead(&self, now: Instant, starts: u16) -> u16 {
        let most = self.pace.ahead(now, self.room.slots());
        let waiting = u16::try_from(self.waiting.len()).unwrap_or(u16::MAX);
        if starts == 0 && u32::from(waiting) * 2 > u32::from(most) {
            return 0;
        }
        most.saturating_sub(waiting)
    }

    fn wants(&self) -> impl Iterator<Item = Want<'_>> {
        self.waiting.iter().map(|it| Want { size: &it.work.claimed.size, exclusive: it.work.exclusive() })
    }
}
