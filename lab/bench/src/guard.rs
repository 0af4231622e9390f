//! `forebay bench guard`: fails if builds or actions cost more than a file allows.

mod baseline;
mod cases;
mod compare;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use command_line::failure::say;

use self::{
    baseline::{Baseline, Budget, profile},
    cases::Case,
    compare::{Limit, Rates, Verdict, judge},
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
    /// File with the expected rates
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.json")]
    baseline: PathBuf,
    /// Compare messages and Redis commands with the limits in this file, instead of rates with the baseline
    #[arg(long, value_name = "FILE", conflicts_with_all = ["baseline", "write"])]
    counts: Option<PathBuf>,
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
    #[arg(long, value_name = "N", default_value = "5", value_parser = seconds)]
    seconds: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.1..=3600.0).contains(number));
    number.map(Duration::from_secs_f64).ok_or_else(|| "expected a number from 0.1 to 3600".to_owned())
}

impl GuardArgs {
    fn cases(&self) -> impl Iterator<Item = Case> {
        Case::ALL.into_iter().filter(|case| self.only.is_none_or(|only| only == *case))
    }
}

/// Compares with the baseline or the budget, or writes the baseline.
pub(crate) async fn measure(args: &GuardArgs) -> Result<BenchReport, BenchError> {
    let each = args.seconds;
    match (&args.write, &args.counts) {
        (Some(commit), _) => write(args, commit, each).await,
        (None, Some(file)) => compare_counts(args, file, each).await,
        (None, None) => compare_rates(args, each).await,
    }
}

async fn write(args: &GuardArgs, commit: &str, each: Duration) -> Result<BenchReport, BenchError> {
    let mut measured: BTreeMap<Case, Vec<Rates>> = BTreeMap::new();
    let mut shown = Figures::default();
    for pass in 1..=BASELINE_PASSES {
        for case in Case::ALL {
            say(&format!("measuring {case}, {pass} of {BASELINE_PASSES}"));
            let (figures, report) = case.measure(each).await?;
            measured.entry(case).or_default().push(figures.rates);
            if pass == BASELINE_PASSES {
                shown.lines.push(format!("{case}:"));
                shown.part(case.name(), report);
            }
        }
    }
    let cases = measured.into_iter().map(|(case, figures)| (case, Rates::median(&figures))).collect();
    let measured = Baseline::new(commit, cases);
    let baseline = if args.worst { measured.worst_of(&Baseline::read(&args.baseline)?) } else { measured };
    baseline.write(&args.baseline)?;
    shown.lines.push(format!("written to {}", args.baseline.display()));
    Ok(BenchReport::new("", shown, Memory::default()))
}

/// What a case is compared with.
struct Expected<'a> {
    case: Case,
    limits: Vec<Limit>,
    baseline: Option<&'a Rates>,
}

async fn compare_counts(args: &GuardArgs, file: &Path, each: Duration) -> Result<BenchReport, BenchError> {
    let budget = Budget::read(file)?;
    let expect = |case| Ok(Expected { case, limits: budget.of(case, file)?.limits(), baseline: None });
    let expected: Result<Vec<Expected>, BenchError> = args.cases().map(expect).collect();
    compare(&expected?, file, each).await
}

async fn compare_rates(args: &GuardArgs, each: Duration) -> Result<BenchReport, BenchError> {
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
    if baseline.processors != processors() {
        let mut shown = Figures::default();
        shown.lines.push(format!(
            "not compared: {file} has figures of a machine with {} processors, and this one has {}; \
             `make bench-baseline` writes those of this machine",
            baseline.processors,
            processors()
        ));
        shown.field("compared", false);
        return Ok(BenchReport::new("", shown, Memory::default()));
    }
    let expect = |case| {
        let rates = baseline.of(case, &args.baseline)?;
        Ok(Expected { case, limits: rates.limits(), baseline: Some(rates) })
    };
    let expected: Result<Vec<Expected>, BenchError> = args.cases().map(expect).collect();
    compare(&expected?, &args.baseline, each).await
}

/// Measures and compares each case with what `file` says.
async fn compare(expected: &[Expected<'_>], file: &Path, each: Duration) -> Result<BenchReport, BenchError> {
    let mut shown = Figures::default();
    let (mut failures, mut summary) = (Vec::new(), Vec::new());
    for expected in expected {
        let case = expected.case;
        let (verdicts, report) = attempts(expected, each).await?;
        let mut part = Figures::default();
        part.append(report);
        for verdict in &verdicts {
            summary.push(format!("{case}: {verdict}"));
            part.field(&format!("guarded_{}", verdict.figure), verdict.json());
        }
        shown.lines.push(format!("{case}:"));
        shown.part(case.name(), part);
        let failed = verdicts.iter().filter(|verdict| !verdict.passed());
        let failure = |verdict: &Verdict| verdict.failure(&file.display().to_string(), &case.command());
        failures.extend(failed.map(|verdict| format!("{case}: {}", failure(verdict))));
    }
    shown.lines.extend(summary);
    shown.field("compared", true);
    Ok(BenchReport::new("", shown, Memory::default()).with_failures(failures))
}

/// Measures a case until all its figures have passed once, or the attempts are used up.
async fn attempts(expected: &Expected<'_>, each: Duration) -> Result<(Vec<Verdict>, Figures), BenchError> {
    let mut measured = Vec::new();
    loop {
        let case = expected.case;
        say(&format!("measuring {case}, attempt {} of at most {ATTEMPTS}", measured.len() + 1));
        let (figures, report) = case.measure(each).await?;
        measured.push(figures);
        let verdicts = judge(&expected.limits, expected.baseline, &measured);
        if measured.len() == ATTEMPTS || verdicts.iter().all(Verdict::passed) {
            return Ok((verdicts, report));
        }
    }
}
