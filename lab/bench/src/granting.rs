//! `forebay bench farm`: measures how fast real schedulers grant actions to many light executors, and at what cost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, builder::RangedI64ValueParser};
use command_line::failure::say;

use crate::{
    accepted::{self, Acceptor},
    counts::{Counts, PerItem},
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    index_wait::index_shows,
    ledger::{Ledger, Tally},
    light_executors::{self, Fleet, LightExecutors, RunTimes},
    memory::Memory,
    processor::{Machine, ProcessorTimes},
    replay::{self, ReplayArgs},
    report::BenchReport,
    statistics::Percentiles,
};

/// Number of actions whose messages are counted.
const COUNTED: u64 = 1000;
/// Default number of unfinished actions, if the executors have room for twice as many.
const IN_FLIGHT_MAX: usize = 256;
/// Minimum processor time of a process in microseconds per grant that the text shows.
const SHOWN_MIN_US: f64 = 0.5;
/// Time for which the farm is measured before actions start.
const IDLE: Duration = Duration::from_secs(2);

/// Options of `forebay bench farm`, which starts servers and schedulers in temporary folders.
///
/// The executors are tasks of this process: they report room, accept grants and write results, and run nothing. A list
/// of numbers measures each combination on a farm of its own. With `--replay`, the farm runs a stream of jobs, and their
/// waits are compared with those of the simulator.
#[derive(Debug, Args)]
pub(crate) struct FarmArgs {
    /// Number of executors of the farm
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1000", value_parser = positive())]
    executors: Vec<u32>,
    /// Number of grants that are measured, after a tenth of that
    #[arg(long, value_name = "M", default_value_t = 50_000)]
    actions: u64,
    /// Number of scheduler processes
    #[arg(long, value_name = "S,...", value_delimiter = ',', default_value = "1", value_parser = positive())]
    schedulers: Vec<u32>,
    /// Number of groups that the actions belong to
    #[arg(long, value_name = "G", default_value_t = 10, value_parser = positive())]
    groups: u32,
    /// Number of actions that wait throughout. 0: the executors have room for all, and latency is measured
    #[arg(long, value_name = "W,...", value_delimiter = ',', default_value = "0")]
    waiting: Vec<u64>,
    /// Number of actions that an executor runs in parallel
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    slots: u16,
    /// Number of unfinished actions besides the waiting ones [default: half of the slots, at most 256]
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// Run time of each action in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    run_ms: u64,
    /// Number of EMERGENCY actions of the first group, accepted one after the other behind the waiting ones, whose wait for
    /// a grant is measured
    #[arg(long, value_name = "N", default_value_t = 0)]
    emergency: u64,
    #[command(flatten)]
    replay: ReplayArgs,
}

fn positive() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..)
}

/// One measurement, with a farm of its own.
#[derive(Debug, Clone, Copy)]
struct Case {
    executors: u32,
    schedulers: u32,
    waiting: u64,
}

impl Case {
    fn key(self) -> String {
        let Self { executors, schedulers, waiting } = self;
        format!("executors_{executors}_schedulers_{schedulers}_waiting_{waiting}")
    }

    fn title(self) -> String {
        let Self { executors, schedulers, waiting } = self;
        format!("executors: {executors}, schedulers: {schedulers}, waiting actions: {waiting}")
    }
}

impl FarmArgs {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for executors in &self.executors {
            for schedulers in &self.schedulers {
                cases.extend(self.waiting.iter().map(|waiting| Case {
                    executors: *executors,
                    schedulers: *schedulers,
                    waiting: *waiting,
                }));
            }
        }
        cases
    }

    /// The executors of a case, all of one pool.
    fn fleet(&self, case: Case) -> Result<Fleet, BenchError> {
        let pool = Arc::new(light_executors::pool(accepted::pool()?, self.slots, BTreeMap::new()));
        let pools = (0..case.executors).map(|_| pool.clone()).collect();
        Ok(Fleet { pools, slots: self.slots, run: RunTimes::Same(Duration::from_millis(self.run_ms)) })
    }

    fn in_flight(&self, case: Case) -> usize {
        let slots = usize::try_from(case.executors).unwrap_or(usize::MAX) * usize::from(self.slots);
        self.in_flight.unwrap_or_else(|| (slots / 2).min(IN_FLIGHT_MAX)).max(1)
    }
}

