//! The same load on farms that differ in one thing, in turn.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    processor::ProcessorTimes,
    rounds::{Load, items_in},
    statistics::median_and_worst,
};

/// A way in which a farm differs from the first of its kind.
pub(crate) trait Variant: Copy + Eq + fmt::Display + 'static {
    /// All of them; the others are compared with the first.
    const EACH: &'static [Self];

    /// Name of its figures.
    fn name(self) -> &'static str;
}

/// Items of the first batch, which is not measured.
const WARM_UP: u64 = 300;

/// A load on one of the farms, and its windows.
pub(crate) struct Run<'a, V, L> {
    variant: V,
    farm: &'a BenchFarm,
    load: L,
    /// Items of the last window, and its length.
    last: (u64, Duration),
    rates: Vec<f64>,
    processor_us: Vec<f64>,
}

impl<'a, V: Variant, L: Load> Run<'a, V, L> {
    pub(crate) fn new(variant: V, farm: &'a BenchFarm, load: L) -> Self {
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
pub(crate) struct Compared<V>(Vec<(V, f64, f64)>);

/// Runs windows of the farms in turn, so that a slow phase of the machine is shared by all.
pub(crate) async fn alternate<V: Variant, L: Load>(
    runs: &mut [Run<'_, V, L>],
    seconds: u64,
    rounds: u64,
) -> Result<Compared<V>, BenchError> {
    for run in runs.iter_mut() {
        run.window(WARM_UP).await?;
        (run.rates, run.processor_us) = (Vec::new(), Vec::new());
    }
    for round in 0..rounds {
        // Another farm is the first in each round.
        runs.rotate_left(usize::from(round > 0));
        for run in runs.iter_mut() {
            let items = items_in(Duration::from_secs(seconds), run.last).max(WARM_UP);
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

    pub(crate) fn figures(&self, item: &str) -> Figures {
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
