//! `forebay bench`: runs a benchmark and prints its report.

use std::process::ExitCode;

use bench::BenchError;

use crate::{
    failure::{FAILED, Failure},
    globals::Globals,
    stdout,
};

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

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage(line) => Self::usage(line),
            BenchError::Failed(line) => Self::plain(FAILED, line),
            BenchError::Client(error) => (*error).into(),
            BenchError::Remote(error) => (*error).into(),
            BenchError::Transfer(error) => (*error).into(),
        }
    }
}
