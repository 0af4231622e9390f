//! `forebay sim quota`: quota groups under changing load.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use simulate::{Estimator, GroupPhase, QuotaMetrics, QuotaScenario, plot, run as simulate};

use super::files;
use crate::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};

/// Shown below the options.
pub(super) const HELP: &str = "\
Examples:
  forebay sim quota --svg quota.svg
      three groups with quotas of 500, 300 and 200 ESU through four phases of load; draws PV, SP and MV of each
  forebay sim quota --bias 0.8 --seeds 10
      the same with estimates of 0.8 of the truth, ten times; prints the worst of each figure
  forebay sim quota --default-estimate
      what happens when every build is taken for 1 ESU
  forebay sim quota --print-scenario > my.json; forebay sim quota --scenario my.json
      a scenario of your own";

/// Options of `forebay sim quota`.
#[derive(Debug, Args)]
pub(super) struct SimQuotaArgs {
    /// A scenario, in JSON or YAML [default: the one that --print-scenario shows]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print the scenario instead of running it
    #[arg(long)]
    print_scenario: bool,
    /// Of the run: equal seeds give equal runs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs with so many seeds, from the first on, and print the worst of each figure
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Estimates, as a share of the truth
    #[arg(long, value_name = "X", conflicts_with = "default_estimate")]
    bias: Option<f64>,
    /// Take every build for 1 ESU, as without an occupancy model
    #[arg(long)]
    default_estimate: bool,
    /// Draw the first run into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Simulates and prints.
pub(super) fn quota(args: &SimQuotaArgs, globals: &Globals) -> Result<(), Failure> {
    let mut scenario = scenario(args)?;
    if args.print_scenario {
        return stdout::json(&scenario);
    }
    let first = scenario.seed;
    let mut worst: Option<QuotaMetrics> = None;
    for seed in first..first.saturating_add(args.seeds) {
        scenario.seed = seed;
        let done = simulate(&scenario).map_err(|error| Failure::of(USAGE, &error))?;
        if let Some(file) = args.svg.as_ref().filter(|_| seed == first) {
            std::fs::write(file, plot(&done))
                .map_err(|error| Failure::new(USAGE, format!("cannot write {}", file.display()), &error))?;
        }
        if globals.json && args.seeds == 1 {
            return stdout::json(&done.metrics);
        }
        worst = Some(match worst {
            None => done.metrics,
            Some(before) => worse(before, done.metrics),
        });
    }
    let Some(metrics) = worst else { return Ok(()) };
    if globals.json {
        return stdout::json(&metrics);
    }
    if args.seeds > 1 {
        say(&format!("the worst of seeds {first} to {}", scenario.seed));
    }
    stdout::line(&text(&metrics))
}

fn scenario(args: &SimQuotaArgs) -> Result<QuotaScenario, Failure> {
    let mut scenario =
        args.scenario.as_deref().map_or_else(|| Ok(QuotaScenario::default()), files::scenario)?;
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    if let Some(bias) = args.bias {
        let noise = match scenario.estimator {
            Estimator::Model { noise, .. } => noise,
            Estimator::OneEsu => 0.0,
        };
        scenario.estimator = Estimator::Model { bias, noise };
    }
    if args.default_estimate {
        scenario.estimator = Estimator::OneEsu;
    }
    Ok(scenario)
}

/// The worse of each figure; a time that never came is the worst.
fn worse(a: QuotaMetrics, b: QuotaMetrics) -> QuotaMetrics {
    let later = |a: Option<u32>, b: Option<u32>| a.zip(b).map(|(a, b)| a.max(b));
    let of_both = |a: Option<u32>, b: Option<u32>| a.max(b);
    let larger = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(if b.abs() > a.abs() { b } else { a }),
        (a, b) => a.or(b),
    };
    let phase = |(a, b): (GroupPhase, GroupPhase)| GroupPhase {
        overshoot: larger(a.overshoot, b.overshoot),
        steady_error: larger(a.steady_error, b.steady_error),
        settling_seconds: later(a.settling_seconds, b.settling_seconds),
        give_back_seconds: of_both(a.give_back_seconds, b.give_back_seconds),
        drain_seconds: of_both(a.drain_seconds, b.drain_seconds),
        ..a
    };
    QuotaMetrics {
        phases: a.phases.into_iter().zip(b.phases).map(phase).collect(),
        overshoot_max: a.overshoot_max.max(b.overshoot_max),
        steady_error_max: a.steady_error_max.max(b.steady_error_max),
        settling_seconds_max: later(a.settling_seconds_max, b.settling_seconds_max),
        give_back_seconds_max: later(a.give_back_seconds_max, b.give_back_seconds_max),
        total_max: a.total_max.max(b.total_max),
        started: a.started + b.started,
        finished: a.finished + b.finished,
    }
}

fn text(metrics: &QuotaMetrics) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "PHASE",
        "GROUP",
        "LOAD",
        "PV",
        "SP",
        "OVERSHOOT",
        "STEADY ERROR",
        "SETTLED",
        "GIVEN BACK",
        "DRAINED",
    ]);
    let percent =
        |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |x| format!("{:.1} %", 100.0 * x));
    let seconds = |time: Option<u32>| time.map_or_else(|| "-".to_owned(), |time| format!("{time} s"));
    for phase in &metrics.phases {
        table.add_row([
            (phase.phase + 1).to_string(),
            phase.group.to_string(),
            format!("{:?}", phase.load).to_lowercase(),
            format!("{:.0}", phase.pv),
            format!("{:.0}", phase.sp),
            percent(phase.overshoot),
            percent(phase.steady_error),
            seconds(phase.settling_seconds),
            seconds(phase.give_back_seconds),
            seconds(phase.drain_seconds),
        ]);
    }
    format!(
        "{}\n\novershoot at most {}, steady error at most {}, settled after {} at most, quota back after {} at most;\nall \
         groups together used {:.2} of all quotas at most; {} builds started, none was ended",
        table.trim_fmt(),
        percent(Some(metrics.overshoot_max)),
        percent(Some(metrics.steady_error_max)),
        seconds(metrics.settling_seconds_max),
        seconds(metrics.give_back_seconds_max),
        metrics.total_max,
        metrics.started,
    )
}
