//! `forebay bench guard`: fails if builds or actions cost more than a baseline file says.

mod baseline;
mod cases;
mod compare;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Args;
use command_line::failure::say;

use self::{
    baseline::{Baseline, profile},
    cases::Case,
    compare::{CaseFigures, Verdict, judge, median},
};
use crate::{
    error::BenchError,
    figures::Figures,
    memory::Memory,
    report::{BenchReport, processors},
};

/// Measurements of a case before one of its figures fails. A machine that others use disturbs some of them.
const ATTEMPTS: usize = 3;
/// Measurements of each case whose medians are the baseline.
const BASELINE_PASSES: usize = 3;

/// Options of `forebay bench guard`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// File with the expected figures
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.json")]
    baseline: PathBuf,
    /// Write the file instead of comparing with it, as the figures of this commit
    #[arg(long, value_name = "COMMIT", conflicts_with = "only")]
    write: Option<String>,
    /// With --write: keep the figures of the file that are worse than the measured ones, for machines of the same kind
    #[arg(long, requires = "write")]
    worst: bool,
    /// Measure only this case
    #[arg(long, value_name = "CASE")]
    only: Option<Case>,
    /// Duration of each rate measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Compares with the baseline, or writes it.
pub(crate) async fn measure(args: &GuardArgs) -> Result<BenchReport, BenchError> {
    let each = Duration::from_secs(args.seconds);
    match &args.write {
        Some(commit) => write(args, commit, each).await,
        None => compare(args, each).await,
    }
}

async fn write(args: &GuardArgs, commit: &str, each: Duration) -> Result<BenchReport, BenchError> {
    let mut measured: BTreeMap<Case, Vec<CaseFigures>> = BTreeMap::new();
    let mut shown = Figures::default();
    for pass in 1..=BASELINE_PASSES {
        for case in Case::ALL {
            say(&format!("measuring {case}, {pass} of {BASELINE_PASSES}"));
            let (figures, report) = case.measure(each).await?;
            measured.entry(case).or_default().push(figures);
            if pass == BASELINE_PASSES {
                shown.lines.push(format!("{case}:"));
                shown.part(case.name(), report);
            }
        }
    }
    let cases = measured.into_iter().map(|(case, figures)| (case, median(&figures))).collect();
    let measured = Baseline::new(commit, cases);
    let baseline = if args.worst { measured.worst_of(&Baseline::read(&args.baseline)?) } else { measured };
    baseline.write(&args.baseline)?;
    shown.lines.push(format!("written to {}", args.baseline.display()));
    Ok(BenchReport::new("", shown, Memory::default()))
}

async fn compare(args: &GuardArgs, each: Duration) -> Result<BenchReport, BenchError> {
    let baseline = Baseline::read(&args.baseline)?;
    let file = args.baseline.display();
    if baseline.profile != profile() {
        return Err(BenchError::Usage(format!(
            "{file} has figures of the profile {}, and this program has the profile {}: use a program of the other \
             profile, or write the file with `make bench-baseline`",
            baseline.profile,
            profile()
        )));
    }
    let mut shown = Figures::default();
    if baseline.processors != processors() {
        shown.lines.push(format!(
            "not compared: {file} has figures of a machine with {} processors, and this one has {}; \
             `make bench-baseline` writes those of this machine",
            baseline.processors,
            processors()
        ));
        shown.field("compared", false);
        return Ok(BenchReport::new("", shown, Memory::default()));
    }
    let (mut failures, mut summary) = (Vec::new(), Vec::new());
    for case in Case::ALL.into_iter().filter(|case| args.only.is_none_or(|only| only == *case)) {
        let expected = baseline.of(case, &args.baseline)?;
        let (verdicts, report) = attempts(case, expected, each).await?;
        let mut part = Figures::default();
        part.append(report);
        for verdict in &verdicts {
            summary.push(format!("{case}: {verdict}"));
            part.field(&format!("guarded_{}", verdict.figure), verdict.json());
        }
        shown.lines.push(format!("{case}:"));
        shown.part(case.name(), part);
        failures.extend(
            verdicts
                .iter()
                .filter(|verdict| !verdict.passed())
                .map(|verdict| format!("{case}: {}", verdict.failure(&file.to_string(), &case.command()))),
        );
    }
    shown.lines.extend(summary);
    shown.field("compared", true);
    Ok(BenchReport::new("", shown, Memory::default()).with_failures(failures))
}

/// Measures a case until all its figures have passed once, or the attempts are used up.
async fn attempts(
    case: Case,
    expected: &CaseFigures,
    each: Duration,
) -> Result<(Vec<Verdict>, Figures), BenchError> {
    let mut measured = Vec::new();
    loop {
        say(&format!("measuring {case}, attempt {} of at most {ATTEMPTS}", measured.len() + 1));
        let (figures, report) = case.measure(each).await?;
        measured.push(figures);
        let verdicts = judge(expected, &measured);
        if measured.len() == ATTEMPTS || verdicts.iter().all(Verdict::passed) {
            return Ok((verdicts, report));
        }
    }
}
