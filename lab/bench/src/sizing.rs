//! Compares learned and declared sizes of actions with a generated workload in virtual time, see `simulate`.

use std::fmt;

use serde::Serialize;
use simulate::{SizingFigures, SizingRun, SizingScenario, compare_sizes};

use crate::{error::BenchError, report::line};

/// Seeds of the workloads, over which the figures are averaged.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Means over several workloads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sizing {
    workloads: usize,
    actions: f64,
    declared: Packed,
    learned: Packed,
    /// With the true sizes, the best possible result.
    known: Packed,
    /// Reduction of kills as a fraction of those with declared sizes: mean and worst of the workloads.
    fewer_kills: f64,
    fewer_kills_worst: f64,
}

/// Figures with one kind of sizes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Packed {
    out_of_memory_kills: f64,
    failed: f64,
    makespan_s: f64,
    utilisation: f64,
    memory_used_of_held: f64,
}

/// Simulates the workloads with declared, learned and true sizes.
pub(crate) fn measure() -> Result<Sizing, BenchError> {
    let run = |seed| compare_sizes(&SizingScenario { seed, ..SizingScenario::default() });
    let runs: Result<Vec<SizingRun>, _> = SEEDS.map(run).collect();
    let runs = runs.map_err(|error| BenchError::new("simulating sizes of actions", &error))?;
    let mean = |of: &dyn Fn(&SizingRun) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let packed = |of: fn(&SizingRun) -> &SizingFigures| Packed {
        out_of_memory_kills: mean(&|run| of(run).kills as f64),
        failed: mean(&|run| of(run).failed as f64),
        makespan_s: mean(&|run| of(run).makespan_seconds),
        utilisation: mean(&|run| of(run).utilisation),
        memory_used_of_held: mean(&|run| of(run).memory_used_of_held),
    };
    Ok(Sizing {
        workloads: runs.len(),
        actions: mean(&|run| (run.declared.succeeded + run.declared.failed) as f64),
        declared: packed(|run| &run.declared),
        learned: packed(|run| &run.learned),
        known: packed(|run| &run.known),
        fewer_kills: mean(&SizingRun::fewer_kills),
        fewer_kills_worst: runs.iter().map(SizingRun::fewer_kills).fold(1.0, f64::min),
    })
}

impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: f64, unit: &str| line(f, name, Some(value), unit);
        line(&format!("actions, mean of {} generated workloads", self.workloads), self.actions, "")?;
        for (name, packed) in [("declared", self.declared), ("learned", self.learned), ("true", self.known)] {
            line(&format!("out-of-memory kills, {name} sizes"), packed.out_of_memory_kills, "")?;
            line(&format!("processors in use, {name} sizes"), packed.utilisation * 100.0, "%")?;
            line(&format!("memory used of reserved, {name} sizes"), packed.memory_used_of_held * 100.0, "%")?;
            line(&format!("makespan, {name} sizes"), packed.makespan_s, "s")?;
        }
        line("fewer kills by learned sizes", self.fewer_kills * 100.0, "%")?;
        line("the same, in the worst workload", self.fewer_kills_worst * 100.0, "%")
    }
}
