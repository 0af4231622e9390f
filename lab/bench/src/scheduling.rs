//! `forebay bench scheduling`: measures the rate of scheduling decisions.

use std::{fmt, time::Duration};

use clap::Args;
use serde::Serialize;

use crate::{
    decisions,
    error::BenchError,
    offers,
    progress::say,
    report::{Machine, Percentiles, line},
};

/// Options of `forebay bench scheduling`.
#[derive(Debug, Args)]
pub(crate) struct SchedulingArgs {
    /// Duration of each rate measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Number of queued builds while offers are measured
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    queued: u64,
    /// Measure only this part: decisions or offers
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

/// The report that `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct SchedulingReport {
    machine: Machine,
    dequeues_per_s: Option<f64>,
    workspace_lookup_us: Option<Percentiles>,
    queued: u64,
    accepted_offers_per_s: Option<f64>,
}

/// Runs `forebay bench scheduling`.
pub(crate) async fn measure(args: &SchedulingArgs) -> Result<SchedulingReport, BenchError> {
    let wants = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let window = Duration::from_secs(args.seconds);
    let mut report = SchedulingReport {
        machine: Machine::here(),
        dequeues_per_s: None,
        workspace_lookup_us: None,
        queued: args.queued,
        accepted_offers_per_s: None,
    };
    if wants("decisions") {
        say("measuring decisions on builds and workspaces");
        report.dequeues_per_s = Some(decisions::dequeues(window));
        report.workspace_lookup_us = Some(decisions::lookups());
    }
    if wants("offers") {
        report.accepted_offers_per_s = Some(offers::measure(args.queued, window).await?);
    }
    Ok(report)
}

impl fmt::Display for SchedulingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        line(f, "Algorithm 1 over 1,000 groups", self.dequeues_per_s, "builds/s")?;
        let lookup = self.workspace_lookup_us;
        line(f, "warm workspace among 100,000, p50", lookup.map(|p| p.p50), "us")?;
        line(f, "warm workspace among 100,000, p99", lookup.map(|p| p.p99), "us")?;
        let name = format!("accepted offers with {} queued", self.queued);
        line(f, &name, self.accepted_offers_per_s, "/s")
    }
}