/// Measures all combinations of the options, or replays a stream.
pub(crate) async fn measure(args: &FarmArgs) -> Result<BenchReport, BenchError> {
    if let Some(stream) = &args.replay.replay {
        return Box::pin(replay::measure(stream, &args.replay, &args.schedulers)).await;
    }
    let mut figures = Figures::default();
    figures.field("actions", args.actions).field("groups", args.groups);
    figures.field("slots", args.slots).field("run_ms", args.run_ms);
    let mut first = None;
    for case in args.cases() {
        say(&format!("measuring grants, {}", case.title()));
        let (rate, mut found) = Box::pin(measure_case(args, case)).await?;
        match first {
            None => first = Some(rate),
            Some(first) => {
                found.figure("to_first_ratio", "rate relative to the first", rate / first, "");
            }
        }
        figures.lines.push(case.title());
        figures.part(&case.key(), found);
    }
    let options = format!(", {} grants, {} groups, {} slots", args.actions, args.groups, args.slots);
    Ok(BenchReport::new(&options, figures, Memory::default()))
}

/// The rate of grants and all figures of one case.
async fn measure_case(args: &FarmArgs, case: Case) -> Result<(f64, Figures), BenchError> {
    let mut farm = BenchFarm::of_servers().await?;
    for number in 1..=case.schedulers {
        farm.scheduler(&format!("scheduler-{number}"), &[]).await?;
    }
    let in_flight = args.in_flight(case);
    let ledger = Arc::new(Ledger::new(in_flight));
    let executors = LightExecutors::start(&farm, args.fleet(case)?, ledger.clone()).await?;
    let acceptor = Acceptor::new(farm.client.bus().clone(), args.groups, ledger.clone())?;
    let (actions, emergency) = (args.actions.max(1), args.emergency);
    let bench = Bench { farm: &farm, case, actions, emergency, acceptor: &acceptor, ledger: &ledger };
    let measured = async {
        let redis_bytes = bench.fill().await?;
        let idle = bench.idle().await?;
        executors.open().await;
        let measured = bench.measure().await?;
        Ok::<_, BenchError>((redis_bytes, idle, measured))
    };
    let measured = tokio::select! {
        measured = measured => measured,
        error = executors.failed() => Err(error),
    };
    executors.end().await;
    let (redis_bytes, idle, measured) = measured?;
    let mut figures = measured.figures(case);
    for (name, percent) in &idle {
        figures.line(&format!("processor while nothing runs: {name}"), *percent, "%");
    }
    figures.field("idle_processor_percent", serde_json::json!(idle));
    figures.field("in_flight", in_flight);
    if let Some(bytes) = redis_bytes {
        figures.figure("redis_bytes_per_waiting", "Redis memory per waiting action", bytes, "B");
    }
    farm.stop().await;
    Ok((measured.rate(), figures))
}

/// A farm with executors, and the actions for them.
struct Bench<'a> {
    farm: &'a BenchFarm,
    case: Case,
    actions: u64,
    emergency: u64,
    acceptor: &'a Acceptor,
    ledger: &'a Ledger,
}

/// What a number of grants took.
struct Measured {
    grants: u64,
    took: Duration,
    used: ProcessorTimes,
    /// Share of the processors that other processes used.
    others: f64,
    counted: PerItem,
    tally: Tally,
    /// Milliseconds that EMERGENCY actions waited for their grants.
    emergency: Option<Percentiles>,
}

