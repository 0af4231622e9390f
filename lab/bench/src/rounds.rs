//! Alternates bare spawns with a load on a farm, in short windows.
//!
//! A machine that others use changes its speed within seconds. A window of the load is compared with the bare spawns
//! directly before and after it, and the median of all windows is the result: neither a slow phase of the machine nor
//! one disturbed window changes it much.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    counts::{Counts, PerItem},
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    floor::{self, Floor, Spawn},
    processor::{Machine, ProcessorTimes},
    statistics::median_and_worst,
};

/// Items of the first batch, which is not measured, and minimum items of the others.
const WARM_UP: u64 = 200;
/// Shorter measurements compare no rates: one window suffices.
const RATES_MIN: Duration = Duration::from_secs(1);

/// Minimum processor time of a process in microseconds per item that the text shows.
const SHOWN_MIN_US: f64 = 0.5;

/// Maximum share of the processors that others use while rates are compared.
const OTHERS_MAX: f64 = 0.1;

/// A load of items, which are builds or actions, in batches.
pub(crate) trait Load {
    /// A batch whose items can start at once.
    type Batch;

    /// Prepares a batch of this many items. This is not measured.
    async fn prepare(&self, items: u64) -> Result<Self::Batch, BenchError>;

    /// Runs a batch; returns when its last item has ended.
    async fn run(&self, batch: Self::Batch) -> Result<(), BenchError>;
}

/// Number and length of the windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) rounds: u32,
    pub(crate) spawns: Duration,
    /// Approximate length, since a batch has a fixed number of items.
    pub(crate) load: Duration,
    /// Items of the batch whose messages are counted.
    pub(crate) counted: u64,
}

impl Windows {
    /// Windows in which the load runs for twice `each`, and bare spawns for a little more than `each`.
    pub(crate) fn of(each: Duration) -> Self {
        let (rounds, counted) = if each < RATES_MIN { (1, 400) } else { (5, 1000) };
        Self { rounds, spawns: each / 5, load: each * 2 / 5, counted }
    }
}

/// One window of the load, with the bare spawns around it.
#[derive(Debug, Clone)]
struct Round {
    items: u64,
    took: Duration,
    used: ProcessorTimes,
    /// Share of the processors that others used.
    others: f64,
    floor: Floor,
}

impl Round {
    fn rate(&self) -> f64 {
        self.items as f64 / self.took.as_secs_f64()
    }

    /// Rate of items in relation to that of bare spawns.
    fn throughput_ratio(&self) -> f64 {
        self.rate() / self.floor.rate
    }

    /// Share of the processors that others used, during the load or the bare spawns.
    fn others(&self) -> f64 {
        self.others.max(self.floor.others)
    }

    /// Processor time of the farm per item, in bare spawns.
    fn processor_ratio(&self) -> f64 {
        self.used.of_farm() / self.items as f64 / self.floor.processor_us
    }
}

/// All windows of a load, and what the servers counted.
#[derive(Debug)]
pub(crate) struct Rounds {
    rounds: Vec<Round>,
    pub(crate) counted: PerItem,
}

impl Rounds {
    /// Measures `load` and bare spawns in turn.
    pub(crate) async fn measure(
        farm: &BenchFarm,
        spawn: Spawn,
        windows: Windows,
        load: &impl Load,
    ) -> Result<Self, BenchError> {
        let warm = load.prepare(WARM_UP).await?;
        let begun = Instant::now();
        load.run(warm).await?;
        let mut last = (WARM_UP, begun.elapsed());
        let mut rounds: Vec<Round> = Vec::new();
        let before = Counts::read(farm).await?;
        let mut floor = floor::measure(spawn, windows.spawns).await?;
        for _ in 0..windows.rounds {
            let items = items_in(windows.load, last).max(WARM_UP);
            let batch = load.prepare(items).await?;
            let (used, machine) = (ProcessorTimes::read(farm)?, Machine::now()?);
            load.run(batch).await?;
            let used = ProcessorTimes::read(farm)?.since(&used);
            let (took, others) = machine.used_by_others(used.all())?;
            let next = floor::measure(spawn, windows.spawns).await?;
            rounds.push(Round { items, took, used, others, floor: floor.between(next) });
            (last, floor) = ((items, took), next);
        }
        let items = rounds.iter().map(|round| round.items).sum();
        let counted = Counts::read(farm).await?.since(&before, items);
        let batch = load.prepare(windows.counted).await?;
        let counted = counted.with_messages(farm, windows.counted, load.run(batch)).await?;
        Ok(Self { rounds, counted })
    }

    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median_and_worst(&mut self.rounds.iter().map(of).collect::<Vec<_>>()).0
    }

    /// Bare spawns per second.
    pub(crate) fn spawn_rate(&self) -> f64 {
        self.median(|round| round.floor.rate)
    }

    /// Processor time in microseconds of a bare spawn.
    pub(crate) fn spawn_processor_us(&self) -> f64 {
        self.median(|round| round.floor.processor_us)
    }

    /// Number of items per second.
    pub(crate) fn rate(&self) -> f64 {
        self.median(Round::rate)
    }

    /// Rate of items in relation to that of bare spawns.
    pub(crate) fn throughput_ratio(&self) -> f64 {
        self.median(Round::throughput_ratio)
    }

    /// Share of the processors that others used.
    pub(crate) fn others(&self) -> f64 {
        self.median(Round::others)
    }

    /// The throughput ratio, unless others used so much of the processors in most windows that it says nothing: they
    /// displace the two threads of bare spawns more than the many threads of a farm.
    pub(crate) fn undisturbed_throughput_ratio(&self) -> Option<f64> {
        (self.others() <= OTHERS_MAX).then(|| self.throughput_ratio())
    }

    /// Processor time of the farm per item, in bare spawns.
    pub(crate) fn processor_ratio(&self) -> f64 {
        self.median(Round::processor_ratio)
    }

    /// Processor time in microseconds per item, by name of the process.
    pub(crate) fn processor_us(&self) -> BTreeMap<String, f64> {
        let (mut sum, mut items) = (ProcessorTimes::default(), 0.0);
        for round in &self.rounds {
            sum.add(&round.used);
            items += round.items as f64;
        }
        sum.per(items)
    }

    /// Figures of the processor time and of the load of the servers per `item`.
    pub(crate) fn cost(&self, item: &str) -> Figures {
        let mut figures = Figures::default();
        figures.figure("others_percent", "processors used by others", self.others() * 100.0, "%");
        let ratio = format!("processor time per {item}, in bare spawns");
        figures.figure("processor_ratio", &ratio, self.processor_ratio(), "");
        let spawn = "processor time of a bare spawn";
        figures.figure("spawn_processor_us", spawn, self.spawn_processor_us(), "us");
        let times = self.processor_us();
        for (name, time) in times.iter().filter(|(_, time)| **time >= SHOWN_MIN_US) {
            figures.line(&format!("processor time per {item}: {name}"), *time, "us");
        }
        figures.field("processor_us", serde_json::json!(times));
        figures.append(self.counted.figures(item));
        figures
    }
}

/// Items that a window has room for, if `items` took the time `took`.
pub(crate) fn items_in(window: Duration, (items, took): (u64, Duration)) -> u64 {
    let room = u128::from(items) * window.as_micros() / took.as_micros().max(1);
    u64::try_from(room).unwrap_or(u64::MAX)
}
