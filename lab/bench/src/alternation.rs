//! The same load on farms that differ in one thing, in turn.

use std::{
    fmt,
    time::{Duration, Instant},
};

use clap::Args;
use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    processor::ProcessorTimes,
    rates::BuildLoad,
    rounds::{Load, items_in},
    statistics::median_and_worst,
    work::{ActionLoad, Work},
};

/// Options of a bench that compares farms, which it starts in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct AlternationArgs {
    /// Duration of each window in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of windows of each farm
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// A way in which a farm differs from the first of its kind.
pub(crate) trait Variant: Copy + Eq + fmt::Display + 'static {
    /// All of them; the others are compared with the first.
    const EACH: &'static [Self];

    /// Name of its figures.
    fn name(self) -> &'static str;
}

/// Items of the first batch, which is not measured.
const WARM_UP: u64 = 300;

/// Concurrent requests of the client that executes actions.
const IN_FLIGHT: usize = 64;

/// Compares builds of `/bin/true`, then actions, on these farms.
pub(crate) async fn builds_and_actions<V: Variant>(
    farms: &[(V, BenchFarm)],
    args: &AlternationArgs,
) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    say(&format!("measuring builds of /bin/true on {} farms in turn", farms.len()));
    let mut runs: Vec<_> =
        farms.iter().map(|(variant, farm)| Run::new(*variant, farm, BuildLoad { farm })).collect();
    figures.part("builds", alternate(&mut runs, args).await?.figures("build"));
    say(&format!("measuring actions on {} farms in turn", farms.len()));
    let mut works = Vec::new();
    for (variant, farm) in farms {
        works.push((*variant, farm, Work::new(farm.remote().await?).await?));
    }
    let load = |work| ActionLoad { work, in_flight: IN_FLIGHT };
    let mut runs: Vec<_> =
        works.iter().map(|(variant, farm, work)| Run::new(*variant, farm, load(work))).collect();
    figures.part("actions", alternate(&mut runs, args).await?.figures("action"));
    Ok(figures)
}

/// A load on one of the farms, and its windows.
struct Run<'a, V, L> {
    variant: V,
    farm: &'a BenchFarm,
    load: L,
    /// Items of the last window, and its length.
    last: (u64, Duration),
    rates: Vec<f64>,
    processor_us: Vec<f64>,
}

impl<'a, V: Variant, L: Load> Run<'a, V, L> {
    fn new(variant: V, farm: &'a BenchFarm, load: L) -> Self {
        let (last, rates, processor_us) = ((0, Duration::ZERO), Vec::new(), Vec::new());
        Self { variant, farm, load, last, rates, processor_us }
    }

    async fn window(&mut self, items: u64) -> Result<(), BenchError> {
        let batch = self.load.prepare(items).await?;
        let (used, begun) = (ProcessorTimes::read(self.farm)?, Instant::now());
        self.load.run(batch).await?;
        self.last = (items, begun.elapsed());
        let used = ProcessorTimes::read(self.farm)?.since(&used);
        self.rates.push(items as f64 / self.last.1.as_secs_f64());
        self.processor_us.push(used.of_farm() / items as f64);
        Ok(())
    }
}

/// Medians of the windows of each farm.
struct Compared<V>(Vec<(V, f64, f64)>);

/// Runs windows of the farms in turn, so that a slow phase of the machine is shared by all.
async fn alternate<V: Variant, L: Load>(
    runs: &mut [Run<'_, V, L>],
    args: &AlternationArgs,
) -> Result<Compared<V>, BenchError> {
    for run in runs.iter_mut() {
        run.window(WARM_UP).await?;
        (run.rates, run.processor_us) = (Vec::new(), Vec::new());
    }
    for round in 0..args.rounds {
        // Another farm is the first in each round.
        runs.rotate_left(usize::from(round > 0));
        for run in runs.iter_mut() {
            let items = items_in(Duration::from_secs(args.seconds), run.last).max(WARM_UP);
            run.window(items).await?;
        }
    }
    let median = |values: &mut Vec<f64>| median_and_worst(values).0;
    let compared =
        runs.iter_mut().map(|run| (run.variant, median(&mut run.rates), median(&mut run.processor_us)));
    Ok(Compared(compared.collect()))
}

impl<V: Variant> Compared<V> {
    fn of(&self, variant: V) -> (f64, f64) {
        let found = self.0.iter().find(|(of, ..)| *of == variant);
        found.map_or((f64::NAN, f64::NAN), |(_, rate, processor)| (*rate, *processor))
    }

    fn figures(&self, item: &str) -> Figures {
        let mut figures = Figures::default();
        let Some(&base) = V::EACH.first() else { return figures };
        let (base_rate, base_processor) = self.of(base);
        for &variant in V::EACH {
            let (rate, processor) = self.of(variant);
            let mut part = Figures::default();
            part.figure("per_s", &format!("{item}s {variant}"), rate, "/s");
            part.figure("processor_us", &format!("processor time per {item} {variant}"), processor, "us");
            if variant != base {
                let name = format!("{item}s {variant}, to those {base}");
                part.figure("rate_ratio", &name, rate / base_rate, "");
                let name = format!("processor time per {item} {variant}, to that {base}");
                part.figure("processor_ratio", &name, processor / base_processor, "");
            }
            figures.part(variant.name(), part);
        }
        figures
    }
}
