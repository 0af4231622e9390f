//! Breaks a good history in one way: exactly one rule must detect it.

use model::{Attempt, BuildKey, Outcome, Phase, Sequence, State};

use crate::{Event, History, Kill, Random, Rule, What};

/// A way to break a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A build never ends.
    DropFinished,
    /// A build ends twice.
    DuplicateFinished,
    /// Output follows the end of the build.
    EventAfterFinished,
    /// An acknowledged build disappears without a trace.
    LoseBuild,
    /// A run starts before the previous run is dead.
    OverlapAttempts,
    /// A process outlives its build.
    ZombieTick,
    /// A build starts before it is queued.
    SwapStartedAndEnqueued,
    /// A start is missing.
    DropStarted,
    /// Output of a dead run appears in the next run.
    ConsoleOfDeadAttempt,
    /// A less urgent build is picked first, without a kill to excuse it.
    InvertPriority,
    /// Kills excuse more inversions than the limit.
    TooManyExcused,
    /// A success is reported as a failure.
    WrongOutcome,
    /// A build has more attempts than the limit.
    TooManyAttempts,
    /// A build is lost although attempts are left.
    LostTooEarly,
    /// A success whose command did not finish.
    UnfinishedSuccess,
}

impl Mutation {
    /// All ways to break a history.
    pub const ALL: [Self; 15] = [
        Self::DropFinished,
        Self::DuplicateFinished,
        Self::EventAfterFinished,
        Self::LoseBuild,
        Self::OverlapAttempts,
        Self::ZombieTick,
        Self::SwapStartedAndEnqueued,
        Self::DropStarted,
        Self::ConsoleOfDeadAttempt,
        Self::InvertPriority,
        Self::TooManyExcused,
        Self::WrongOutcome,
        Self::TooManyAttempts,
        Self::LostTooEarly,
        Self::UnfinishedSuccess,
    ];

    /// Returns the rule that this mutation breaks.
    pub fn rule(self) -> Rule {
        match self {
            Self::DropFinished | Self::DuplicateFinished | Self::EventAfterFinished | Self::LoseBuild => {
                Rule::Terminal
            }
            Self::OverlapAttempts | Self::ZombieTick => Rule::Overlap,
            Self::SwapStartedAndEnqueued | Self::DropStarted | Self::ConsoleOfDeadAttempt => Rule::Order,
            Self::InvertPriority | Self::TooManyExcused => Rule::Priority,
            Self::WrongOutcome | Self::TooManyAttempts | Self::LostTooEarly | Self::UnfinishedSuccess => {
                Rule::Outcome
            }
        }
    }

    /// Returns the history broken at a random place; `None` when it has no suitable place.
    pub fn apply(self, good: &History, random: &mut Random) -> Option<History> {
        let mut broken = good.clone();
        match self {
            Self::DropFinished => {
                // Use a build that ran: a build that ended while queued would now wait forever too.
                let (at, ..) = finished_run(&broken, random)?;
                broken.events.remove(at);
            }
            Self::DuplicateFinished => {
                let at = pick_event(&broken, random, |event| event.is(State::Finished))?;
                let again = broken.events.get(at)?.what.clone();
                append(&mut broken, at, again)?;
            }
            Self::EventAfterFinished => {
                let at = pick_event(&broken, random, |event| event.is(State::Finished))?;
                let what = What::Console { attempt: Attempt::FIRST, guard: Sequence(1), bytes: 7 };
                append(&mut broken, at, what)?;
            }
            Self::LoseBuild => {
                let promised =
                    |event: &Event| event.is(State::Finished) && good.acknowledged.contains(&event.key);
                let at = pick_event(&broken, random, promised)?;
                let key = broken.events.get(at)?.key.clone();
                broken.events.retain(|event| event.key != key);
                broken.runs.retain(|run| run.key != key);
            }
            Self::OverlapAttempts => overlap(&mut broken, random)?,
            Self::ZombieTick => {
                let (at, key, attempt) = finished_run(&broken, random)?;
                let end = broken.events.get(at)?.stored_us;
                run_mut(&mut broken, &key, attempt)?.last_us = end + 5_000_000;
            }
            Self::SwapStartedAndEnqueued => swap(&mut broken, random)?,
            Self::DropStarted => {
                // Use a build that wrote something during the run.
                let (at, key, attempt) = finished_run(&broken, random)?;
                let is = |event: &Event| event.key == key && event.is(State::InProgress);
                let fits = |event: &&Event| is(event) && event.record().is_some_and(|r| r.attempt == attempt);
                let start = broken.events.get(..at)?.iter().rposition(|event| fits(&event))?;
                broken.events.remove(start);
            }
            Self::ConsoleOfDeadAttempt => console_of_dead(&mut broken, random)?,
            Self::InvertPriority => invert(&mut broken, random, 1, false)?,
            Self::TooManyExcused => {
                let starts = broken.events.iter().filter(|event| event.is(State::InProgress)).count();
                invert(&mut broken, random, starts / 50 + 1, true)?;
            }
            Self::WrongOutcome => {
                let record = finished_mut(&mut broken, random, |_, _| true)?;
                if let Phase::Finished { result, .. } = &mut record.phase {
                    let succeeded = result.outcome == Outcome::Succeeded;
                    result.outcome = if succeeded { Outcome::Failed } else { Outcome::Succeeded };
                }
            }
            Self::TooManyAttempts => {
                let record = finished_mut(&mut broken, random, |_, attempt| attempt > Attempt::FIRST)?;
                record.build.max_attempts = Attempt(record.attempt.0 - 1);
            }
            Self::LostTooEarly => {
                let record = finished_mut(&mut broken, random, |max, attempt| attempt < max)?;
                if let Phase::Finished { result, .. } = &mut record.phase {
                    result.outcome = Outcome::Lost;
                    result.exit_code = None;
                }
            }
            Self::UnfinishedSuccess => {
                let (_, key, attempt) = finished_run(&broken, random)?;
                run_mut(&mut broken, &key, attempt)?.end_us = None;
            }
        }
        Some(broken)
    }
}

