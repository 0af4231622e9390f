//! Measures the error of the occupancy model on recorded builds, one JSON object per line with `command`, `flags`,
//! `targets`, `group`, `priority` and `usage` (ESU by executor type), as `forebay bench workspaces --record FILE`
//! writes them: `cargo run -p occupancy --example recorded -- FILE`.
//!
//! Each tenth of the builds is predicted by a model that learned from the other nine.

use occupancy::{BuildFacts, Crosses, Dataset, FitOptions, fit, is_test};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

const PARTS: usize = 10;

#[derive(Deserialize)]
struct Recorded {
    command: String,
    flags: Vec<String>,
    targets: Vec<String>,
    group: String,
    priority: String,
    usage: BTreeMap<String, f64>,
}

#[derive(Default)]
struct Errors {
    builds: f64,
    model: f64,
    constant: f64,
    group_mean: f64,
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: recorded FILE");
        return ExitCode::from(2);
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("cannot read {path}: {error}");
            return ExitCode::from(2);
        }
    };
    let builds: Result<Vec<Recorded>, _> = text.lines().map(serde_json::from_str).collect();
    match builds {
        Ok(builds) => print(&errors(&builds), builds.len()),
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn errors(builds: &[Recorded]) -> BTreeMap<String, Errors> {
    // Builds with the first key are held back, those with the second are learned from.
    let held_back = (0..10_000).find(|key| is_test(*key)).unwrap_or_default();
    let learned = (0..10_000).find(|key| !is_test(*key)).unwrap_or_default();
    let mut sums: BTreeMap<String, Errors> = BTreeMap::new();
    for part in 0..PARTS {
        let mut data = Dataset::new();
        for (number, build) in builds.iter().enumerate() {
            let key = if number % PARTS == part { held_back } else { learned };
            let usage = build.usage.iter().map(|(kind, esu)| (kind.as_str(), *esu));
            data.push(&facts(build), usage, key);
        }
        let model = fit(&data, &Crosses::default(), &FitOptions::new(1, 0));
        for tested in model.report().types.iter().filter_map(|kind| Some((kind, kind.test?))) {
            let (kind, test) = tested;
            let sum = sums.entry(kind.executor_type.clone()).or_default();
            let count = test.builds as f64;
            sum.builds += count;
            sum.model += count * test.mean_absolute;
            sum.constant += count * test.constant;
            sum.group_mean += count * test.group_mean;
        }
    }
    sums
}

fn facts(build: &Recorded) -> BuildFacts<'_> {
    BuildFacts {
        command: &build.command,
        flags: &build.flags,
        targets: &build.targets,
        group: &build.group,
        priority: &build.priority,
    }
}

fn print(errors: &BTreeMap<String, Errors>, builds: usize) {
    println!("{builds} builds; mean absolute error in ESU on held-out builds");
    println!("type      tested   model  always 1 ESU  mean of the group");
    for (kind, sum) in errors {
        let mean = |total: f64| total / sum.builds.max(1.0);
        println!(
            "{kind:8} {:7} {:7.3} {:13.3} {:18.3}",
            sum.builds,
            mean(sum.model),
            mean(sum.constant),
            mean(sum.group_mean)
        );
    }
}
