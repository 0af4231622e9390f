//! Rates, latencies and availability of calls, from Prometheus: tables 4 and 5 of Google's paper on its build
//! service, published in 2020.

use std::{collections::BTreeMap, time::Duration};

use comfy_table::{CellAlignment, Table, presets};
use command_line::failure::{FAILED, Failure, UNREACHABLE};
use download::{Downloader, Reach};
use serde::{Deserialize, Serialize};

use crate::bytes_text::seconds;

/// Maximum size of an answer of Prometheus: far more than all calls of a farm need.
const ANSWER_MAX: u64 = 16 << 20;
/// Number of rates that minimum, median and maximum are made of, at most.
const RATES: u64 = 2000;
/// Time between two rates: at least that between two readings of the metrics, at most that over which rates are.
const STEP_MIN: u64 = 15;
const STEP_MAX: u64 = 300;
/// Statuses that mean that the farm failed, as in infra/prometheus/rules.
const FAILED_STATUS: &str = "unavailable|5..|UNAVAILABLE|INTERNAL|UNKNOWN|DATA_LOSS";

/// How one call was answered. A figure is absent if Prometheus has no samples for it.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct CallFigures {
    endpoint: String,
    #[serde(flatten)]
    figures: BTreeMap<&'static str, f64>,
}

/// The figures, by name, and their expressions. `RATE` stands for the calls per second, `RANGE` for the whole time.
const FIGURES: [(&str, &str); 8] = [
    ("per_second_mean", "avg_over_time(RATE)"),
    ("per_second_min", "min_over_time(RATE)"),
    ("per_second_median", "quantile_over_time(0.5, RATE)"),
    ("per_second_max", "max_over_time(RATE)"),
    (
        "latency_mean_seconds",
        "sum by (endpoint) (increase(forebay_api_seconds_sum[RANGE])) \
         / (sum by (endpoint) (increase(forebay_api_seconds_count[RANGE])) > 0)",
    ),
    (
        "latency_median_seconds",
        "histogram_quantile(0.5, sum by (endpoint, le) (increase(forebay_api_seconds_bucket[RANGE])))",
    ),
    (
        "latency_p99_seconds",
        "histogram_quantile(0.99, sum by (endpoint, le) (increase(forebay_api_seconds_bucket[RANGE])))",
    ),
    (
        "availability",
        "1 - (sum by (endpoint) (increase(forebay_api_requests_total{status=~\"FAILED\"}[RANGE])) \
         or 0 * sum by (endpoint) (increase(forebay_api_requests_total[RANGE]))) \
         / (sum by (endpoint) (increase(forebay_api_requests_total[RANGE])) > 0)",
    ),
];

/// An answer of `/api/v1/query`.
#[derive(Deserialize)]
struct Answer {
    data: Vector,
}

#[derive(Deserialize)]
struct Vector {
    result: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    /// Time in seconds, and value.
    value: (f64, String),
}

/// Asks the Prometheus at `url` for the calls of the last `range`, by endpoint.
pub(super) async fn read(url: &str, range: Duration) -> Result<Vec<CallFigures>, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(UNREACHABLE, format!("reading metrics from Prometheus at {url}"), error)
    };
    let downloader = Downloader::new(Reach::everywhere()).map_err(|error| failed(&error))?;
    let address = format!("{}/api/v1/query", url.trim_end_matches('/'));
    let mut calls: BTreeMap<String, CallFigures> = BTreeMap::new();
    for (name, expression) in FIGURES {
        let expression = expand(expression, range);
        let content = downloader.read(&address, &[("query", &expression)], ANSWER_MAX).await;
        let content = content.map_err(|error| failed(&error))?;
        let answer: Answer = serde_json::from_slice(&content).map_err(|error| {
            Failure::new(FAILED, format!("{url} does not answer as Prometheus does"), &error)
        })?;
        for Sample { mut metric, value: (_, value) } in answer.data.result {
            let (Some(endpoint), Ok(value)) = (metric.remove("endpoint"), value.parse::<f64>()) else {
                continue;
            };
            if value.is_finite() {
                let call = calls.entry(endpoint.clone()).or_default();
                call.endpoint = endpoint;
                call.figures.insert(name, value);
            }
        }
    }
    Ok(calls.into_values().collect())
}

fn expand(expression: &str, range: Duration) -> String {
    let range = range.as_secs().max(1);
    let step = (range / RATES).clamp(STEP_MIN, STEP_MAX);
    let rate = format!("sum by (endpoint) (rate(forebay_api_requests_total[5m]))[{range}s:{step}s]");
    expression.replace("RATE", &rate).replace("RANGE", &format!("{range}s")).replace("FAILED", FAILED_STATUS)
}

/// A line for each call that was made.
pub(super) fn text(calls: &[CallFigures]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.add_row(["CALL", "PER SECOND", "MIN", "MEDIAN", "MAX", "LATENCY", "MEDIAN", "P99", "AVAILABLE"]);
    for call in calls {
        let figure = |name: &str, text: fn(f64) -> String| {
            call.figures.get(name).map_or_else(|| "-".to_owned(), |value| text(*value))
        };
        let mut row = vec![call.endpoint.clone()];
        for (name, _) in FIGURES {
            let text: fn(f64) -> String = match name {
                "availability" => |share| format!("{:.2} %", share * 100.0),
                name if name.starts_with("latency") => seconds,
                _ => |rate| format!("{rate:.3}"),
            };
            row.push(figure(name, text));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
