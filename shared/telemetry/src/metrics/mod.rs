//! Counters, gauges and histograms, exported in the `OpenMetrics` text format.
//!
//! They belong to the process and need no setup. Counting is an atomic addition, with labels after a lookup in a map
//! behind a read lock. A label that was not declared for a metric, or is missing, is a bug: debug builds panic.

mod names;
mod process;
mod readings;

use std::sync::LazyLock;
use std::time::Duration;

use invariant::impossible;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter as Count;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge as Level;
use prometheus_client::metrics::histogram::Histogram as Distribution;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use names::{Counter, Gauge, Histogram, Label};
pub(crate) use process::set_service;
pub use readings::{Readings, Shown};

/// Content type of the text returned by [`render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Adds `n` to a counter.
pub fn count(counter: Counter, labels: &[(Label, &str)], n: u64) {
    // Not `impossible!`, which itself counts.
    debug_assert!((counter as usize) < METRICS.counters.len(), "no series of a counter");
    if let Some(series) = METRICS.counters.get(counter as usize) {
        series.update(labels, counter.labels(), |metric| {
            metric.inc_by(n);
        });
    }
}

/// Makes a counter appear as 0 before its first event: rates do not see the step by which a series appears.
pub fn expect(counter: Counter, labels: &[(Label, &str)]) {
    count(counter, labels, 0);
}

/// Sets a gauge to `value`.
pub fn set(gauge: Gauge, labels: &[(Label, &str)], value: i64) {
    if let Some(series) = METRICS.gauges.get(gauge as usize) {
        series.update(labels, gauge.labels(), |metric| {
            metric.set(value);
        });
    } else {
        impossible!("gauge {} has no series", gauge.name());
    }
}

/// Adds `change`, which may be negative, to a gauge.
pub fn add(gauge: Gauge, labels: &[(Label, &str)], change: i64) {
    if let Some(series) = METRICS.gauges.get(gauge as usize) {
        series.update(labels, gauge.labels(), |metric| {
            metric.inc_by(change);
        });
    } else {
        impossible!("gauge {} has no series", gauge.name());
    }
}

/// Records a duration in a histogram.
pub fn observe(histogram: Histogram, labels: &[(Label, &str)], duration: Duration) {
    if let Some(series) = METRICS.histograms.get(histogram as usize) {
        series.update(labels, histogram.labels(), |metric| metric.observe(duration.as_secs_f64()));
    } else {
        impossible!("histogram {} has no series", histogram.name());
    }
}

/// All metrics as text.
pub fn render() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &METRICS.registry);
    text
}

type Labels = Vec<(Label, String)>;

/// A metric without labels, or one for each combination of label values.
enum Series<M, C> {
    One(M),
    Many(Family<Labels, M, C>),
}

impl<M, C: MetricConstructor<M>> Series<M, C> {
    fn update(&self, given: &[(Label, &str)], declared: &[Label], change: impl FnOnce(&M)) {
        debug_assert!(
            given.iter().map(|(label, _)| label).eq(declared),
            "labels given: {given:?}, declared: {declared:?}"
        );
        match self {
            Self::One(metric) => change(metric),
            Self::Many(family) => {
                let key = given.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
                change(&family.get_or_create(&key));
            }
        }
    }
}

/// Removes the series of a gauge with these labels. A gauge without labels becomes 0, as before its first value.
fn clear(gauge: Gauge, labels: &Labels) {
    match METRICS.gauges.get(gauge as usize) {
        Some(Series::One(metric)) => {
            metric.set(0);
        }
        Some(Series::Many(family)) => {
            family.remove(labels);
        }
        None => impossible!("gauge {} has no series", gauge.name()),
    }
}

/// Upper bounds of the buckets of a histogram.
#[derive(Clone, Copy, Debug)]
struct Buckets(&'static [f64]);

/// For calls of NATS and Redis.
const CALL: Buckets =
    Buckets(&[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5]);
/// For answers of the API, among them streams and calls that wait.
const ANSWER: Buckets =
    Buckets(&[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0]);
const SHORT: Buckets = Buckets(&[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0]);
const LONG: Buckets = Buckets(&[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 14400.0,
]);

impl Buckets {
    const fn of(histogram: Histogram) -> Self {
        match histogram {
            Histogram::BusPublishSeconds | Histogram::IndexCallSeconds => CALL,
            Histogram::ApiSeconds => ANSWER,
            Histogram::ArchiveBatchSeconds => SHORT,
            Histogram::ActionFetchSeconds
            | Histogram::ActionQueueSeconds
            | Histogram::ActionRunSeconds
            | Histogram::ActionUploadSeconds
            | Histogram::BuildPreparationSeconds
            | Histogram::BuildQueueSeconds
            | Histogram::BuildStartSeconds
            | Histogram::BuildRunSeconds
            | Histogram::ExecutionSeconds
            | Histogram::ImageSeconds
            | Histogram::ServicesReadySeconds => LONG,
        }
    }
}

impl MetricConstructor<Distribution> for Buckets {
    fn new_metric(&self) -> Distribution {
        Distribution::new(self.0.iter().copied())
    }
}

struct Metrics {
    registry: Registry,
    counters: Vec<Series<Count, fn() -> Count>>,
    gauges: Vec<Series<Level, fn() -> Level>>,
    histograms: Vec<Series<Distribution, Buckets>>,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process));
    let mut counters = Vec::new();
    for counter in Counter::ALL {
        let new: fn() -> Count = Count::default;
        counters.push(register_series(&mut registry, counter.name(), counter.help(), counter.labels(), new));
    }
    let mut gauges = Vec::new();
    for gauge in Gauge::ALL {
        let new: fn() -> Level = Level::default;
        gauges.push(register_series(&mut registry, gauge.name(), gauge.help(), gauge.labels(), new));
    }
    let mut histograms = Vec::new();
    for histogram in Histogram::ALL {
        let new = Buckets::of(*histogram);
        histograms.push(register_series(
            &mut registry,
            histogram.name(),
            histogram.help(),
            histogram.labels(),
            new,
        ));
    }
    Metrics { registry, counters, gauges, histograms }
});

fn register_series<M, C>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    labels: &[Label],
    new: C,
) -> Series<M, C>
where
    M: Metric + TypedMetric + Clone,
    C: MetricConstructor<M> + Clone + Send + Sync + 'static,
    Family<Labels, M, C>: Metric,
{
    if labels.is_empty() {
        let metric = new.new_metric();
        register(registry, name, help, metric.clone());
        Series::One(metric)
    } else {
        let family = Family::new_with_constructor(new);
        register(registry, name, help, family.clone());
        Series::Many(family)
    }
}

fn register(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    // The registry appends unit and _total on its own.
    let name = name.strip_suffix("_total").unwrap_or(name);
    if let Some(base) = name.strip_suffix("_seconds") {
        registry.register_with_unit(base, help, Unit::Seconds, metric);
    } else if let Some(base) = name.strip_suffix("_bytes") {
        registry.register_with_unit(base, help, Unit::Bytes, metric);
    } else {
        registry.register(name, help, metric);
    }
}

#[cfg(test)]
mod tests;
