//! `forebay sim run`: simulates queue policies, as in chapter 3 of the thesis.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use replay::Stream;
use simulate::queues::{
    Batch, QueueFigures, QueuePolicy, Reading, Tally, Workload, figures, read_replay, run_batch,
};

use super::{files, source::Source};

/// Text shown below the options.
pub(super) const HELP: &str = "\
The thesis is Teyras's on load balancing; docs/simulator.md describes its workloads, policies and figures.

Workloads: common+para_small, common+para_large, two_phase_small, two_phase_large, medium+short, long+short, multi_type.
Policies: 1/fcfs/-, 1/least_flex/-, 1/{spt,edf,oagm}/{oracle,imprecise}, n/round_robin/-,
  n/{load,rand2}/{queue_size,oracle,imprecise}; and, only if given explicitly, 1/{spt-aged,multi-level}/{oracle,imprecise}.

Examples:
  forebay sim run --all --seeds 10
      runs the seven workloads of the thesis with its fifteen policies; prints means of ten seeds
  forebay sim run --workload long+short --policy 1/fcfs/- --policy 1/spt/oracle --seeds 10 --plot pictures
      compares two policies and plots the results
  forebay sim run --workload multi_type --seed 7 --dump streams; \\
  forebay sim run --replay streams/multi_type.7.jsonl --workers streams/multi_type.workers.json --per-job jobs.jsonl
      writes the stream and its workers to files, reads them again and writes the start of each job
  forebay sim record --since 7d --out week.jsonl; forebay sim run --replay week.jsonl --workers 40 --policy 1/spt-aged/imprecise
      replays last week's traffic with another policy";

/// Options of `forebay sim run`.
#[derive(Debug, Args)]
pub(super) struct SimRunArgs {
    /// Workload of the thesis (repeatable) [default: all]
    #[arg(long, value_name = "NAME", conflicts_with = "replay")]
    workload: Vec<Workload>,
    /// Policy (repeatable) [default: the fifteen policies of the thesis]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    policy: Vec<QueuePolicy>,
    /// Run all workloads with all fifteen policies (the default)
    #[arg(long, conflicts_with_all = ["workload", "policy"])]
    all: bool,
    /// Number of seeds to run; prints the means
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// First seed; equal seeds produce equal runs
    #[arg(long, value_name = "FIRST", default_value_t = 1)]
    seed: u64,
    /// Follow the text of the thesis (text), or the code that produced its published figures (code)
    #[arg(long, value_name = "READING", default_value = "text", value_parser = reading)]
    reading: Reading,
    /// Plot lateness, waits and makespans to SVG files in this folder
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Write the streams and their workers to this folder, or a single stream to a file NAME.jsonl
    #[arg(long, value_name = "DIR|FILE")]
    dump: Option<PathBuf>,
    /// Recorded stream, one JSON object per line, instead of a workload
    #[arg(long, value_name = "FILE", requires = "workers")]
    replay: Option<PathBuf>,
    /// Workers for the replay: a JSON file, or a number of identical workers that meet all requirements
    #[arg(long, value_name = "FILE|N", requires = "replay")]
    workers: Option<String>,
    /// Write the start time and worker of each job to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    per_job: Option<PathBuf>,
}

fn reading(text: &str) -> Result<Reading, String> {
    let named = Reading::ALL.into_iter().find(|reading| reading.as_str() == text);
    named.ok_or_else(|| "expected text or code".to_owned())
}

/// Runs the simulations and prints the figures.
pub(super) fn run(args: &SimRunArgs, globals: &Globals) -> Result<(), Failure> {
    let sources = sources(args)?;
    let policies: Vec<QueuePolicy> =
        if args.policy.is_empty() { QueuePolicy::THESIS.to_vec() } else { once(&args.policy) };
    let batch = Batch { policies, reading: args.reading, first_seed: args.seed, seeds: args.seeds };
    if let Some(place) = &args.dump {
        files::dump(place, &sources, &batch)?;
    }
    let names: Vec<String> = sources.iter().map(Source::name).collect();
    let stream = |source: usize, seed| {
        sources.get(source).map_or_else(Stream::default, |source| source.stream(seed, args.reading))
    };
    let tallies = run_batch(&names, &batch, stream).map_err(|error| Failure::of(USAGE, &error))?;
    if let Some(file) = &args.per_job {
        files::per_job(file, &sources, &batch)?;
    }
    if let Some(folder) = &args.plot {
        files::plot(folder, &tallies)?;
    }
    print(&tallies, args.reading, globals)
}

fn sources(args: &SimRunArgs) -> Result<Vec<Source>, Failure> {
    match (&args.replay, &args.workers) {
        (Some(file), Some(workers)) => {
            let trace = read_replay(file, workers).map_err(|error| Failure::of(USAGE, &error))?;
            Ok(vec![Source::Replayed(Box::new(trace))])
        }
        (_, _) if args.workload.is_empty() => Ok(Workload::ALL.into_iter().map(Source::Workload).collect()),
        (_, _) => Ok(once(&args.workload).into_iter().map(Source::Workload).collect()),
    }
}

/// Removes duplicates, keeping the order of first occurrence.
fn once<T: Copy + Eq>(named: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for one in named {
        if !once.contains(one) {
            once.push(*one);
        }
    }
    once
}

fn print(tallies: &[Tally], reading: Reading, globals: &Globals) -> Result<(), Failure> {
    let figures: Vec<QueueFigures> = tallies.iter().map(|tally| figures(tally, reading)).collect();
    if globals.json {
        return figures.iter().try_for_each(stdout::json);
    }
    if let Some(one) = figures.first() {
        let what =
            if one.seeds == 1 { "one seed".to_owned() } else { format!("means of {} seeds", one.seeds) };
        say(&format!("reading {}, {what}; waits relative to durations", reading.as_str()));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "WORKLOAD",
        "POLICY",
        "ON TIME",
        "DELAYED",
        "LATE",
        "EXTR. LATE",
        "WAIT P50",
        "P95",
        "P99",
        "MAKESPAN",
    ]);
    let percent = |share: f64| format!("{share:.1} %");
    let mut seen = BTreeSet::new();
    for one in &figures {
        // Show the name of a workload only once.
        let name = if seen.insert(&one.workload) { one.workload.clone() } else { String::new() };
        table.add_row([
            name,
            one.policy.clone(),
            percent(one.on_time_pct),
            percent(one.delayed_pct),
            percent(one.late_pct),
            percent(one.extremely_late_pct),
            format!("{:.2}", one.rel_wait_p50),
            format!("{:.2}", one.rel_wait_p95),
            format!("{:.2}", one.rel_wait_p99),
            format!("{:.1} s", one.makespan_s),
        ]);
    }
    stdout::line(&table.trim_fmt())
}
