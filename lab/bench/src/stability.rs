//! `forebay bench stability`: how far measured times of programs can be trusted on this machine (thesis on load balancing in
//! evaluation systems, chapter 2).

mod setups;
mod workloads;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};
use command_line::failure::say;
use futures::future::try_join_all;
use images::Image;
use policy::measurement::{Comparison, Sample, Speed, Stability, Statistic, compare};

use crate::{
    error::BenchError,
    figures::Figures,
    image_table,
    memory::Memory,
    plot_file::{PlotFile, median_row},
    report::{BenchReport, processors},
};
use setups::{Measured, Setup, Times};
use workloads::Workload;

/// Processor time of one run, in microseconds, that workloads are adjusted to.
const RUN: f64 = 60_000.0;
/// Slowdown that is injected, and how many pairs of runs a trial compares.
const SLOWDOWN: f64 = 1.03;
const PAIRS: usize = 15;
/// Smallest difference that a trial reports: half of what it must find.
const LEAST: f64 = 0.01;
/// Increase of the mean time up to which parallel runs count as undisturbed.
const DISTURBED: f64 = 1.05;

/// Axis of the plots.
const TIME_AXIS: &str = "processor time, ms";

/// Options of `forebay bench stability`.
#[derive(Debug, Args)]
pub(crate) struct StabilityArgs {
    /// Number of measured runs of each program under each condition
    #[arg(long, default_value_t = 30)]
    runs: usize,
    /// Number of trials of the detection of a slowdown
    #[arg(long, default_value_t = 50)]
    trials: usize,
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Draw the processor times of set-ups and of parallel runs into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Kinds of isolation compared with none
    Setups,
    /// Several programs at a time compared with one, and the number that do not disturb each other
    Parallel,
    /// How often a slowdown of 3 % is found, and how often one is reported that is not there
    Detection,
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &StabilityArgs) -> Result<BenchReport, BenchError> {
    let wants = |part| args.only.is_none_or(|only| only == part);
    let mut plot = PlotFile::create(args.plot.as_deref(), wants(Part::Setups) || wants(Part::Parallel))?;
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .map_err(|error| BenchError::new("cannot create a temporary folder", &error))?;
    let image = image_table::small_image(folder.path()).await?;
    let at = folder.path();
    let workloads = adjusted(at).await?;
    let mut figures = Figures::default();
    if wants(Part::Setups) {
        figures.part("setups", setups(at, &workloads, Some(&image), args.runs, &mut plot).await?);
    }
    if wants(Part::Parallel) {
        figures.part("parallel", parallel(at, &workloads, args.runs, &mut plot).await?);
    }
    if wants(Part::Detection) {
        figures.part("detection", detection(at, &workloads, args.trials).await?);
    }
    plot.write("Processor times of programs", "median and its 95 % interval")?;
    let options = format!(", {} runs of about {} ms each", args.runs, RUN / 1000.0);
    Ok(BenchReport::new(&options, figures, Memory::default()))
}

/// The workloads, each with so much work that it takes [`RUN`].
async fn adjusted(folder: &Path) -> Result<Vec<Workload>, BenchError> {
    let mut slot = Measured::start(Setup::None, 100, folder, None).await?;
    let mut all = Vec::new();
    for workload in Workload::all() {
        let took = slot.run(&workload).await?.cpu.max(1.0);
        all.push(workload.times(RUN / took));
    }
    slot.stop().await?;
    Ok(all)
}

/// The times of `runs` runs of a program in each of `count` slots at the same time; the first run of each is left out.
async fn sample(
    setup: Setup,
    count: usize,
    folder: &Path,
    (workload, image): (&Workload, Option<&Arc<Image>>),
    runs: usize,
) -> Result<Vec<Times>, BenchError> {
    let mut slots = Vec::new();
    for number in 0..count {
        slots.push(Measured::start(setup, number, folder, image).await?);
    }
    let one = async |mut slot: Measured| {
        let mut times = Vec::new();
        for run in 0..=runs {
            let of_run = slot.run(workload).await?;
            if run > 0 {
                times.push(of_run);
            }
        }
        slot.stop().await?;
        Ok::<_, BenchError>(times)
    };
    Ok(try_join_all(slots.into_iter().map(one)).await?.concat())
}