/// Returns a random event that fits.
fn pick_event(history: &History, random: &mut Random, fits: impl Fn(&Event) -> bool) -> Option<usize> {
    let all: Vec<usize> =
        history.events.iter().enumerate().filter(|(_, event)| fits(event)).map(|(at, _)| at).collect();
    random.pick(&all).copied()
}

fn append(history: &mut History, like: usize, what: What) -> Option<()> {
    let mut event = history.events.get(like)?.clone();
    event.sequence = Sequence(history.events.last()?.sequence.0 + 1);
    event.what = what;
    history.events.push(event);
    Some(())
}

/// Returns a random FINISHED event with an exit code, with its build and attempt.
fn finished_run(history: &History, random: &mut Random) -> Option<(usize, BuildKey, Attempt)> {
    let ran = |event: &Event| {
        event.record().and_then(|record| record.result()).is_some_and(|result| result.exit_code.is_some())
    };
    let at = pick_event(history, random, ran)?;
    let event = history.events.get(at)?;
    Some((at, event.key.clone(), event.record()?.attempt))
}

fn run_mut<'a>(history: &'a mut History, key: &BuildKey, attempt: Attempt) -> Option<&'a mut crate::Run> {
    history.runs.iter_mut().find(|run| run.key == *key && run.attempt == attempt)
}

fn finished_mut<'a>(
    history: &'a mut History,
    random: &mut Random,
    fits: impl Fn(Attempt, Attempt) -> bool,
) -> Option<&'a mut model::BuildRecord> {
    let good = |event: &Event| {
        let record = event.record().filter(|record| record.result().is_some_and(|r| r.exit_code.is_some()));
        record.is_some_and(|record| fits(record.build.max_attempts, record.attempt))
    };
    let at = pick_event(history, random, good)?;
    history.events.get_mut(at)?.record_mut()
}

fn overlap(history: &mut History, random: &mut Random) -> Option<()> {
    let follows = |run: &crate::Run| {
        history.runs.iter().find(|earlier| earlier.key == run.key && earlier.attempt.next() == run.attempt)
    };
    let pairs: Vec<(usize, u64)> = history
        .runs
        .iter()
        .enumerate()
        .filter_map(|(at, run)| Some((at, follows(run)?.last_us.saturating_sub(1))))
        .collect();
    let (at, start) = *random.pick(&pairs)?;
    history.runs.get_mut(at)?.start_us = start;
    Some(())
}

fn swap(history: &mut History, random: &mut Random) -> Option<()> {
    let started = pick_event(history, random, |event| event.is(State::InProgress))?;
    let key = history.events.get(started)?.key.clone();
    let queued = history.events.iter().position(|event| event.key == key && event.is(State::Enqueued))?;
    let started = history.events.iter().position(|event| event.key == key && event.is(State::InProgress))?;
    let (late, early) = (history.events.get(started)?.what.clone(), history.events.get(queued)?.what.clone());
    history.events.get_mut(queued)?.what = late;
    history.events.get_mut(started)?.what = early;
    Some(())
}

fn console_of_dead(history: &mut History, random: &mut Random) -> Option<()> {
    let late =
        |event: &Event| matches!(event.what, What::Console { attempt, .. } if attempt > Attempt::FIRST);
    let at = pick_event(history, random, late)?;
    let key = history.events.get(at)?.key.clone();
    let first = history.events.iter().find(|event| event.key == key && event.is(State::InProgress))?.sequence;
    if let What::Console { attempt, guard, .. } = &mut history.events.get_mut(at)?.what {
        (*attempt, *guard) = (Attempt::FIRST, first);
    }
    Some(())
}

/// Changes `count` pairs so that the less urgent build is picked when the more urgent one was, and
/// the other one later.
fn invert(history: &mut History, random: &mut Random, count: usize, excused: bool) -> Option<()> {
    let mut done = 0;
    for _ in 0..5000 {
        let urgent = pick_event(history, random, |event| event.is(State::InProgress))?;
        let late = pick_event(history, random, |event| event.is(State::InProgress))?;
        let Some((early_us, late_us)) = may_invert(history, urgent, late) else { continue };
        set_pick(history, urgent, late_us);
        set_pick(history, late, early_us);
        if excused {
            history.kills.push(Kill::at(early_us, "a kill that excuses"));
        } else {
            history.kills.retain(|kill| !kill.excuses(early_us));
        }
        done += 1;
        if done == count {
            return Some(());
        }
    }
    None
}

/// Returns the times of both picks, if the first build is more urgent, was picked first and was known to the
/// dispatcher that picked the second.
fn may_invert(history: &History, urgent: usize, late: usize) -> Option<(u64, u64)> {
    let (first, second) = (history.events.get(urgent)?, history.events.get(late)?);
    let (one, other) = (first.record()?, second.record()?);
    let (pick, after) = (one.invocation()?, other.invocation()?);
    let ranks = one.build.priority < other.build.priority && first.key.group == second.key.group;
    let known = first.sequence <= after.dispatched_at_sequence;
    (ranks && known && pick.dispatched_at_us < after.dispatched_at_us)
        .then_some((pick.dispatched_at_us, after.dispatched_at_us))
}

fn set_pick(history: &mut History, at: usize, time_us: u64) {
    let record = history.events.get_mut(at).and_then(Event::record_mut);
    if let Some(Phase::InProgress { invocation }) = record.map(|record| &mut record.phase) {
        invocation.dispatched_at_us = time_us;
    }
}
