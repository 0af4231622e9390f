//! `forebay bench`: runs a benchmark and prints its report.

use std::process::ExitCode;

use command_line::{failure::Failure, globals::Globals, stdout};

pub(crate) use bench::BenchArgs;

/// Runs the chosen benchmark and prints the report.
pub(crate) async fn run(args: &BenchArgs, globals: &Globals) -> Result<ExitCode, Failure> {
    let report = Box::pin(bench::measure(args)).await?;
    if globals.json {
        stdout::json(&report)?;
    } else {
        stdout::line(&report.to_string())?;
    }
    report.check()?;
    Ok(ExitCode::SUCCESS)
}
