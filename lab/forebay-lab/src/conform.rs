//! `forebay conform`: checks any Remote Execution API server.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::Args;
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE, USAGE},
    globals::Globals,
    stdout,
};
use conform::{ConformError, Options};

/// Options of `forebay conform`.
#[derive(Debug, Args)]
pub(crate) struct ConformArgs {
    /// Server to check: grpc://HOST:PORT
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,
    /// Instance name to use
    #[arg(long, value_name = "NAME", default_value = "")]
    instance: String,
    /// Instance whose name has several segments
    #[arg(long, value_name = "NAME", default_value = "main/b/c")]
    nested_instance: String,
    /// Instance that does not exist
    #[arg(long, value_name = "NAME", default_value = "no-such-instance")]
    unknown_instance: String,
    /// Second endpoint of the same farm, without execution [default: skip the checks that need one]
    #[arg(long, value_name = "ENDPOINT")]
    cache_endpoint: Option<String>,
    /// Second endpoint, whose store is full [default: skip the checks that need one]
    #[arg(long, value_name = "ENDPOINT")]
    full_endpoint: Option<String>,
    /// Platform property of every action (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = command_line::pair)]
    platform: Vec<(String, String)>,
    /// Run only the checks with these numbers, e.g. 1,5,80-83 [default: all]
    #[arg(long, value_name = "NUMBERS", value_parser = numbers)]
    only: Option<Numbers>,
    /// Number of checks to run in parallel
    #[arg(long, value_name = "N", default_value_t = 16)]
    jobs: usize,
    /// Time limit of one check in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    limit: u64,
}

#[derive(Debug, Clone)]
struct Numbers(BTreeSet<u16>);

fn numbers(text: &str) -> Result<Numbers, String> {
    let wrong = || "expected numbers and ranges, e.g. 1,5,80-83".to_owned();
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u16, u16) =
            (from.trim().parse().map_err(|_| wrong())?, to.trim().parse().map_err(|_| wrong())?);
        if from > to {
            return Err(wrong());
        }
        all.extend(from..=to);
    }
    Ok(Numbers(all))
}

/// Runs the checks. The exit code is 1 if one of them fails.
pub(crate) async fn run(args: ConformArgs, globals: &Globals) -> Result<ExitCode, Failure> {
    let options = Options {
        endpoint: args.endpoint,
        cache_endpoint: args.cache_endpoint,
        full_endpoint: args.full_endpoint,
        instance: args.instance,
        nested_instance: args.nested_instance,
        unknown_instance: args.unknown_instance,
        platform: args.platform,
        only: args.only.map(|numbers| numbers.0).unwrap_or_default(),
        jobs: args.jobs,
        time_limit: Duration::from_secs(args.limit),
        ..Options::default()
    };
    let mut fault = None;
    let report = conform::run(options, |result| {
        let printed = if globals.json { stdout::json(result) } else { stdout::line(&result.line()) };
        fault = fault.take().or(printed.err());
    })
    .await
    .map_err(|error| Failure::of(exit_code(&error), &error))?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    if !globals.json {
        let (pass, fail, skip) = (report.pass, report.fail, report.skip);
        let seconds = report.millis as f64 / 1000.0;
        stdout::line(&format!("{pass} pass, {fail} fail, {skip} skip in {seconds:.1} s"))?;
    }
    Ok(if report.failed() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

fn exit_code(error: &ConformError) -> u8 {
    match error {
        ConformError::Connect { .. } => UNREACHABLE,
        ConformError::Capabilities { .. } => USAGE,
    }
}
