//! Pools whose number of processes follows a plan: which processes start, drain, and stop.
//!
//! Nothing that runs is ended: a process is told to take nothing new first, and is stopped once it says that it runs nothing.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    str::FromStr,
    time::{Duration, Instant},
};

use model::{ParseScaledPoolError, ScaledPool};
use settings::Settings;

use super::services;

/// `POOL=MIN..MAX`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pool: ScaledPool,
    min: u16,
    max: u16,
}

/// What is no `POOL=MIN..MAX`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseBoundsError {
    /// Not of that form.
    #[error("a pool, the least and the most of its processes are expected, as in workers=0..4")]
    Form,
    /// No pool.
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

impl Bounds {
    /// Over what the settings say of the pool.
    pub(super) fn apply(&self, settings: &mut Settings) {
        let scaling = settings.autoscale.entry(self.pool.clone()).or_default();
        (scaling.min, scaling.max) = (self.min, self.max);
    }
}

/// What the heartbeats of a process say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// When the last one came.
    pub(super) at: Instant,
    /// Whether it takes nothing new.
    pub(super) draining: bool,
    /// Whether it runs something.
    pub(super) busy: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Have all processes of the pool say what they do.
    Ask,
    /// Start this one.
    Start(String),
    /// Tell this one to take nothing new.
    Drain(String),
    /// Tell this one to take work again.
    Resume(String),
    /// End this one: it runs nothing, and will not.
    Stop(String),
}

/// The processes of a pool, by number.
#[derive(Debug)]
pub(super) struct Pool {
    name: ScaledPool,
    /// As many it begins with.
    first: u16,
    target: u64,
    members: BTreeMap<u32, Member>,
    asked: Option<Instant>,
    /// Since when there are too many.
    surplus: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    stage: Stage,
    /// Since when it is in that stage: what was heard before tells of another.
    since: Instant,
    born: Instant,
    /// Whether users were told where its metrics are.
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Takes,
    Drains {
        idle: Option<Instant>,
    },
    /// It was to go and is to stay: it takes work again once it has heard so.
    Resumes,
    Stops,
}

/// How long heartbeats that were asked for may take.
const HEAR: Duration = Duration::from_millis(300);
/// For so long a draining process says that it runs nothing before that is believed: what it was given just before may begin.
const SURE: Duration = Duration::from_millis(500);
/// How often draining processes are asked.
const ASK: Duration = Duration::from_secs(1);
/// How often is looked while something is on its way.
pub(super) const LOOK: Duration = Duration::from_millis(100);

impl Pool {
    /// Those of the settings that a farm on this machine can scale; the others are for who runs their executors.
    pub(super) fn all(settings: &Settings) -> Vec<Self> {
        let ours = |pool: &ScaledPool| match pool {
            ScaledPool::Workers => true,
            ScaledPool::Executors(pool) => pool.as_str() == settings.pool,
        };
        // A pool is known from its first executor on: without one, actions would be refused in the place of waiting.
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

    /// Which pool.
    pub(super) fn name(&self) -> &ScaledPool {
        &self.name
    }

    /// What its processes run.
    pub(super) fn service(&self) -> &'static str {
        match self.name {
            ScaledPool::Workers => services::WORKER,
            ScaledPool::Executors(_) => services::EXECUTOR,
        }
    }

    fn process(&self, number: u32) -> String {
        format!("{}-{number}", self.service())
    }

    /// The processes that it begins with, which are started with the farm.
    pub(super) fn begin(&mut self) -> Vec<String> {
        let now = Instant::now();
        let born = |number| (number, Member { stage: Stage::Takes, since: now, born: now, listed: true });
        self.members = (1..=u32::from(self.first)).map(born).collect();
        self.names()
    }

    /// So many processes are to take work.
    pub(super) fn want(&mut self, target: u64) {
        self.target = target;
    }

    /// The processes there are.
    pub(super) fn names(&self) -> Vec<String> {
        self.members.keys().map(|number| self.process(*number)).collect()
    }

    /// Of these, those whose metrics nobody was told of.
    pub(super) fn unlisted(&self) -> Vec<String> {
        let new = self.members.iter().filter(|(_, member)| !member.listed);
        new.map(|(number, _)| self.process(*number)).collect()
    }

    /// Users were told of this one.
    pub(super) fn list(&mut self, name: &str) {
        if let Some(member) = self.number(name).and_then(|number| self.members.get_mut(&number)) {
            member.listed = true;
        }
    }

