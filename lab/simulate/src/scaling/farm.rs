//! Runs items on processes, event by event.

use std::{collections::VecDeque, time::Duration};

use model::Millis;
use policy::autoscale::{Observation, PlannerSettings, PoolState, plan};
use replay::Events;

use super::{InvalidScaling, PoolSize, ScalingFigures, ScalingItem, ScalingScenario, pool::Pool};
use crate::statistics::{millis, rounded};

/// Number of last ended items whose mean run time estimates that of an item.
const ENDED: usize = 50;
const MINUTE: u64 = 60_000;
/// Days after the end of the scenario when the simulation gives up on items that have not ended.
const MOST_DAYS: u64 = 90;
const DAY: u64 = 24 * 60 * MINUTE;

/// How the pool is sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Planned,
    Fixed(PoolSize, u64),
}

/// Result of a run.
pub(super) struct PoolRun {
    pub(super) figures: ScalingFigures,
    /// Number of processes that accept work, one value per minute.
    pub(super) processes: Vec<u64>,
    /// Number of processes needed, one value per minute.
    pub(super) wanted: Vec<u64>,
}

/// Events, declared in the order in which events of one instant are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// An item ended on this process.
    Ended(u64, usize),
    Ready(u64),
    Tick,
}

struct Farm<'a> {
    items: &'a [ScalingItem],
    settings: &'a PlannerSettings,
    pool: Pool,
    slots: u64,
    events: Events<Event>,
    arrived: usize,
    /// Waiting items, in order of arrival.
    queue: VecDeque<usize>,
    queued_ms: u64,
    running: u64,
    now: u64,
    state: PoolState,
    arrived_at_tick: usize,
    ended_ms: VecDeque<u64>,
    meter: Meter,
}

/// Accumulated figures of a run.
#[derive(Default)]
struct Meter {
    waits: Vec<u64>,
    ended: u64,
    killed: u64,
    alive_ms: u64,
    paid_ms: u64,
    under_ms: u64,
    over_ms: u64,
    most: u64,
    changes: u64,
    turns: u64,
    grew: Option<bool>,
    by_minute: Vec<u64>,
    wanted_by_minute: Vec<u64>,
}

pub(super) fn simulate(
    scenario: &ScalingScenario,
    settings: &PlannerSettings,
    items: &[ScalingItem],
    size: Size,
) -> Result<PoolRun, InvalidScaling> {
    let mut farm = Farm {
        items,
        settings,
        pool: Pool::new(scenario.slots),
        slots: u64::from(scenario.slots),
        events: Events::default(),
        arrived: 0,
        queue: VecDeque::new(),
        queued_ms: 0,
        running: 0,
        now: 0,
        state: PoolState::default(),
        arrived_at_tick: 0,
        ended_ms: VecDeque::new(),
        meter: Meter::default(),
    };
    let count = match size {
        Size::Planned => settings.min,
        Size::Fixed(_, count) => count,
    };
    for _ in 0..count {
        let id = farm.pool.start();
        farm.pool.ready(id);
    }
    farm.next_arrival();
    if size == Size::Planned {
        farm.events.push(0, Event::Tick);
    }
    farm.run(millis(scenario.hours * 3600.0), millis(scenario.tick_seconds))?;
    Ok(farm.finish(size))
}

