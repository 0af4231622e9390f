//! The simulated farm: events in virtual time.

mod group;

use std::collections::VecDeque;

use model::{Esu, ExecutorType, GovernorRecord, Millis, Occupancy, Quota, Quotas};
use policy::{
    Allowance, ExecutorsState, GroupHead, IdleWorkspaces, QuotaTotals, Random, Spare, govern, place, weight,
};
use replay::Events;

use crate::{
    builds::Build,
    random::exponential,
    scenario::{Load, QuotaScenario},
    series::GroupSeries,
    statistics::millis,
};
use group::{Running, SimulatedGroup};

/// Interval of usage reports in seconds, as in workers and executors.
const REPORT_SECONDS: u64 = 2;

/// Workspaces without a limit: the simulation is about quotas.
const EVERY_WORKSPACE: IdleWorkspaces = IdleWorkspaces { usable: usize::MAX, all: usize::MAX, kept: 0 };

/// Result of a simulated scenario.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) groups: Vec<GroupSeries>,
    pub(crate) started: u64,
    pub(crate) finished: u64,
}

/// Events, declared in the order in which events of one instant are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Phase(usize),
    Finish { group: usize, build: u64 },
    Arrival { group: usize, phase: usize },
    Second,
    Tick,
}

struct Farm<'a> {
    scenario: &'a QuotaScenario,
    events: Events<Event>,
    groups: Vec<SimulatedGroup>,
    quotas: Quotas,
    record: GovernorRecord,
    random: Random,
    phase: usize,
    now: u64,
    started: u64,
    finished: u64,
}

pub(crate) fn simulate(scenario: &QuotaScenario) -> Recorded {
    let mut farm = Farm::new(scenario);
    let end = u64::from(scenario.seconds()) * 1000;
    while let Some((at, event)) = farm.events.pop_if(|at| at < end) {
        farm.now = at;
        farm.handle(event);
    }
    let (started, finished) = (farm.started, farm.finished);
    Recorded { groups: farm.groups.into_iter().map(|group| group.series).collect(), started, finished }
}

impl<'a> Farm<'a> {
    fn new(scenario: &'a QuotaScenario) -> Self {
        let mut quotas = Quotas::default();
        let mut groups = Vec::new();
        for group in &scenario.groups {
            let esu = Occupancy::of_each([ExecutorType::x86()], Esu::clamped(group.quota_esu));
            let series = GroupSeries::new(group.name.clone(), group.quota_esu);
            groups.push(SimulatedGroup::new(esu.clone(), series));
            quotas.groups.insert(group.name.clone(), Quota { esu });
        }
        let mut events = Events::default();
        events.push(0, Event::Second);
        events.push(0, Event::Tick);
        let mut at = 0;
        for (index, phase) in scenario.phases.iter().enumerate() {
            events.push(at, Event::Phase(index));
            at += u64::from(phase.seconds) * 1000;
        }
        let random = Random::new(scenario.seed);
        let record = GovernorRecord::default();
        Self { scenario, events, groups, quotas, record, random, phase: 0, now: 0, started: 0, finished: 0 }
    }

    fn schedule(&mut self, millis: u64, event: Event) {
        self.events.push(self.now + millis, event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Phase(index) => self.begin_phase(index),
            Event::Finish { group, build } => {
                let now = self.now;
                self.group(group).finish(build, now);
                self.finished += 1;
                self.dispatch(Some(group));
            }
            Event::Arrival { group, phase } => self.arrive(group, phase),
            Event::Second => {
                self.measure();
                self.schedule(1000, Event::Second);
            }
            Event::Tick => {
                self.tick();
                self.schedule(millis(self.scenario.governor.tick_seconds), Event::Tick);
            }
        }
    }

    fn begin_phase(&mut self, index: usize) {
        self.phase = index;
        for at in 0..self.groups.len() {
            self.group(at).waiting.clear();
            match self.load(at) {
                Load::Idle => {}
                Load::Hungry => self.refill_queue(at),
                Load::Share(_) => self.schedule_arrival(at),
            }
        }
        self.dispatch(None);
    }

    fn group(&mut self, at: usize) -> &mut SimulatedGroup {
        let Some(group) = self.groups.get_mut(at) else {
            unreachable!("group {at} is not in the scenario");
        };
        group
    }