fn of_cpu(times: &[Times]) -> Result<Sample, BenchError> {
    let sample = Sample::new(times.iter().map(|time| time.cpu));
    sample.ok_or_else(|| BenchError::plain("a workload has no times"))
}

fn of_wall(times: &[Times]) -> Result<Sample, BenchError> {
    let sample = Sample::new(times.iter().map(|time| time.wall));
    sample.ok_or_else(|| BenchError::plain("a workload has no times"))
}

/// Width of the interval of the median, in percent of it.
fn width(sample: &Sample) -> f64 {
    let interval = sample.interval(Statistic::Median);
    (interval.high - interval.low) / sample.median().max(1.0) * 100.0
}

/// The standard deviation in percent of the mean.
fn spread(sample: &Sample) -> f64 {
    sample.standard_deviation() / sample.mean().max(1.0) * 100.0
}

fn words(Comparison { speed, stability }: Comparison) -> String {
    let speed = match speed {
        Speed::Faster => "faster",
        Speed::Slower => "slower",
        Speed::Same => "same",
        Speed::Unknown => "unknown",
    };
    let stability = match stability {
        Stability::Stabler => "stabler",
        Stability::LessStable => "less stable",
        Stability::Same => "same",
        Stability::Unknown => "unknown",
    };
    format!("{speed}, {stability}")
}

/// Compares each kind of isolation with none.
async fn setups(
    folder: &Path,
    workloads: &[Workload],
    image: Option<&Arc<Image>>,
    runs: usize,
    plot: &mut PlotFile,
) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    for workload in workloads {
        say(&format!("measuring {} under each kind of isolation", workload.name));
        let mut of_workload = Figures::default();
        let mut rows = Vec::new();
        let mut none: Option<Sample> = None;
        for setup in Setup::ALL.into_iter().filter(|setup| setup.runs(workload, image.is_some())) {
            let times = sample(setup, 1, folder, (workload, image), runs).await?;
            let (cpu, wall) = (of_cpu(&times)?, of_wall(&times)?);
            let compared = none.as_ref().map_or_else(String::new, |none| words(compare(&cpu, none)));
            let mut part = Figures::default();
            part.lines.push(format!(
                "{:<14} {:<22} cpu {:>7.1} ms ±{:>5.2} % (interval {:>5.2} %), wall ±{:>5.2} %  {compared}",
                workload.name,
                setup.name(),
                cpu.median() / 1000.0,
                spread(&cpu),
                width(&cpu),
                spread(&wall)
            ));
            part.field("cpu_ms", cpu.median() / 1000.0).field("cpu_spread_percent", spread(&cpu));
            part.field("cpu_interval_percent", width(&cpu)).field("wall_spread_percent", spread(&wall));
            part.field("compared", compared);
            of_workload.part(setup.name(), part);
            rows.push(median_row(setup.name(), &cpu));
            none.get_or_insert(cpu);
        }
        figures.part(workload.name, of_workload);
        plot.add(&format!("{}: isolation", workload.name), TIME_AXIS, rows);
    }
    Ok(figures)
}