    /// This one is gone.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(number) = self.number(name) {
            self.members.remove(&number);
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        name.strip_prefix(self.service())?.strip_prefix('-')?.parse().ok()
    }

    /// Whether something is on its way, so that it is to be looked at again soon.
    pub(super) fn is_moving(&self) -> bool {
        let settled = |member: &Member| member.stage == Stage::Takes && member.listed;
        self.surplus.is_some() || !self.members.values().all(settled)
    }

    /// What is to be done at `now`, by what was `heard` of each process.
    pub(super) fn steps(&mut self, heard: impl Fn(&str) -> Option<Heard>, now: Instant) -> Vec<Step> {
        let heard: BTreeMap<u32, Heard> = self
            .members
            .iter()
            .filter_map(|(number, member)| {
                let heard = heard(&self.process(*number)).filter(|heard| heard.at >= member.since)?;
                Some((*number, heard))
            })
            .collect();
        let mut steps = self.let_go(&heard, now);
        // One that someone else drains takes no work either.
        let takes = |(number, member): (&u32, &Member)| {
            let drained = heard.get(number).is_some_and(|heard| heard.draining);
            member.stage == Stage::Resumes || (member.stage == Stage::Takes && !drained)
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
        // What they did a while ago is not what they do now.
        let drains = self.members.values().any(|member| matches!(member.stage, Stage::Drains { .. }));
        let asks = since == now || (drains && self.asked.is_none_or(|at| now.duration_since(at) >= ASK));
        if asks && !steps.contains(&Step::Ask) {
            self.asked = Some(now);
            steps.push(Step::Ask);
        }
        steps
    }

    /// Stops those that drained, and tells those again that do not know what they should do.
    fn let_go(&mut self, heard: &BTreeMap<u32, Heard>, now: Instant) -> Vec<Step> {
        let service = self.service();
        let again = self.asked.is_none_or(|at| now.duration_since(at) >= ASK);
        let (mut steps, mut asks) = (Vec::new(), false);
        for (number, member) in &mut self.members {
            let name = format!("{service}-{number}");
            let idle = match member.stage {
                Stage::Drains { idle } => idle,
                Stage::Resumes if heard.get(number).is_some_and(|heard| !heard.draining) => {
                    member.stage = Stage::Takes;
                    continue;
                }
                Stage::Resumes => {
                    asks |= again;
                    steps.extend(again.then_some(Step::Resume(name)));
                    continue;
                }
                Stage::Takes | Stage::Stops => continue,
            };
            asks |= again;
            match heard.get(number) {
                Some(heard) if heard.draining && !heard.busy => {
                    let since = idle.unwrap_or(now);
                    let sure = now.duration_since(since) >= SURE;
                    member.stage = if sure { Stage::Stops } else { Stage::Drains { idle: Some(since) } };
                    steps.extend(sure.then_some(Step::Stop(name)));
                }
                Some(heard) if heard.draining => member.stage = Stage::Drains { idle: None },
                // It was not heard since, or is another process by now.
                Some(_) | None => {
                    member.stage = Stage::Drains { idle: None };
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

    /// Takes back those that were to go, the last first, then starts new ones.
    fn grow(&mut self, mut missing: u64, now: Instant, steps: &mut Vec<Step>) {
        let mut drains: Vec<(Instant, u32)> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.stage, Stage::Drains { .. }))
            .map(|(number, member)| (member.since, *number))
            .collect();
        drains.sort_unstable();
        while missing > 0
            && let Some((_, number)) = drains.pop()
        {
            self.set(number, Stage::Resumes, now);
            steps.push(Step::Resume(self.process(number)));
            missing -= 1;
        }
        let mut number = 0;
        while missing > 0 {
            number += 1;
            if let Entry::Vacant(free) = self.members.entry(number) {
                free.insert(Member { stage: Stage::Takes, since: now, born: now, listed: false });
                steps.push(Step::Start(self.process(number)));
                missing -= 1;
            }
        }
    }

    /// Has as many go: those that run nothing, and the youngest first.
    fn shrink(
        &mut self,
        surplus: u64,
        mut taking: Vec<u32>,
        heard: &BTreeMap<u32, Heard>,
        now: Instant,
        steps: &mut Vec<Step>,
    ) {
        taking.sort_by_key(|number| {
            let busy = heard.get(number).is_some_and(|heard| heard.busy);
            (busy, Reverse(self.members.get(number).map(|member| member.born)), Reverse(*number))
        });
        for number in taking.into_iter().take(usize::try_from(surplus).unwrap_or(usize::MAX)) {
            self.set(number, Stage::Drains { idle: None }, now);
            steps.push(Step::Drain(self.process(number)));
        }
    }

    fn set(&mut self, number: u32, stage: Stage, now: Instant) {
        if let Some(member) = self.members.get_mut(&number) {
            (member.stage, member.since) = (stage, now);
        }
    }
}

#[cfg(test)]
mod tests;
