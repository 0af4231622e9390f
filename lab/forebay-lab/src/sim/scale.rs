//! `forebay sim scale`: simulates an autoscaled pool.

use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use simulate::{
    Pattern, PoolSize, ScalingFigures, ScalingItem, ScalingRun, ScalingScenario, plot_scaling,
    read_scaling_items,
};

use super::files;

/// Text shown below the options.
pub(super) const HELP: &str = "\
Examples:
  forebay sim scale
      simulates a day with a quiet night on at most 40 processes, and two pools of fixed size; --svg FILE plots it
  forebay sim scale --pattern bursts:40 --per-hour 40 --hours 6 --target-wait 30 --start-up 10
      simulates bursts of forty items every hour
  forebay sim record > week.jsonl; forebay sim scale --replay week.jsonl --max 20 --slots 4
      replays last week's traffic on processes that run four builds in parallel
  forebay sim scale --print-scenario > my.json; forebay sim scale --scenario my.json
      simulates an edited scenario, with all settings";

/// Options of `forebay sim scale`.
#[derive(Debug, Args)]
pub(super) struct SimScaleArgs {
    /// Scenario in JSON or YAML, whose values other options override [default: the one that --print-scenario prints]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print the scenario instead of running it
    #[arg(long)]
    print_scenario: bool,
    /// Recorded work, one JSON object per line, instead of the scenario's pattern
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "per_hour", "service", "hours"])]
    replay: Option<PathBuf>,
    /// Arrival pattern of items: day, steady or bursts:N
    #[arg(long, value_parser = pattern)]
    pattern: Option<Pattern>,
    /// Duration of the arrivals in hours
    #[arg(long)]
    hours: Option<f64>,
    /// Mean number of items per hour
    #[arg(long, value_name = "N")]
    per_hour: Option<f64>,
    /// Mean run time of an item in seconds
    #[arg(long, value_name = "SECONDS")]
    service: Option<f64>,
    /// Number of items that a process runs in parallel
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Target wait in seconds for 95 % of the items
    #[arg(long, value_name = "SECONDS")]
    target_wait: Option<f64>,
    /// Minimum number of processes
    #[arg(long, value_name = "N")]
    min: Option<u64>,
    /// Maximum number of processes
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Start-up time of a process in seconds
    #[arg(long, value_name = "SECONDS")]
    start_up: Option<f64>,
    /// Maximum cost of the pool per hour
    #[arg(long, value_name = "MONEY")]
    budget: Option<f64>,
    /// Seed of the run; equal seeds produce equal runs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plot the size of the pool to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let expected = || format!("invalid pattern {text:?}: expected day, steady or bursts:N");
    match text.split_once(':') {
        None if text == "day" => Ok(Pattern::Day),
        None if text == "steady" => Ok(Pattern::Steady),
        Some(("bursts", size)) => size.parse().map(Pattern::Bursts).map_err(|_| expected()),
        None | Some(_) => Err(expected()),
    }
}

/// Runs the simulation and prints the figures.
pub(super) fn scale(args: &SimScaleArgs, globals: &Globals) -> Result<(), Failure> {
    let mut scenario = scenario(args)?;
    let items = args.replay.as_deref().map(replayed).transpose()?;
    if let Some(last) = items.as_ref().and_then(|items| items.last()) {
        scenario.hours = (last.arrival_ms as f64 / 3_600_000.0).max(0.01);
    }
    if args.print_scenario {
        return stdout::json(&scenario);
    }
    let run = simulate::scale(&scenario, items.as_deref()).map_err(|error| Failure::of(USAGE, &error))?;
    if let Some(file) = &args.svg {
        files::write(file, &plot_scaling(&run))?;
        say(&format!("wrote a plot of the pool size to {}", file.display()));
    }
    if globals.json { run.figures.iter().try_for_each(stdout::json) } else { stdout::line(&text(&run)) }
}

fn replayed(file: &Path) -> Result<Vec<ScalingItem>, Failure> {
    read_scaling_items(&files::read(file)?)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn scenario(args: &SimScaleArgs) -> Result<ScalingScenario, Failure> {
    let mut scenario: ScalingScenario =
        args.scenario.as_deref().map_or_else(|| Ok(ScalingScenario::default()), files::scenario)?;
    set(&mut scenario.pattern, args.pattern);
    set(&mut scenario.hours, args.hours);
    set(&mut scenario.per_hour, args.per_hour);
    set(&mut scenario.service_seconds, args.service);
    set(&mut scenario.slots, args.slots);
    set(&mut scenario.seed, args.seed);
    let autoscale = &mut scenario.autoscale;
    set(&mut autoscale.target_wait_seconds, args.target_wait);
    set(&mut autoscale.min, args.min);
    set(&mut autoscale.max, args.max);
    set(&mut autoscale.start_up_seconds, args.start_up);
    autoscale.budget_per_hour = args.budget.or(autoscale.budget_per_hour);
    Ok(scenario)
}

/// Overrides a field of the scenario by an option.
fn set<T: Copy>(field: &mut T, asked: Option<T>) {
    *field = asked.unwrap_or(*field);
}

fn text(run: &ScalingRun) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "POOL",
        "PROCESSES",
        "MOST",
        "WAIT MEAN",
        "P95",
        "MAX",
        "IN TIME",
        "UNDER",
        "OVER",
        "HOURS PAID",
        "COST",
        "CHANGES",
        "TURNS",
    ]);
    for figures in &run.figures {
        table.add_row(row(figures));
    }
    let killed: u64 = run.figures.iter().map(|figures| figures.killed).sum();
    format!(
        "{}\n\nunder and over: missing and idle process-hours; in time: started within {} s; {killed} items were \
         killed by scaling in",
        table.trim_fmt(),
        run.scenario.autoscale.target_wait_seconds
    )
}

fn row(figures: &ScalingFigures) -> Vec<String> {
    let pool = match figures.sized {
        PoolSize::Planned => "planned",
        PoolSize::FixedMax => "largest, fixed",
        PoolSize::FixedMean => "mean, fixed",
    };
    let hours = |seconds: f64| format!("{:.2} h", seconds / 3600.0);
    let seconds = |seconds: f64| format!("{seconds:.1} s");
    vec![
        pool.to_owned(),
        format!("{:.1}", figures.processes_mean),
        figures.processes_max.to_string(),
        seconds(figures.wait_mean_s),
        seconds(figures.wait_p95_s),
        seconds(figures.wait_max_s),
        format!("{:.1} %", figures.in_time_pct),
        hours(figures.under_provisioned_s),
        hours(figures.over_provisioned_s),
        format!("{:.1}", figures.process_hours),
        format!("{:.2}", figures.cost),
        figures.changes.to_string(),
        figures.turns.to_string(),
    ]
}