/// Compares several programs at a time with one, up to twice the processors.
async fn parallel(
    folder: &Path,
    workloads: &[Workload],
    runs: usize,
    plot: &mut PlotFile,
) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let most = processors() * 2;
    let mut undisturbed = most;
    for workload in workloads {
        say(&format!("measuring {} beside others like it", workload.name));
        let mut rows = Vec::new();
        let mut alone: Option<Sample> = None;
        for count in 1..=most {
            let times = sample(Setup::Kept, count, folder, (workload, None), runs).await?;
            let (cpu, wall) = (of_cpu(&times)?, of_wall(&times)?);
            let compared =
                alone.as_ref().map(|alone| (compare(&cpu, alone), cpu.mean() / alone.mean().max(1.0)));
            let is_disturbed = compared.is_some_and(|(compared, ratio)| {
                compared.stability == Stability::LessStable || ratio > DISTURBED
            });
            if is_disturbed {
                undisturbed = undisturbed.min(count.saturating_sub(1));
            }
            let mut part = Figures::default();
            part.lines.push(format!(
                "{:<14} {count:>2} at a time           cpu {:>7.1} ms ±{:>5.2} %, wall {:>7.1} ms ±{:>6.2} %  {}",
                workload.name,
                cpu.mean() / 1000.0,
                spread(&cpu),
                wall.mean() / 1000.0,
                spread(&wall),
                compared.map_or_else(String::new, |(compared, _)| words(compared))
            ));
            part.field("cpu_ms", cpu.mean() / 1000.0).field("cpu_spread_percent", spread(&cpu));
            part.field("wall_spread_percent", spread(&wall));
            figures.part(&format!("{}_{count}", workload.name), part);
            rows.push(median_row(format!("{count} at a time"), &cpu));
            alone.get_or_insert(cpu);
        }
        plot.add(&format!("{}: beside others like it", workload.name), TIME_AXIS, rows);
    }
    figures.figure(
        "measure_slots",
        "measurements that do not disturb each other",
        undisturbed.max(1) as u64,
        "",
    );
    Ok(figures)
}

/// How often a trial says that the second program is slower: with more work, and with the same work.
async fn detection(folder: &Path, workloads: &[Workload], trials: usize) -> Result<Figures, BenchError> {
    let mut slot = Measured::start(Setup::Kept, 0, folder, None).await?;
    let (mut found, mut wrong, mut widths) = (0_u64, 0_u64, Vec::new());
    for trial in 0..trials {
        if trial % 10 == 0 {
            say(&format!("trial {} of {trials}", trial + 1));
        }
        let Some(workload) = workloads.get(trial % workloads.len().max(1)) else { continue };
        let slower = difference(&mut slot, workload, &workload.times(SLOWDOWN)).await?;
        let same = difference(&mut slot, workload, workload).await?;
        found += u64::from(slower.is_slower());
        wrong += u64::from(same.is_slower() || same.is_faster());
        widths.push(same.high - same.low);
    }
    slot.stop().await?;
    let percent = |count: u64| count as f64 / trials.max(1) as f64 * 100.0;
    let mut figures = Figures::default();
    figures.figure("found_percent", "trials that find a slowdown of 3 %", percent(found), "%");
    figures.figure("wrong_percent", "trials that report one that is not there", percent(wrong), "%");
    let width = Sample::new(widths).map_or(0.0, |widths| widths.median() * 100.0);
    figures.figure("interval_percent", "interval of a difference, median", width, "%");
    Ok(figures)
}

/// The interval of the median ratio of two programs' times, less 1.
struct Difference {
    low: f64,
    high: f64,
    median: f64,
}

impl Difference {
    fn is_slower(&self) -> bool {
        self.low > 0.0 && self.median > LEAST
    }

    fn is_faster(&self) -> bool {
        self.high < 0.0 && self.median < -LEAST
    }
}

/// Runs both programs in turn, in changing order, and compares each pair: what disturbs the machine
/// for longer than a run disturbs both.
async fn difference(slot: &mut Measured, one: &Workload, other: &Workload) -> Result<Difference, BenchError> {
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        let (first, second) = if pair % 2 == 0 { (one, other) } else { (other, one) };
        let (a, b) = (slot.run(first).await?.cpu, slot.run(second).await?.cpu);
        let (of_one, of_other) = if pair % 2 == 0 { (a, b) } else { (b, a) };
        ratios.push(of_other / of_one.max(1.0) - 1.0);
    }
    let sample = Sample::new(ratios).ok_or_else(|| BenchError::plain("a workload has no times"))?;
    let interval = sample.interval(Statistic::Median);
    Ok(Difference { low: interval.low, high: interval.high, median: sample.median() })
}
