//! Autoscaled pools: decides which processes start, drain and stop to reach the planned number.
//!
//! Running work is never interrupted: a process drains first, and is stopped once it reports that it is idle.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    str::FromStr,
    time::{Duration, Instant},
};

use invariant::impossible;
use model::{ParseScaledPoolError, ScaledPool};
use settings::Settings;

use crate::names;

/// Bounds of a pool: `POOL=MIN..MAX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pool: ScaledPool,
    min: u16,
    max: u16,
}

/// A text that is not of the form `POOL=MIN..MAX`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseBoundsError {
    #[error("expected POOL=MIN..MAX, e.g. workers=0..4")]
    Form,
    #[error(transparent)]
    Pool(#[from] ParseScaledPoolError),
}

impl FromStr for Bounds {
    type Err = ParseBoundsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pool, bounds) = text.split_once('=').ok_or(ParseBoundsError::Form)?;
        let (min, max) = bounds.split_once("..").ok_or(ParseBoundsError::Form)?;
        let number = |text: &str| text.parse().map_err(|_| ParseBoundsError::Form);
        Ok(Self { pool: pool.parse()?, min: number(min)?, max: number(max)? })
    }
}

/// Service that the processes of a pool run.
pub(crate) fn service_of(pool: &ScaledPool) -> &'static str {
    match pool {
        ScaledPool::Workers => names::WORKER,
        ScaledPool::Executors(_) => names::EXECUTOR,
    }
}

impl Bounds {
    /// Sets the bounds of the pool in the settings.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        let scaling = settings.autoscale.entry(self.pool.clone()).or_default();
        (scaling.min, scaling.max) = (self.min, self.max);
    }
}

/// State of a process from its heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeartbeatState {
    /// Time of the last heartbeat.
    pub(crate) at: Instant,
    /// Whether it accepts no new work.
    pub(crate) draining: bool,
    /// Whether it runs anything.
    pub(crate) busy: bool,
}

/// A step towards the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Request heartbeats from all processes of the pool.
    Ask,
    /// Start the process with this name.
    Start(String),
    /// Order the process to accept no new work.
    Drain(String),
    /// Order the process to accept work again.
    Resume(String),
    /// Stop the process, which is drained and idle.
    Stop(String),
}

/// The processes of a pool, by number.
#[derive(Debug)]
pub(crate) struct Pool {
    name: ScaledPool,
    /// Initial number of processes.
    first: u16,
    target: u64,
    members: BTreeMap<u32, Member>,
    asked: Option<Instant>,
    /// Time since which there are too many processes.
    surplus: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    stage: MemberStage,
    /// Begin of the stage; earlier heartbeats do not apply to it.
    since: Instant,
    born: Instant,
    /// Whether its metrics URL has been published.
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberStage {
    Accepting,
    Draining {
        idle: Option<Instant>,
    },
    /// It was draining and is needed again: it accepts work once it has received the order.
    Resuming,
    Stopping,
}

/// Time limit for requested heartbeats.
const HEAR: Duration = Duration::from_millis(300);
/// A draining process must report for this long that it is idle, since work assigned shortly before may still begin.
const SURE: Duration = Duration::from_millis(500);
/// Interval of heartbeat requests to draining processes.
const ASK: Duration = Duration::from_secs(1);
/// Interval of checks while processes start, drain or stop.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

impl Pool {
    /// The pools of the settings that this farm can scale. Other pools are scaled by the operator of their executors.
    pub(crate) fn all(settings: &Settings) -> Vec<Self> {
        let ours = |pool: &ScaledPool| match pool {
            ScaledPool::Workers => true,
            ScaledPool::Executors(pool) => pool.as_str() == settings.pool,
        };
        // A pool exists from its first executor on; without one, actions would be rejected instead of waiting.
        let first = |pool: &ScaledPool, min: u16| match pool {
            ScaledPool::Workers => min,
            ScaledPool::Executors(_) => min.max(1),
        };
        let scaled = settings.autoscale.iter().filter(|(pool, _)| ours(pool));
        scaled
            .map(|(pool, scaling)| Self {
                name: pool.clone(),
                first: first(pool, scaling.min),
                target: u64::from(first(pool, scaling.min)),
                members: BTreeMap::new(),
                asked: None,
                surplus: None,
            })
            .collect()
    }