impl Farm<'_> {
    /// Runs until the end of the scenario, and until all items have ended.
    fn run(&mut self, horizon_ms: u64, tick_ms: u64) -> Result<(), InvalidScaling> {
        while let Some((at, event)) = self.events.pop() {
            let is_idle = self.arrived == self.items.len() && self.queue.is_empty() && self.running == 0;
            if at >= horizon_ms && is_idle {
                break;
            }
            if at > horizon_ms.saturating_add(MOST_DAYS * DAY) {
                return Err(self.endless());
            }
            self.advance(at);
            match event {
                Event::Arrival => self.arrive(),
                Event::Ended(process, item) => self.end(process, item),
                Event::Ready(process) => self.pool.ready(process),
                Event::Tick => {
                    self.tick();
                    self.events.push(at + tick_ms, Event::Tick);
                }
            }
            self.begin();
        }
        self.advance(horizon_ms.max(self.now));
        Ok(())
    }

    fn endless(&self) -> InvalidScaling {
        let items = self.items.len();
        let ended = usize::try_from(self.meter.ended).unwrap_or(usize::MAX);
        InvalidScaling::Endless { left: items.saturating_sub(ended), items, days: MOST_DAYS }
    }

    /// Advances time to `at`; the state stays the same until then.
    fn advance(&mut self, at: u64) {
        let (stages, span) = (self.pool.stages(), at - self.now);
        let wanted = (self.running + self.queue.len() as u64).div_ceil(self.slots);
        let there = stages.alive + stages.draining;
        let count = |sum: &mut u64, processes: u64| *sum = sum.saturating_add(processes.saturating_mul(span));
        count(&mut self.meter.alive_ms, stages.alive);
        count(&mut self.meter.paid_ms, there + stages.starting);
        count(&mut self.meter.under_ms, wanted.saturating_sub(there));
        count(&mut self.meter.over_ms, there.saturating_sub(wanted));
        self.meter.most = self.meter.most.max(stages.alive);
        while self.meter.by_minute.len() as u64 * MINUTE < at {
            self.meter.by_minute.push(stages.alive);
            self.meter.wanted_by_minute.push(wanted);
        }
        self.now = at;
    }

    fn next_arrival(&mut self) {
        if let Some(item) = self.items.get(self.arrived) {
            self.events.push(item.arrival_ms.max(self.now), Event::Arrival);
        }
    }

    fn arrive(&mut self) {
        let item = self.item(self.arrived);
        self.queued_ms = self.queued_ms.saturating_add(item.estimate_ms);
        self.queue.push_back(self.arrived);
        self.arrived += 1;
        self.next_arrival();
    }

    /// Starts as many items as there are free slots.
    fn begin(&mut self) {
        while let Some(at) = self.queue.front().copied() {
            let item = self.item(at);
            let Some(process) = self.pool.begin() else { return };
            self.queue.pop_front();
            self.queued_ms = self.queued_ms.saturating_sub(item.estimate_ms);
            self.running += 1;
            self.meter.waits.push(self.now - item.arrival_ms);
            self.events.push(self.now.saturating_add(item.duration_ms), Event::Ended(process, at));
        }
    }

    fn end(&mut self, process: u64, at: usize) {
        self.meter.killed += u64::from(!self.pool.end(process));
        self.running -= 1;
        self.meter.ended += 1;
        if self.ended_ms.len() >= ENDED {
            self.ended_ms.pop_front();
        }
        self.ended_ms.push_back(self.item(at).duration_ms);
    }

    fn item(&self, at: usize) -> ScalingItem {
        let Some(item) = self.items.get(at) else {
            unreachable!("item {at} is not in the scenario");
        };
        *item
    }

    fn observe(&self) -> Observation {
        let stages = self.pool.stages();
        let oldest = self.queue.front().and_then(|at| self.items.get(*at));
        let ended = self.ended_ms.len() as u64;
        Observation {
            queued_work: Duration::from_millis(self.queued_ms),
            waiting: self.queue.len() as u64,
            running: self.running,
            arrived: (self.arrived - self.arrived_at_tick) as u64,
            service: Duration::from_millis(self.ended_ms.iter().sum::<u64>() / ended.max(1)),
            oldest_wait: Duration::from_millis(oldest.map_or(0, |item| self.now - item.arrival_ms)),
            slots: self.slots,
            alive: stages.alive,
            busy: stages.busy,
            starting: stages.starting,
            draining: stages.draining,
        }
    }

    /// Runs the planner and applies its decision.
    fn tick(&mut self) {
        let seen = self.observe();
        let (plan, state) = plan(&self.state, &seen, self.settings, Millis(self.now));
        self.state = state;
        self.arrived_at_tick = self.arrived;
        let has = seen.processes();
        if plan.desired == has {
            return;
        }
        let grew = plan.desired > has;
        self.meter.changes += 1;
        self.meter.turns += u64::from(self.meter.grew.is_some_and(|before| before != grew));
        self.meter.grew = Some(grew);
        for _ in has..plan.desired {
            let process = self.pool.start();
            let start_up = u64::try_from(self.settings.start_up.as_millis()).unwrap_or(u64::MAX);
            self.events.push(self.now.saturating_add(start_up), Event::Ready(process));
        }
        self.pool.drain(has.saturating_sub(plan.desired));
    }

    fn finish(mut self, size: Size) -> PoolRun {
        let sized = match size {
            Size::Planned => PoolSize::Planned,
            Size::Fixed(sized, _) => sized,
        };
        let meter = &mut self.meter;
        let rounded = |number| rounded(number, 3);
        let seconds = |ms: u64| ms as f64 / 1000.0;
        meter.waits.sort_unstable();
        let count = meter.waits.len();
        let waited_ms = meter.waits.iter().fold(0_u64, |sum, ms| sum.saturating_add(*ms));
        let rank = |percent: usize| (count * percent).div_ceil(100).checked_sub(1);
        let wait = |percent| rank(percent).and_then(|at| meter.waits.get(at)).map_or(0.0, |ms| seconds(*ms));
        let target = self.settings.target_wait;
        let in_time = meter.waits.iter().filter(|ms| Duration::from_millis(**ms) <= target).count();
        let hours = seconds(meter.paid_ms) / 3600.0;
        let figures = ScalingFigures {
            sized,
            ended: meter.ended,
            killed: meter.killed,
            wait_mean_s: rounded(seconds(waited_ms) / count.max(1) as f64),
            wait_p95_s: wait(95),
            wait_max_s: wait(100),
            in_time_pct: rounded(100.0 * in_time as f64 / count.max(1) as f64),
            processes_mean: rounded(meter.alive_ms as f64 / self.now.max(1) as f64),
            processes_max: meter.most,
            under_provisioned_s: rounded(seconds(meter.under_ms)),
            over_provisioned_s: rounded(seconds(meter.over_ms)),
            process_hours: rounded(hours),
            cost: rounded(hours * self.settings.cost_per_process_hour),
            changes: meter.changes,
            turns: meter.turns,
        };
        PoolRun {
            figures,
            processes: std::mem::take(&mut meter.by_minute),
            wanted: std::mem::take(&mut meter.wanted_by_minute),
        }
    }
}
