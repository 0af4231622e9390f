//! `forebay bench`: benchmarks this machine against a baseline of the same run.

mod actions;
mod affinity;
mod bare_stream;
mod builds;
mod calls;
mod cancelling;
mod cas;
mod deaths;
mod decisions;
mod error;
mod farm;
mod files;
mod fit;
mod floor;
mod input_roots;
mod join;
mod latency;
mod log;
mod memory;
mod merge;
mod messages;
mod offers;
mod progress;
mod queue;
mod rates;
mod report;
mod scenarios;
mod scheduling;
mod sharing;
mod shell;
mod sizing;
mod tail;
mod waiters;
mod window;
mod work;
mod workspaces;

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;

pub use error::BenchError;

use self::{
    actions::{ActionsArgs, ActionsReport},
    builds::BuildsArgs,
    cas::{CasArgs, CasReport},
    report::BuildsReport,
    scheduling::{SchedulingArgs, SchedulingReport},
    workspaces::{WorkspacesArgs, WorkspacesReport},
};

/// Options of `forebay bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Benchmark builds: create, get, start latency, and builds of /bin/true compared with bare spawns of it
    Builds(BuildsArgs),
    /// Benchmark actions: no-op actions compared with bare spawns, cache hits, input roots
    Actions(ActionsArgs),
    /// Benchmark the scheduler: decisions, warm workspaces, offers to workers
    Scheduling(SchedulingArgs),
    /// Benchmark warm workspaces compared with empty ones, for a stream of builds of a real project
    Workspaces(WorkspacesArgs),
    /// Benchmark the content-addressable store: look-ups, small blobs, streams compared with a bare gRPC stream
    Cas(CasArgs),
}

/// The report of a benchmark: as text, or serialized for `--json`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct BenchReport(Measured);

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Measured {
    Builds(Box<BuildsReport>),
    Actions(Box<ActionsReport>),
    Scheduling(SchedulingReport),
    Workspaces(WorkspacesReport),
    Cas(Box<CasReport>),
}

/// Runs the chosen benchmark.
pub async fn measure(args: &BenchArgs) -> Result<BenchReport, BenchError> {
    let measured = match &args.what {
        BenchCommand::Builds(args) => Measured::Builds(Box::new(builds::measure(args).await?)),
        BenchCommand::Actions(args) => {
            let report = Box::pin(actions::measure(args)).await?;
            Measured::Actions(Box::new(report))
        }
        BenchCommand::Scheduling(args) => Measured::Scheduling(scheduling::measure(args).await?),
        BenchCommand::Workspaces(args) => Measured::Workspaces(workspaces::measure(args).await?),
        BenchCommand::Cas(args) => Measured::Cas(Box::new(cas::measure(args).await?)),
    };
    Ok(BenchReport(measured))
}

impl BenchReport {
    /// Fails if a process of the farm used more memory than it may.
    pub fn check(&self) -> Result<(), BenchError> {
        match &self.0 {
            Measured::Actions(report) => report.memory.check(),
            Measured::Cas(report) => report.memory.check(),
            Measured::Builds(_) | Measured::Scheduling(_) | Measured::Workspaces(_) => Ok(()),
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Measured::Builds(report) => fmt::Display::fmt(report, f),
            Measured::Actions(report) => fmt::Display::fmt(report, f),
            Measured::Scheduling(report) => fmt::Display::fmt(report, f),
            Measured::Workspaces(report) => fmt::Display::fmt(report, f),
            Measured::Cas(report) => fmt::Display::fmt(report, f),
        }
    }
}
