//! `forebay bench workers`: measures how workers protect themselves and their builds.

use clap::{Args, ValueEnum};

use crate::{
    error::BenchError, figures::Figures, hungry_builds, memory::Memory, neighbours, report::BenchReport,
};

/// Options of `forebay bench workers`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// 40 builds of 1 GiB on a worker with 4 GiB: the congestion window compared with fixed numbers of workspaces
    Memory,
    /// Builds beside one that misbehaves, compared with the same builds beside an ordinary one
    Neighbours,
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &WorkersArgs) -> Result<BenchReport, BenchError> {
    let wants = |part| args.only.is_none_or(|only| only == part);
    let mut figures = Figures::default();
    if wants(Part::Memory)
        && let Some(memory) = hungry_builds::measure().await?
    {
        figures.part("memory", memory);
    }
    if wants(Part::Neighbours) {
        figures.part("neighbours", neighbours::measure().await?);
    }
    Ok(BenchReport::new("", figures, Memory::default()))
}
