//! Fits the occupancy model to generated builds and reports its duration and quality:
//! `cargo run --release -p occupancy --example fit -- [builds] [passes] [no-search]`.

use occupancy::{BuildFacts, Crosses, Dataset, FitOptions, OccupancyModel, fit, is_test, search};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use workload::{Build, Workload};

#[path = "../tests/occupancy/support/workload.rs"]
mod workload;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let builds = number(&arguments, 0, 1_000_000);
    let mut options = FitOptions::new(1, 0);
    options.passes = u32::try_from(number(&arguments, 1, u64::from(options.passes))).unwrap_or(1);
    let searching = arguments.iter().all(|argument| argument != "no-search");

    let (data, ingest, oracle) = ingest(builds);
    println!("builds {} in {:.1} MB, vocabulary aside", data.len(), data.bytes() as f64 / 1e6);
    println!("ingest {:.1} s", ingest.as_secs_f64());
    let start = Instant::now();
    let crosses =
        if searching { search(&data, 1, &mut || start.elapsed() < LIMIT) } else { Crosses::default() };
    println!("search {:.1} s", start.elapsed().as_secs_f64());
    for (executor_type, crosses) in &crosses.by_type {
        for cross in crosses {
            println!("  {executor_type}: {cross}");
        }
    }
    let start = Instant::now();
    let model = fit(&data, &crosses, &options);
    println!("fit {:.1} s, {} passes", start.elapsed().as_secs_f64(), options.passes);
    let start = Instant::now();
    let bytes = model.encode();
    println!("encoded {:.2} MB in {:.2} s", bytes.len() as f64 / 1e6, start.elapsed().as_secs_f64());
    println!("peak resident {}", peak());
    table(&model, &oracle);
    predictions(&model);
}

/// Time limit of the search.
const LIMIT: Duration = Duration::from_secs(600);

/// The builds, the time to push them, and the errors of an oracle that knows everything but chance, by executor type.
fn ingest(builds: u64) -> (Dataset, Duration, BTreeMap<&'static str, (f64, f64)>) {
    let mut workload = Workload::new(1);
    let mut data = Dataset::new();
    let mut spent = Duration::ZERO;
    let mut oracle = BTreeMap::new();
    for _ in 0..builds {
        let build = workload.next_build();
        if is_test(build.key) {
            for ((executor_type, used), (_, mean)) in build.usage.iter().zip(&build.mean) {
                let (sum, count): &mut (f64, f64) = oracle.entry(*executor_type).or_default();
                *sum += (used - mean).abs();
                *count += 1.0;
            }
        }
        let start = Instant::now();
        data.push(&facts(&build), build.usage.iter().copied(), build.key);
        spent += start.elapsed();
    }
    (data, spent, oracle)
}

fn facts(build: &Build) -> BuildFacts<'_> {
    BuildFacts {
        command: build.command,
        flags: &build.flags,
        targets: &build.targets,
        group: &build.group,
        priority: build.priority,
    }
}

fn table(model: &OccupancyModel, oracle: &BTreeMap<&'static str, (f64, f64)>) {
    println!("type     builds   test    MAE  const  group oracle  MAE/const      MSE  actual predicted");
    for part in &model.report().types {
        let Some(test) = part.test else { continue };
        let (sum, count) = oracle.get(part.executor_type.as_str()).copied().unwrap_or_default();
        println!(
            "{:8} {:6} {:6} {:6.2} {:6.2} {:6.2} {:6.2}  {:8.1} % {:8.1}  {:6.2} {:9.2}",
            part.executor_type,
            part.builds,
            test.builds,
            test.mean_absolute,
            test.constant,
            test.group_mean,
            sum / count,
            test.relative() * 100.0,
            test.mean_square,
            test.actual,
            test.predicted,
        );
    }
}

fn predictions(model: &OccupancyModel) {
    let mut workload = Workload::new(2);
    let builds: Vec<Build> = std::iter::repeat_with(|| workload.next_build())
        .filter(|build| build.targets.len().abs_diff(200) < 30)
        .take(1_000)
        .collect();
    // The best of several rounds, since other work on the machine can only slow it down.
    let (mut sum, mut each) = (0.0, f64::INFINITY);
    for _ in 0..10 {
        let start = Instant::now();
        sum = builds.iter().filter_map(|build| model.predict(&facts(build), "x86_64")).sum::<f64>();
        each = each.min(start.elapsed().as_secs_f64() / builds.len() as f64);
    }
    println!(
        "prediction {:.1} us for some 200 targets (mean {:.1} ESU)",
        each * 1e6,
        sum / builds.len() as f64
    );
}

fn number(arguments: &[String], place: usize, default: u64) -> u64 {
    arguments.get(place).and_then(|argument| argument.parse().ok()).unwrap_or(default)
}

/// Peak resident memory of this process.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}
