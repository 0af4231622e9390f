//! Sizes of actions in virtual time: what declared sizes cost, and what those learned from history do.
//!
//! A workload made by chance (see [`workload`]) waits as a whole, build behind build, for a few equal executors. An executor
//! starts what fits beside what it runs, the first that fits of the first [`LOOK_AHEAD`] in the queue, as large as
//! `policy::actions::packing` says. Its processors are shared evenly by what runs: more than they can bear makes all of it
//! slower, and what is measured of it smaller. Memory is not shared: **an action is killed when its peak exceeds what it
//! holds**, as by the limit of a control group, at the moment of its run at which it peaks; `policy::actions::after_copy`
//! decides whether it is tried again and with how much. What was killed has used its processors for nothing.

mod farm;
mod workload;

use serde::{Deserialize, Serialize};

use crate::{InvalidScenario, scenario::within};

/// An executor starts one of so many that wait: as many as it names in one request for work.
pub(crate) const LOOK_AHEAD: usize = 64;
/// Runs of an action at most, as by default settings.
const ATTEMPTS: u32 = 4;

/// A workload and a farm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizingScenario {
    /// Names the workload: equal seeds give equal runs.
    pub seed: u64,
    /// Targets of the repository, one action each.
    pub targets: u32,
    /// Builds, one behind the other.
    pub builds: u32,
    /// Of the targets, how many each build runs: those that a change touches. A share, in (0, 1].
    pub touched: f64,
    /// Of the actions of a build, how many have a command that was never seen: changed flags. A share, in [0, 1].
    pub changed_commands: f64,
    /// Of the actions of a build, how many are of a target that was never seen. A share, in [0, 1].
    pub new_targets: f64,
    /// Of the targets that need more memory than the default, how many declare a size. A share, in [0, 1].
    pub declaring: f64,
    /// Sigma of the log-normal distribution of what the runs of one command need, in [0, 1].
    pub memory_noise: f64,
    /// Executors, all alike.
    pub executors: u32,
    /// Processors of each.
    pub processors: u32,
    /// Bytes of memory of each, for actions.
    pub memory_bytes: u64,
    /// Actions that each runs at a time at most.
    pub slots: u32,
}

impl Default for SizingScenario {
    /// Thirty builds of a repository of 800 targets on four machines of 16 processors with 2 GB for each of them, as
    /// compute-optimised machines of clouds have, of which a tenth is the system's.
    fn default() -> Self {
        Self {
            seed: 1,
            targets: 800,
            builds: 30,
            touched: 0.4,
            changed_commands: 0.1,
            new_targets: 0.02,
            declaring: 0.8,
            memory_noise: 0.1,
            executors: 4,
            processors: 16,
            memory_bytes: 28_800_000_000,
            slots: 32,
        }
    }
}

impl SizingScenario {
    /// Refuses what cannot be simulated, or would take for ever.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        within("targets", f64::from(self.targets), 1.0, 1e5)?;
        within("builds", f64::from(self.builds), 1.0, 1e4)?;
        within("touched", self.touched, 0.0, 1.0)?;
        within("changed_commands", self.changed_commands, 0.0, 1.0)?;
        within("new_targets", self.new_targets, 0.0, 1.0)?;
        within("declaring", self.declaring, 0.0, 1.0)?;
        within("memory_noise", self.memory_noise, 0.0, 1.0)?;
        within("executors", f64::from(self.executors), 1.0, 1000.0)?;
        within("processors", f64::from(self.processors), 1.0, 1000.0)?;
        within("memory_bytes", self.memory_bytes as f64, 1e8, 1e15)?;
        within("slots", f64::from(self.slots), 1.0, 10_000.0)?;
        within("actions", f64::from(self.targets) * f64::from(self.builds) * self.touched, 0.0, 1e6)
    }
}

/// By what actions are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// What their clients ask for, or the default.
    Declared,
    /// What actions like them were seen to use.
    Learned,
    /// What they will use, which nobody knows: the best that could be.
    Known,
}

/// What became of the workload by each kind of sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizingRun {
    /// What was simulated.
    pub scenario: SizingScenario,
    /// By what clients ask for, or the default.
    pub declared: SizingFigures,
    /// By what was learned, from nothing on.
    pub learned: SizingFigures,
    /// By the truth, for comparison.
    pub known: SizingFigures,
}

/// What became of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SizingFigures {
    /// Actions that ended with success.
    pub succeeded: u64,
    /// Actions that ran out of memory in their last attempt.
    pub failed: u64,
    /// Runs that ran out of memory.
    pub kills: u64,
    /// Those of them in the first build, when nothing is known.
    pub kills_in_first_build: u64,
    /// Seconds until all had ended.
    pub makespan_seconds: f64,
    /// Processor time of the runs that succeeded, as a share of what all processors had until then.
    pub utilisation: f64,
    /// Peak of what runs, as a share of what it holds; mean over time.
    pub memory_used_of_held: f64,
}

impl SizingRun {
    /// By how much kills fall when sizes are learned: a share of those by declared sizes.
    pub fn fewer_kills(&self) -> f64 {
        1.0 - self.learned.kills as f64 / (self.declared.kills as f64).max(1.0)
    }
}

/// Takes one workload through declared, learned and known sizes.
pub fn compare_sizes(scenario: &SizingScenario) -> Result<SizingRun, InvalidScenario> {
    scenario.check()?;
    let jobs = workload::workload(scenario);
    let run = |sizes| farm::simulate(scenario, &jobs, sizes);
    Ok(SizingRun {
        scenario: *scenario,
        declared: run(Sizes::Declared),
        learned: run(Sizes::Learned),
        known: run(Sizes::Known),
    })
}

#[cfg(test)]
mod tests;