    fn load(&self, group: usize) -> Load {
        let phase = self.scenario.phases.get(self.phase);
        phase.and_then(|phase| phase.loads.get(group)).copied().unwrap_or(Load::Idle)
    }

    fn draw_build(&mut self) -> Build {
        Build::draw(&self.scenario.builds, self.scenario.estimator, &mut self.random)
    }

    /// Refills the queue of a hungry group.
    fn refill_queue(&mut self, at: usize) {
        while self.groups.get(at).is_some_and(SimulatedGroup::has_room) {
            let build = self.draw_build();
            self.group(at).waiting.push_back(build);
        }
    }

    /// Sets the time of the next arrival for a group whose builds arrive over time.
    fn schedule_arrival(&mut self, at: usize) {
        let Load::Share(share) = self.load(at) else { return };
        let esu = share * self.group(at).series.quota;
        if esu > 0.0 {
            let builds = &self.scenario.builds;
            let gap = builds.mean_esu * builds.mean_seconds / esu * exponential(&mut self.random, 1.0);
            self.schedule(millis(gap), Event::Arrival { group: at, phase: self.phase });
        }
    }

    fn arrive(&mut self, at: usize, phase: usize) {
        if phase != self.phase {
            return;
        }
        let build = self.draw_build();
        self.group(at).waiting.push_back(build);
        self.schedule_arrival(at);
        self.dispatch(Some(at));
    }

    /// Acts as the dispatcher: draws groups at random in proportion to their quotas, and the head of each by
    /// Algorithm 1. A finish or an arrival concerns its own group alone.
    fn dispatch(&mut self, only: Option<usize>) {
        loop {
            let concerned = |(at, _): &(usize, &SimulatedGroup)| only.is_none_or(|only| only == *at);
            let heads = self.groups.iter().enumerate().filter(concerned);
            let (indices, heads): (Vec<usize>, Vec<GroupHead<u64>>) = heads
                .map(|(at, group)| {
                    let weight = weight(self.quotas.of(&group.series.group));
                    (at, GroupHead { weight, emergencies: VecDeque::new(), builds: group.startable() })
                })
                .unzip();
            let placed = place(heads, EVERY_WORKSPACE, |_| true, &mut self.random);
            if placed.is_empty() {
                return;
            }
            for placement in placed {
                let Some(at) = indices.get(placement.group) else {
                    unreachable!("group {} was not placed", placement.group);
                };
                self.start(*at);
            }
            for at in indices {
                if self.load(at) == Load::Hungry {
                    self.refill_queue(at);
                }
            }
        }
    }

    fn start(&mut self, at: usize) {
        let (id, now) = (self.started, self.now);
        let group = self.group(at);
        let Some(build) = group.waiting.pop_front() else {
            unreachable!("group {at} has no build to start");
        };
        let millis = build.millis;
        group.start(id, Running { build, since: now }, now);
        self.started += 1;
        self.schedule(millis, Event::Finish { group: at, build: id });
    }

    fn measure(&mut self) {
        let second = self.now / 1000;
        for group in &mut self.groups {
            let governed = group.governed();
            let pv = group.usage(self.now, self.scenario.builds.ramp_seconds);
            group.series.record(pv, group.in_progress().units(), &governed);
            group.report(pv, second.is_multiple_of(REPORT_SECONDS));
        }
    }

    fn tick(&mut self) {
        let x86 = ExecutorType::x86();
        let cap = self.scenario.capacity_esu.map(|esu| Occupancy::of_each([x86.clone()], Esu::clamped(esu)));
        let executors = ExecutorsState { cap: cap.unwrap_or_default(), ..ExecutorsState::default() };
        let now = self.now;
        let states =
            self.groups.iter_mut().map(|group| (group.series.group.clone(), group.state(now))).collect();
        let at = Millis(now + 1);
        self.record = govern(&self.record, &states, &executors, &self.scenario.governor, at);
        self.allow();
        self.dispatch(None);
    }

    /// Computes the allowance of each group, as dispatchers do.
    fn allow(&mut self) {
        let totals = QuotaTotals::of(&self.quotas);
        let spare = Spare::of(&self.quotas, &self.record);
        for group in &mut self.groups {
            group.allowance = Allowance::of(&group.series.group, &self.quotas, &totals, &self.record)
                .lending(spare.amount().clone());
        }
    }
}