impl Bench<'_> {
    /// Waits until all executors are known, then writes the waiting actions. Returns the memory of Redis in bytes for
    /// each of them, if there are any.
    async fn fill(&self) -> Result<Option<f64>, BenchError> {
        let executors = u64::from(self.case.executors);
        self.until("the executors are known", |queue| (queue.executors, executors)).await?;
        if self.case.waiting == 0 {
            return Ok(None);
        }
        let before = self.farm.redis_bytes().await?;
        say(&format!("accepting {} actions", self.case.waiting));
        self.acceptor.fill(self.case.waiting).await?;
        self.until("the actions wait", |queue| (queue.waiting, self.case.waiting)).await?;
        let bytes = self.farm.redis_bytes().await?.saturating_sub(before);
        Ok(Some(bytes as f64 / self.case.waiting as f64))
    }

    /// Percentage of one processor that each process uses while no action starts.
    async fn idle(&self) -> Result<BTreeMap<String, f64>, BenchError> {
        let (before, begun) = (ProcessorTimes::read(self.farm)?, Instant::now());
        tokio::time::sleep(IDLE).await;
        let used = ProcessorTimes::read(self.farm)?.since(&before);
        let percents = used.per(begun.elapsed().as_secs_f64() * 1e4);
        Ok(percents.into_iter().filter(|(_, percent)| *percent > 0.0).collect())
    }

    /// Waits until a number of the index, the first of a pair, reaches the second.
    async fn until(
        &self,
        what: &str,
        numbers: impl Fn(&index::actions::Queue) -> (u64, u64),
    ) -> Result<(), BenchError> {
        let pool = accepted::pool()?;
        index_shows(self.farm, std::iter::once(&pool), what, numbers).await
    }

    /// Accepts actions as places get free, and measures their grants.
    async fn measure(&self) -> Result<Measured, BenchError> {
        let warm_up = self.actions / 10;
        let feed = self.acceptor.feed(warm_up + self.actions);
        let ((), mut measured) = tokio::try_join!(feed, self.window(warm_up))?;
        if self.case.waiting == 0 {
            let run = async {
                let granted = self.ledger.count();
                tokio::try_join!(self.acceptor.feed(COUNTED), self.ledger.until(granted + COUNTED)).map(drop)
            };
            measured.counted = measured.counted.with_messages(self.farm, COUNTED, run).await?;
        }
        if self.emergency > 0 {
            measured.emergency = Some(self.emergencies().await?);
        }
        Ok(measured)
    }

    /// Accepts EMERGENCY actions one after the other, and meanwhile others as places get free.
    async fn emergencies(&self) -> Result<Percentiles, BenchError> {
        tokio::select! {
            fed = self.acceptor.feed(u64::MAX) => {
                fed.and_then(|()| Err(BenchError::plain("no more actions are accepted")))
            }
            waits = self.acceptor.emergencies(self.emergency) => Ok(Percentiles::of(&mut waits?)),
        }
    }

    /// Measures the grants after the first `warm_up`.
    async fn window(&self, warm_up: u64) -> Result<Measured, BenchError> {
        self.ledger.until(warm_up).await?;
        let counts = Counts::read(self.farm).await?;
        let (used, machine) = (ProcessorTimes::read(self.farm)?, Machine::now()?);
        self.ledger.begin();
        let (before, begun) = (self.ledger.count(), Instant::now());
        self.ledger.until(warm_up + self.actions).await?;
        let (took, grants) = (begun.elapsed(), self.ledger.count().saturating_sub(before).max(1));
        let tally = self.ledger.tally();
        let used = ProcessorTimes::read(self.farm)?.since(&used);
        let (_, others) = machine.used_by_others(used.all())?;
        let counted = Counts::read(self.farm).await?.since(&counts, grants);
        Ok(Measured { grants, took, used, others, counted, tally, emergency: None })
    }
}

impl Measured {
    /// Number of grants per second.
    fn rate(&self) -> f64 {
        self.grants as f64 / self.took.as_secs_f64()
    }

    fn figures(&self, case: Case) -> Figures {
        let mut figures = Figures::default();
        figures.figure("grants_per_s", "grants", self.rate(), "/s");
        if case.waiting == 0 {
            figures.percentiles("latency_ms", "ACTION_ACCEPTED to grant", self.tally.latency, "ms");
        }
        if let Some(waits) = self.emergency {
            let what = "ACTION_ACCEPTED of an EMERGENCY to grant";
            figures.percentiles("emergency_wait_ms", what, waits, "ms");
        }
        figures.figure("others_percent", "processors used by others", self.others * 100.0, "%");
        let times = self.used.per(self.grants as f64);
        let all = self.used.of_farm() / self.grants as f64;
        figures.figure("farm_processor_us", "processor time per grant: farm", all, "us");
        for (name, time) in times.iter().filter(|(_, time)| **time >= SHOWN_MIN_US) {
            figures.line(&format!("processor time per grant: {name}"), *time, "us");
        }
        figures.field("processor_us", serde_json::json!(times));
        figures.append(self.counted.figures("grant"));
        figures.figure("repeated_grants", "grants of running executions", self.tally.repeated, "");
        figures.figure("grants_beyond_room", "grants without a free slot", self.tally.beyond, "");
        figures.figure("room_requests", "requests for the room of an executor", self.tally.asked, "");
        figures.figure("cancel_orders", "orders to cancel an action", self.tally.cancelled, "");
        figures
    }
}
