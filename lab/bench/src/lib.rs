//! `forebay bench`: benchmarks this machine against a baseline of the same run.

mod accepted;
mod actions;
mod affinity;
mod alternation;
mod archive;
mod bare_stream;
mod builds;
mod bytes_stream;
mod calls;
mod cancelling;
mod cas;
mod console;
mod counts;
mod deaths;
mod decisions;
mod error;
mod farm;
mod figures;
mod files;
mod fit;
mod floor;
mod granting;
mod guard;
mod hungry_builds;
mod image_blobs;
mod image_table;
mod images;
mod index_wait;
mod input_roots;
mod join;
mod latency;
mod ledger;
mod light_executors;
mod log;
mod memory;
mod memory_group;
mod merge;
mod neighbours;
mod offers;
mod plot_file;
mod processor;
mod program;
mod queue;
mod rates;
mod redis_info;
mod replay;
mod report;
mod rounds;
mod sandboxed;
mod scenarios;
mod scheduling;
mod secured;
mod sharing;
mod shell;
mod sizing;
mod slots;
mod stability;
mod statistics;
mod tail;
mod traces;
mod vec_stream;
mod waiters;
mod window;
mod work;
mod workers;
mod workspaces;
mod zones;

use clap::{Args, Subcommand};

pub use error::BenchError;
pub use report::BenchReport;

use self::{
    actions::ActionsArgs, alternation::AlternationArgs, archive::ArchiveArgs, builds::BuildsArgs,
    cas::CasArgs, console::LogArgs, granting::FarmArgs, guard::GuardArgs, images::ImagesArgs,
    scheduling::SchedulingArgs, stability::StabilityArgs, workers::WorkersArgs, workspaces::WorkspacesArgs,
    zones::ZonesArgs,
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
    /// Benchmark workers that protect themselves and their builds from builds that need much
    Workers(WorkersArgs),
    /// Benchmark warm workspaces compared with empty ones, for a stream of builds of a real project
    Workspaces(WorkspacesArgs),
    /// Benchmark the content-addressable store: look-ups, small blobs, streams compared with a bare gRPC stream
    Cas(CasArgs),
    /// Benchmark what trust zones and their limits cost uploads and look-ups of small blobs
    Zones(ZonesArgs),
    /// Benchmark the archive: how fast builds are written, and how fast it answers when it has many
    Archive(ArchiveArgs),
    /// Benchmark what traces cost builds and actions
    Traces(AlternationArgs),
    /// Benchmark what keys and TLS cost builds and actions
    Secure(AlternationArgs),
    /// Benchmark long console output: how fast it is kept, followed and read again in windows
    Log(LogArgs),
    /// Benchmark schedulers, Redis and the bus with many executors that run nothing
    Farm(FarmArgs),
    /// Benchmark actions in container images: their first start, later ones, and the disk that images take
    Images(ImagesArgs),
    /// Measure how far measured times can be trusted on this machine, and how many measurements at a time do not disturb each other
    Stability(StabilityArgs),
    /// Compare the cost of builds and actions with a file of expected figures, and fail if it grew
    Guard(GuardArgs),
}

/// Runs the chosen benchmark.
pub async fn measure(args: &BenchArgs) -> Result<BenchReport, BenchError> {
    match &args.what {
        BenchCommand::Builds(args) => builds::measure(args).await,
        BenchCommand::Actions(args) => Box::pin(actions::measure(args)).await,
        BenchCommand::Scheduling(args) => scheduling::measure(args).await,
        BenchCommand::Workers(args) => Box::pin(workers::measure(args)).await,
        BenchCommand::Workspaces(args) => workspaces::measure(args).await,
        BenchCommand::Cas(args) => cas::measure(args).await,
        BenchCommand::Zones(args) => zones::measure(args).await,
        BenchCommand::Archive(args) => Box::pin(archive::measure(args)).await,
        BenchCommand::Traces(args) => Box::pin(traces::measure(args)).await,
        BenchCommand::Secure(args) => Box::pin(secured::measure(args)).await,
        BenchCommand::Log(args) => Box::pin(console::measure(args)).await,
        BenchCommand::Farm(args) => Box::pin(granting::measure(args)).await,
        BenchCommand::Images(args) => Box::pin(images::measure(args)).await,
        BenchCommand::Stability(args) => Box::pin(stability::measure(args)).await,
        BenchCommand::Guard(args) => Box::pin(guard::measure(args)).await,
    }
}
