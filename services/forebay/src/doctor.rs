//! `forebay doctor`: checks that all dependencies and services are healthy, with advice on problems.

mod address_checks;
mod archive_checks;
mod bus_checks;
mod certificate_end;
mod clock_checks;
mod disk_checks;
mod executor_checks;
mod machine_checks;
mod measure;
mod quota_checks;
mod security_checks;
mod store_checks;

use std::process::ExitCode;

use clap::Args;
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE},
    globals::Globals,
    stdout,
};
use serde::Serialize;
use settings::Settings;

use crate::style::Tone;

/// Options of `forebay doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check whether times measured on this machine can be compared, instead of the farm
    ///
    /// Takes one second and needs no farm. Exit code 1: something disturbs measurements.
    #[arg(long)]
    measure: bool,
}

impl DoctorArgs {
    /// Whether the checks need a farm and its settings.
    pub(crate) fn asks_a_farm(&self) -> bool {
        !self.measure
    }
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// The check found no problem.
    Ok,
    /// It works with limitations.
    Warn,
    /// It does not work at all.
    Fail,
}

/// The finding of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    status: Status,
    found: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// Whether a server or service is unreachable: exit code 4.
    #[serde(skip)]
    unreachable: bool,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, found: found.into(), advice: None, unreachable: false }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: Status::Warn, advice: Some(advice.into()), ..Self::ok(check, found) }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::warn(check, found, advice) }
    }

    fn unreachable(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { unreachable: true, ..Self::fail(check, found, advice) }
    }

    fn line(&self, paint: impl Fn(Tone, &str) -> String) -> String {
        let status = match self.status {
            Status::Ok => paint(Tone::Good, "ok  "),
            Status::Warn => paint(Tone::Warning, "warn"),
            Status::Fail => paint(Tone::Bad, "FAIL"),
        };
        let advice = self.advice.as_ref().map(|advice| format!(" -> {advice}")).unwrap_or_default();
        format!("{status}  {:<10} {}{advice}", self.check, self.found)
    }
}

/// Runs all checks without waiting for servers. Exit codes: 0 no failure, 1 a check failed, 4 a server
/// or service is unreachable.
pub(crate) async fn run(
    args: &DoctorArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let findings = if args.measure {
        measure::run().await
    } else {
        let mut findings = bus_checks::run(globals, settings).await;
        findings.extend(machine_checks::run());
        findings
    };
    if globals.json {
        stdout::json(&findings)?;
    } else {
        for finding in &findings {
            stdout::line(&finding.line(Tone::stdout))?;
        }
    }
    Ok(ExitCode::from(exit_code(&findings)))
}

fn exit_code(findings: &[Finding]) -> u8 {
    if findings.iter().any(|finding| finding.unreachable) {
        return UNREACHABLE;
    }
    u8::from(findings.iter().any(|finding| finding.status == Status::Fail)) * FAILED
}

#[cfg(test)]
mod tests {
    use super::{Finding, exit_code};

    #[test]
    fn exit_codes() {
        let ok = Finding::ok("git", "2.43");
        let warn = Finding::warn("git", "not found", "install git");
        let fail = Finding::fail("store", "full", "free some space");
        let gone = Finding::unreachable("redis", "not reachable", "start it");
        assert_eq!(exit_code(&[ok.clone(), warn.clone()]), 0);
        assert_eq!(exit_code(&[ok.clone(), fail.clone()]), 1);
        assert_eq!(exit_code(&[gone, fail]), 4);
        let line = |finding: &Finding| finding.line(|_, text| text.to_owned());
        assert_eq!(line(&ok), "ok    git        2.43");
        assert_eq!(line(&warn), "warn  git        not found -> install git");
    }
}
