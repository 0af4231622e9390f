//! `forebay sim scale`: a pool whose size the planner chooses.

use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::{Table, presets};
use simulate::{
    Pattern, PoolSize, ScalingFigures, ScalingItem, ScalingRun, ScalingScenario, plot_scaling,
    read_scaling_items,
};

use super::files;
use crate::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};

/// Shown below the options.
pub(super) const HELP: &str = "\
Examples:
  forebay sim scale
      a day with a quiet night on at most 40 processes, beside two pools of a fixed size; draw it with --svg day.svg
  forebay sim scale --pattern bursts:40 --per-hour 40 --hours 6 --target-wait 30 --start-up 10
      forty items at once, every hour
  forebay sim record > week.jsonl; forebay sim scale --replay week.jsonl --max 20 --slots 4
      last week's traffic on processes that run four builds at a time
  forebay sim scale --print-scenario > my.json; forebay sim scale --scenario my.json
      a scenario of your own, with all settings";

/// Options of `forebay sim scale`.
#[derive(Debug, Args)]
pub(super) struct SimScaleArgs {
    /// A scenario, in JSON or YAML [default: the one that --print-scenario shows]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print the scenario instead of running it
    #[arg(long)]
    print_scenario: bool,
    /// Recorded work, one JSON object a line, instead of what the scenario's pattern makes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "per_hour", "service", "hours"])]
    replay: Option<PathBuf>,
    /// How items arrive: day, steady or bursts:N
    #[arg(long, value_parser = pattern)]
    pattern: Option<Pattern>,
    /// For so long they do
    #[arg(long)]
    hours: Option<f64>,
    /// Items an hour
    #[arg(long, value_name = "N")]
    per_hour: Option<f64>,
    /// What an item takes on the average, in seconds
    #[arg(long, value_name = "SECONDS")]
    service: Option<f64>,
    /// Items that a process runs at a time
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Nineteen of twenty items should start within so many seconds
    #[arg(long, value_name = "SECONDS")]
    target_wait: Option<f64>,
    /// Processes there are at least
    #[arg(long, value_name = "N")]
    min: Option<u64>,
    /// Processes there are at most
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// What a process needs to start
    #[arg(long, value_name = "SECONDS")]
    start_up: Option<f64>,
    /// What the pool may cost an hour
    #[arg(long, value_name = "MONEY")]
    budget: Option<f64>,
    /// Of the run: equal seeds give equal runs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Draw the size of the pool into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let expected = || format!("{text:?}: day, steady or bursts:N is expected");
    match text.split_once(':') {
        None if text == "day" => Ok(Pattern::Day),
        None if text == "steady" => Ok(Pattern::Steady),
        Some(("bursts", size)) => size.parse().map(Pattern::Bursts).map_err(|_| expected()),
        None | Some(_) => Err(expected()),
    }
}

/// Simulates and prints.
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
        say(&format!("drew the size of the pool into {}", file.display()));
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

/// What was asked for goes before what the scenario says.
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
        "{}\n\nunder and over: process-hours that lacked, and that had nothing to run; in time: started within {} s; \
         {killed} items were ended by scaling in",
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
