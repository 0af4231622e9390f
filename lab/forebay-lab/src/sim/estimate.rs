//! `forebay sim estimate`: evaluates estimates of processing times.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use serde::Serialize;
use simulate::{
    EstimateFigures, EstimateItem, EstimateScenario, EstimatedBy, Habits, compare_estimates,
    read_estimate_items,
};

use super::files;

/// Text shown below the options.
pub(super) const HELP: &str = "\
Estimators: thesis (section 3.4.1 of the thesis) and adaptive (the best of several rules, by their recent errors).
  For comparison: the true median of work with the same keys, which is unknown in practice, and the figures
  published in the thesis.

Examples:
  forebay sim estimate
      generates streams with noise of 5, 15 and 40 %, without and with early failures, changes and commands
  forebay sim estimate --sigma 0.15 --seeds 10
      uses one noise level and ten streams
  forebay sim record > week.jsonl; forebay sim estimate --replay week.jsonl
      evaluates both estimators on last week's builds";

/// Options of `forebay sim estimate`.
#[derive(Debug, Args)]
pub(super) struct SimEstimateArgs {
    /// Recorded work, one JSON object per line, instead of generated streams
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sigma", "seeds", "seed"])]
    replay: Option<PathBuf>,
    /// Noise of a stream as a fraction of the median (repeatable) [default: 0.05, 0.15, 0.4]
    #[arg(long, value_name = "S")]
    sigma: Vec<f64>,
    /// Number of streams of each kind
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// First seed; equal seeds generate equal streams
    #[arg(long, value_name = "FIRST", default_value_t = 1)]
    seed: u64,
}

/// Figures of one estimator on one stream.
#[derive(Debug, Serialize)]
struct Line {
    /// `noise`, `noise+habits`, `replay`, or `thesis` for the published figures.
    stream: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sigma: Option<f64>,
    #[serde(flatten)]
    figures: EstimateFigures,
    /// Its fractions within 10 % and within 20 %, each relative to that of the true median.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_median: Option<(f64, f64)>,
}

/// Runs the evaluation and prints the figures.
pub(super) fn estimate(args: &SimEstimateArgs, globals: &Globals) -> Result<(), Failure> {
    let mut lines = match &args.replay {
        Some(file) => {
            let trace = read_estimate_items(&files::read(file)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            if trace.left_out > 0 {
                let count = trace.left_out;
                say(&format!("skipped {count} builds that neither succeeded nor failed"));
            }
            lines("replay", None, compare_estimates(&trace.items))
        }
        None => made(args)?,
    };
    lines.push(Line {
        stream: "thesis",
        sigma: None,
        figures: EstimateFigures::published(),
        of_median: None,
    });
    if globals.json { lines.iter().try_for_each(stdout::json) } else { stdout::line(&text(&lines)) }
}

fn made(args: &SimEstimateArgs) -> Result<Vec<Line>, Failure> {
    let sigmas = if args.sigma.is_empty() { &[0.05, 0.15, 0.4][..] } else { &args.sigma };
    let mut all = Vec::new();
    for (stream, habits) in [("noise", Habits::default()), ("noise+habits", Habits::some())] {
        for sigma in sigmas {
            let mut sum: Vec<EstimateFigures> = Vec::new();
            for seed in (0..args.seeds).map(|more| args.seed.wrapping_add(more)) {
                let scenario =
                    EstimateScenario { seed, sigma: *sigma, habits, ..EstimateScenario::default() };
                let items: Vec<EstimateItem> =
                    scenario.stream().map_err(|error| Failure::of(USAGE, &error))?;
                let figures = compare_estimates(&items);
                sum = if sum.is_empty() {
                    figures
                } else {
                    sum.into_iter().zip(&figures).map(|(sum, more)| sum.and(more)).collect()
                };
            }
            all.extend(lines(stream, Some(*sigma), sum));
        }
    }
    Ok(all)
}

fn lines(stream: &'static str, sigma: Option<f64>, figures: Vec<EstimateFigures>) -> Vec<Line> {
    let best = figures.iter().find(|figures| figures.by == EstimatedBy::Median);
    let best = best.map(|best| (best.within_10_pct, best.within_20_pct));
    let of_median = |figures: &EstimateFigures| {
        let share = |ours: f64, best: f64| (1000.0 * ours / best.max(1e-9)).round() / 1000.0;
        best.map(|best| (share(figures.within_10_pct, best.0), share(figures.within_20_pct, best.1)))
    };
    figures
        .into_iter()
        .map(|figures| Line { stream, sigma, of_median: of_median(&figures), figures })
        .collect()
}

fn text(lines: &[Line]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "STREAM",
        "ESTIMATOR",
        "ESTIMATES",
        "WITHIN 10 %",
        "WITHIN 20 %",
        "OF THE MEDIAN'S",
        "OVER",
        "UNDER",
        "OVER BY 2X",
    ]);
    let percent = |part: u64, of: u64| format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64);
    for line in lines {
        let figures = &line.figures;
        let sigma = line.sigma.map_or_else(String::new, |sigma| format!(" {sigma}"));
        let of_median =
            line.of_median.map_or_else(|| "-".to_owned(), |of| format!("{:.2}, {:.2}", of.0, of.1));
        table.add_row([
            format!("{}{sigma}", line.stream),
            figures.by.name().to_owned(),
            figures.count.to_string(),
            format!("{:.1} %", figures.within_10_pct),
            format!("{:.1} %", figures.within_20_pct),
            of_median,
            percent(figures.over, figures.count),
            percent(figures.under, figures.count),
            percent(figures.doubled, figures.count),
        ]);
    }
    table.trim_fmt()
}
