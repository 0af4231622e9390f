//! `forebay report`: what builds of each priority cost, and how calls were answered.

mod calls;

use std::process::ExitCode;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::{Group, PriorityReport, ReportReply, ReportRequest};
use serde::Serialize;
use settings::Settings;

use calls::CallFigures;

use crate::{bytes_text::seconds, farm::Farm, moment::Moment};

const EXAMPLES: &str = "\
Examples:
  forebay report --since 7d
      means of the builds of the last week
  forebay report --since 2026-11-01T00:00:00Z --group ci --json
      those of a group, as JSON

The rows:
  builds        builds that were submitted since then and not rejected, and their share
  size          of a build as it was accepted
  targets       that a build names; of a job, its tasks
  queue         wait of a build's last attempt
  preparation   of the workspace
  actions       that were executed; cached ones were not
  action queue  wait of an action for an executor
  execution     from the prepared workspace to the end of the build

All but `builds` and `actions` are means. They come from the archive.

With --prometheus, the address of a Prometheus that reads the farm's metrics, a second table shows each call of the
APIs: calls per second (mean, minimum, median and maximum of rates over 5 minutes), latency (mean, median and 99th
percentile) and availability, the share that did not fail because of the farm.";

/// Options of `forebay report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Only builds submitted at this time or later: an age such as 2h or 30d, or 2026-11-24T08:00:00Z
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = Moment::parse)]
    since: Moment,
    /// Only builds of this group [default: all groups]
    #[arg(long)]
    group: Option<Group>,
    /// Add rates, latencies and availability of all calls, from this Prometheus
    #[arg(long, value_name = "URL")]
    prometheus: Option<String>,
}

/// The whole report, as JSON.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    builds: ReportReply,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<CallFigures>>,
}

/// Shows what builds of each priority cost.
pub(crate) async fn run(
    args: &ReportArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let now = farm.now();
    let since_ms = args.since.before(now);
    let request = ReportRequest { since_ms, group: args.group.clone() };
    let builds = farm.call(async |client| client.report(&request).await).await?;
    let calls = match &args.prometheus {
        Some(url) => Some(calls::read(url, now.since(since_ms)).await?),
        None => None,
    };
    if globals.json {
        stdout::json(&Report { builds, calls })?;
        return Ok(ExitCode::SUCCESS);
    }
    stdout::line(&text(&builds))?;
    if let Some(calls) = calls {
        stdout::line(&format!("\n{}", calls::text(&calls)))?;
    }
    if builds.truncated {
        say("only the last 1,000,000 builds and actions were read: choose a later --since");
    }
    Ok(ExitCode::SUCCESS)
}

/// A column for each priority.
fn text(report: &ReportReply) -> String {
    type Figure = fn(&PriorityReport) -> String;
    let rows: [(&str, Figure); 8] = [
        ("builds", |of| format!("{} ({:.1} %)", of.builds, of.share * 100.0)),
        ("size", |of| mean(of.size_bytes, |bytes| format!("{:.1} kB", bytes / 1000.0))),
        ("targets", |of| mean(of.targets, |targets| format!("{targets:.1}"))),
        ("queue", |of| time(of.queue_ms)),
        ("preparation", |of| time(of.preparation_ms)),
        ("actions", |of| of.actions.to_string()),
        ("action queue", |of| time(of.action_queue_ms)),
        ("execution", |of| time(of.execution_ms)),
    ];
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = report.priorities.iter().map(|of| of.priority.as_str().to_uppercase());
    table.add_row(std::iter::once(String::new()).chain(names));
    for (name, figure) in rows {
        table.add_row(std::iter::once(name.to_owned()).chain(report.priorities.iter().map(figure)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn mean(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

fn time(ms: Option<f64>) -> String {
    mean(ms, |ms| seconds(ms / 1000.0))
}
