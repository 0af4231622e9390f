//! Builds of `/bin/true` with and without the sandbox of builds, and its filter of system calls.

use std::time::Duration;

use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    floor::Spawn,
    rates::BuildLoad,
    rounds::{Rounds, Windows},
    statistics::median_and_worst,
};

/// Number of farms of each kind, started in turn.
const ROUNDS: usize = 3;
const KINDS: [(&str, [(&str, &str); 2]); 3] = [
    ("without a sandbox", [("FOREBAY_BUILD_SANDBOX", "none"), ("FOREBAY_SANDBOX_FILTER", "true")]),
    ("in a sandbox", [("FOREBAY_BUILD_SANDBOX", "bubblewrap"), ("FOREBAY_SANDBOX_FILTER", "true")]),
    (
        "in a sandbox without its filter",
        [("FOREBAY_BUILD_SANDBOX", "bubblewrap"), ("FOREBAY_SANDBOX_FILTER", "false")],
    ),
];

/// Compares the rates of builds, each relative to the bare spawns around it.
pub(crate) async fn compare(workspaces: u16, window: Duration) -> Result<Figures, BenchError> {
    let mut ratios: [Vec<f64>; KINDS.len()] = Default::default();
    for round in 1..=ROUNDS {
        for ((kind, settings), ratios) in KINDS.iter().zip(&mut ratios) {
            say(&format!("measuring builds {kind}, {round} of {ROUNDS}"));
            let farm = BenchFarm::start_with(workspaces, &["--executors", "0"], settings).await?;
            let load = BuildLoad { farm: &farm };
            let rounds = Rounds::measure(&farm, Spawn::Plain, Windows::of(window), &load).await?;
            ratios.push(rounds.throughput_ratio());
            farm.stop().await;
        }
    }
    let [plain, sandboxed, unfiltered] = ratios.map(|mut of| median_and_worst(&mut of).0);
    let mut figures = Figures::default();
    figures.figure("plain_to_spawn_ratio", "builds without a sandbox to bare spawns", plain, "");
    figures.figure("sandboxed_to_plain_ratio", "builds in a sandbox to those without", sandboxed / plain, "");
    figures.figure(
        "filtered_to_unfiltered_ratio",
        "builds with the filter to those without",
        sandboxed / unfiltered,
        "",
    );
    Ok(figures)
}