    /// Name of the pool.
    pub(crate) fn name(&self) -> &ScaledPool {
        &self.name
    }

    /// Service that its processes run.
    pub(crate) fn service(&self) -> &'static str {
        service_of(&self.name)
    }

    fn process(&self, number: u32) -> String {
        format!("{}-{number}", self.service())
    }

    /// Names of the initial processes, which are started with the farm.
    pub(crate) fn begin(&mut self) -> Vec<String> {
        let now = Instant::now();
        let born =
            |number| (number, Member { stage: MemberStage::Accepting, since: now, born: now, listed: true });
        self.members = (1..=u32::from(self.first)).map(born).collect();
        self.names()
    }

    /// Sets the number of processes that should accept work.
    pub(crate) fn set_target(&mut self, target: u64) {
        self.target = target;
    }

    /// Names of the current processes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.members.keys().map(|number| self.process(*number)).collect()
    }

    /// Names of the processes whose metrics URL has not been published.
    pub(crate) fn unlisted(&self) -> Vec<String> {
        let new = self.members.iter().filter(|(_, member)| !member.listed);
        new.map(|(number, _)| self.process(*number)).collect()
    }

    /// Marks the metrics URL of this process as published.
    pub(crate) fn mark_listed(&mut self, name: &str) {
        match self.number(name).and_then(|number| self.members.get_mut(&number)) {
            Some(member) => member.listed = true,
            None => {
                impossible!("{name} is not in its pool");
            }
        }
    }

    /// Removes a process that has exited.
    pub(crate) fn forget(&mut self, name: &str) {
        if let Some(number) = self.number(name) {
            self.members.remove(&number);
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        name.strip_prefix(self.service())?.strip_prefix('-')?.parse().ok()
    }

    /// Whether processes start, drain or stop, so that the next check is due soon.
    pub(crate) fn is_moving(&self) -> bool {
        let settled = |member: &Member| member.stage == MemberStage::Accepting && member.listed;
        self.surplus.is_some() || !self.members.values().all(settled)
    }

    /// The steps at time `now`, given the latest heartbeat of each process.
    pub(crate) fn steps(
        &mut self,
        heard: impl Fn(&str) -> Option<HeartbeatState>,
        now: Instant,
    ) -> Vec<Step> {
        let heard: BTreeMap<u32, HeartbeatState> = self
            .members
            .iter()
            .filter_map(|(number, member)| {
                let heard = heard(&self.process(*number)).filter(|heard| heard.at >= member.since)?;
                Some((*number, heard))
            })
            .collect();
        let mut steps = self.advance_draining(&heard, now);
        // A process that an operator drains does not count as accepting work.
        let takes = |(number, member): (&u32, &Member)| {
            let drained = heard.get(number).is_some_and(|heard| heard.draining);
            member.stage == MemberStage::Resuming || (member.stage == MemberStage::Accepting && !drained)
        };
        let taking: Vec<u32> =
            self.members.iter().filter(|member| takes(*member)).map(|(number, _)| *number).collect();
        let has = taking.len() as u64;
        if has <= self.target {
            self.surplus = None;
            self.grow(self.target - has, now, &mut steps);
            return steps;
        }
        let since = *self.surplus.get_or_insert(now);
        if now.duration_since(since) >= HEAR {
            self.surplus = None;
            self.shrink(has - self.target, taking, &heard, now, &mut steps);
        }
        // Request fresh heartbeats, since older ones may be outdated.
        let drains = self.members.values().any(|member| matches!(member.stage, MemberStage::Draining { .. }));
        let asks = since == now || (drains && self.asked.is_none_or(|at| now.duration_since(at) >= ASK));
        if asks && !steps.contains(&Step::Ask) {
            self.asked = Some(now);
            steps.push(Step::Ask);
        }
        steps
    }

    /// Stops drained processes, and repeats orders to processes that have not followed them.
    fn advance_draining(&mut self, heard: &BTreeMap<u32, HeartbeatState>, now: Instant) -> Vec<Step> {
        let service = self.service();
        let again = self.asked.is_none_or(|at| now.duration_since(at) >= ASK);
        let (mut steps, mut asks) = (Vec::new(), false);
        for (number, member) in &mut self.members {
            let name = format!("{service}-{number}");
            let idle = match member.stage {
                MemberStage::Draining { idle } => idle,
                MemberStage::Resuming if heard.get(number).is_some_and(|heard| !heard.draining) => {
                    member.stage = MemberStage::Accepting;
                    continue;
                }
                MemberStage::Resuming => {
                    asks |= again;
                    steps.extend(again.then_some(Step::Resume(name)));
                    continue;
                }
                MemberStage::Accepting | MemberStage::Stopping => continue,
            };
            asks |= again;
            match heard.get(number) {
                Some(heard) if heard.draining && !heard.busy => {
                    let since = idle.unwrap_or(now);
                    let sure = now.duration_since(since) >= SURE;
                    member.stage = if sure {
                        MemberStage::Stopping
                    } else {
                        MemberStage::Draining { idle: Some(since) }
                    };
                    steps.extend(sure.then_some(Step::Stop(name)));
                }
                Some(heard) if heard.draining => member.stage = MemberStage::Draining { idle: None },
                // No heartbeat since the order, or the process was restarted.
                Some(_) | None => {
                    member.stage = MemberStage::Draining { idle: None };
                    steps.extend(again.then_some(Step::Drain(name)));
                }
            }
        }
        if asks {
            self.asked = Some(now);
            steps.push(Step::Ask);
        }
        steps
    }

    /// Resumes draining processes, the latest first, then starts new ones.
    fn grow(&mut self, mut missing: u64, now: Instant, steps: &mut Vec<Step>) {
        let mut drains: Vec<(Instant, u32)> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.stage, MemberStage::Draining { .. }))
            .map(|(number, member)| (member.since, *number))
            .collect();
        drains.sort_unstable();
        while missing > 0
            && let Some((_, number)) = drains.pop()
        {
            self.set(number, MemberStage::Resuming, now);
            steps.push(Step::Resume(self.process(number)));
            missing -= 1;
        }
        let mut number = 0;
        while missing > 0 {
            number += 1;
            if let Entry::Vacant(free) = self.members.entry(number) {
                free.insert(Member { stage: MemberStage::Accepting, since: now, born: now, listed: false });
                steps.push(Step::Start(self.process(number)));
                missing -= 1;
            }
        }
    }

    /// Drains as many processes: idle ones first, then the youngest first.
    fn shrink(
        &mut self,
        surplus: u64,
        mut taking: Vec<u32>,
        heard: &BTreeMap<u32, HeartbeatState>,
        now: Instant,
        steps: &mut Vec<Step>,
    ) {
        taking.sort_by_key(|number| {
            let busy = heard.get(number).is_some_and(|heard| heard.busy);
            (busy, Reverse(self.members.get(number).map(|member| member.born)), Reverse(*number))
        });
        for number in taking.into_iter().take(usize::try_from(surplus).unwrap_or(usize::MAX)) {
            self.set(number, MemberStage::Draining { idle: None }, now);
            steps.push(Step::Drain(self.process(number)));
        }
    }

    fn set(&mut self, number: u32, stage: MemberStage, now: Instant) {
        match self.members.get_mut(&number) {
            Some(member) => (member.stage, member.since) = (stage, now),
            None => {
                impossible!("process {number} is not in its pool");
            }
        }
    }
}

#[cfg(test)]
mod tests;
