//! `forebay bench scheduling`: measures the rate of scheduling decisions.

use std::time::Duration;

use clap::Args;
use command_line::failure::say;

use crate::{decisions, error::BenchError, figures::Figures, memory::Memory, offers, report::BenchReport};

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

/// Runs `forebay bench scheduling`.
pub(crate) async fn measure(args: &SchedulingArgs) -> Result<BenchReport, BenchError> {
    let wants = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let window = Duration::from_secs(args.seconds);
    let mut figures = Figures::default();
    figures.field("queued", args.queued);
    if wants("decisions") {
        say("measuring decisions on builds and workspaces");
        let rate = decisions::dequeues(window);
        figures.figure("dequeues_per_s", "Algorithm 1 over 1,000 groups", rate, "builds/s");
        let name = "warm workspace among 100,000";
        figures.percentiles("workspace_lookup_us", name, decisions::lookups(), "us");
    }
    if wants("offers") {
        let rate = offers::measure(args.queued, window).await?;
        let name = format!("accepted offers with {} queued", args.queued);
        figures.figure("accepted_offers_per_s", &name, rate, "/s");
    }
    Ok(BenchReport::new("", figures, Memory::default()))
}
