//! Compares learned and declared sizes of actions with a generated workload in virtual time, see `simulate`.

use simulate::{SizingFigures, SizingRun, SizingScenario, compare_sizes};

use crate::{error::BenchError, figures::Figures, statistics::mean};

/// Chooses the figures of one kind of sizes.
type FiguresOf = fn(&SizingRun) -> &SizingFigures;

/// Seeds of the workloads, over which the figures are averaged.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Simulates the workloads with declared, learned and true sizes.
pub(crate) fn measure() -> Result<Figures, BenchError> {
    let run = |seed| compare_sizes(&SizingScenario { seed, ..SizingScenario::default() });
    let runs: Result<Vec<SizingRun>, _> = SEEDS.map(run).collect();
    let runs = runs.map_err(|error| BenchError::new("simulating sizes of actions", &error))?;
    let mean_of = |of: &dyn Fn(&SizingRun) -> f64| mean(runs.iter().map(of));
    let mut figures = Figures::default();
    figures.field("workloads", runs.len());
    let actions = mean_of(&|run| (run.declared.succeeded + run.declared.failed) as f64);
    let name = format!("actions, mean of {} generated workloads", runs.len());
    figures.figure("actions", &name, actions, "");
    let sizes: [(&str, &str, FiguresOf); 3] = [
        ("declared", "declared", |run| &run.declared),
        ("learned", "learned", |run| &run.learned),
        // The best possible result.
        ("known", "true", |run| &run.known),
    ];
    for (key, name, of) in sizes {
        let kills = mean_of(&|run| of(run).kills as f64);
        let utilisation = mean_of(&|run| of(run).utilisation);
        let used = mean_of(&|run| of(run).memory_used_of_held);
        let makespan = mean_of(&|run| of(run).makespan_seconds);
        let mut part = Figures::default();
        part.figure("out_of_memory_kills", &format!("out-of-memory kills, {name} sizes"), kills, "");
        part.field("failed", mean_of(&|run| of(run).failed as f64));
        part.field("utilisation", utilisation).field("memory_used_of_held", used);
        part.line(&format!("processors in use, {name} sizes"), utilisation * 100.0, "%");
        part.line(&format!("memory used of reserved, {name} sizes"), used * 100.0, "%");
        part.figure("makespan_s", &format!("makespan, {name} sizes"), makespan, "s");
        figures.part(key, part);
    }
    // Reduction of kills as a fraction of those with declared sizes.
    let fewer = mean_of(&SizingRun::fewer_kills);
    let worst = runs.iter().map(SizingRun::fewer_kills).fold(1.0, f64::min);
    figures.field("fewer_kills", fewer).field("fewer_kills_worst", worst);
    figures.line("fewer kills by learned sizes", fewer * 100.0, "%");
    figures.line("the same, in the worst workload", worst * 100.0, "%");
    Ok(figures)
}
