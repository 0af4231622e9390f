//! `forebay sim quota`: simulates quota groups under changing load.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use simulate::{Estimator, GroupPhase, QuotaMetrics, QuotaScenario, plot_quota, run as simulate};

use super::files;

/// Text shown below the options.
pub(super) const HELP: &str = "\
Examples:
  forebay sim quota --svg quota.svg
      simulates three groups with quotas of 500, 300 and 200 ESU in four phases of load; plots PV, SP and MV of each
  forebay sim quota --bias 0.8 --seeds 10
      repeats it ten times with estimates of 0.8 of the true values; prints the worst of each figure
  forebay sim quota --default-estimate
      estimates every build as 1 ESU
  forebay sim quota --print-scenario > my.json; forebay sim quota --scenario my.json
      simulates an edited scenario";

/// Options of `forebay sim quota`.
#[derive(Debug, Args)]
pub(super) struct SimQuotaArgs {
    /// Scenario in JSON or YAML, whose values other options override [default: the one that --print-scenario prints]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print the scenario instead of running it
    #[arg(long)]
    print_scenario: bool,
    /// Seed of the run; equal seeds produce equal runs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds to run, starting with the first; prints the worst of each figure
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Estimates as a fraction of the true values; 1 means exact estimates
    #[arg(long, value_name = "X", conflicts_with = "default_estimate")]
    bias: Option<f64>,
    /// Estimate every build as 1 ESU, as without an occupancy model
    #[arg(long)]
    default_estimate: bool,
    /// Plot the first run to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the simulation and prints the figures.
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
            std::fs::write(file, plot_quota(&done))
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
        say(&format!("worst figures of seeds {first} to {}", scenario.seed));
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

/// The worse of each figure; an event that never happened is the worst.
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
        "{}\n\nmaxima: overshoot {}, steady error {}, settled after {}, quota returned after {};\nall \
         groups together used at most {:.2} of all quotas; {} builds started, none was stopped",
        table.trim_fmt(),
        percent(Some(metrics.overshoot_max)),
        percent(Some(metrics.steady_error_max)),
        seconds(metrics.settling_seconds_max),
        seconds(metrics.give_back_seconds_max),
        metrics.total_max,
        metrics.started,
    )
}
