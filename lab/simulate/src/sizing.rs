//! Sizes of actions in virtual time: the effects of declared sizes, and of sizes learned from history.
//!
//! A random workload (see [`workload`]) waits as a whole, build after build, for a few equal executors. An executor
//! starts the first action that fits beside its running ones, of the first [`LOOK_AHEAD`] in the queue, with the
//! size that `policy::actions::packing` decides. Running actions share its processors evenly: more actions than
//! processors make all of them slower, and their measured usage smaller. Memory is not shared: **an action is killed
//! when its peak exceeds its reservation**, as by the limit of a control group, at the moment of its run at which it
//! peaks; `policy::actions::after_copy` decides whether it is tried again and with how much. The processor time of
//! killed runs is wasted.

mod farm;
mod workload;

use serde::{Deserialize, Serialize};

use crate::{InvalidScenario, scenario::within};

/// Number of queued actions from which an executor starts one: as many as it names in one request for work.
pub(crate) const LOOK_AHEAD: usize = 64;
/// Maximum number of runs of an action, as in the default settings.
const ATTEMPTS: u32 = 4;

/// A workload and a farm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizingScenario {
    /// Seed of the workload: equal seeds give equal runs.
    pub seed: u64,
    /// Number of targets in the repository, one action each.
    pub targets: u32,
    /// Number of builds, one after another.
    pub builds: u32,
    /// Share of the targets that each build runs because a change affects them, in (0, 1].
    pub touched: f64,
    /// Share of a build's actions with a command that was never seen (changed flags), in [0, 1].
    pub changed_commands: f64,
    /// Share of a build's actions whose target was never seen, in [0, 1].
    pub new_targets: f64,
    /// Share of the targets above the default memory that declare a size, in [0, 1].
    pub declaring: f64,
    /// Sigma of the log-normal distribution of memory needs among the runs of one command, in [0, 1].
    pub memory_noise: f64,
    /// Number of executors, all equal.
    pub executors: u32,
    /// Number of processors of each executor.
    pub processors: u32,
    /// Memory of each executor for actions, in bytes.
    pub memory_bytes: u64,
    /// Maximum number of actions that an executor runs at a time.
    pub slots: u32,
}

impl Default for SizingScenario {
    /// Thirty builds of a repository of 800 targets on four machines with 16 processors and 2 GB per processor, like
    /// compute-optimised machines of clouds; a tenth of the memory is for the system.
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
    /// Refuses scenarios that are invalid or would run too long.
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

/// Sizes by which actions are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Sizes that clients declare, or the default.
    Declared,
    /// Sizes learned from similar actions.
    Learned,
    /// True sizes, which no scheduler knows: the upper bound.
    Known,
}

/// Results of the workload for each kind of sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizingRun {
    pub scenario: SizingScenario,
    /// Figures with sizes that clients declare, or the default.
    pub declared: SizingFigures,
    /// Figures with learned sizes, starting without history.
    pub learned: SizingFigures,
    /// Figures with the true sizes, for comparison.
    pub known: SizingFigures,
}

/// Figures of one run of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SizingFigures {
    /// Number of actions that succeeded.
    pub succeeded: u64,
    /// Number of actions that ran out of memory in their last attempt.
    pub failed: u64,
    /// Number of runs that ran out of memory.
    pub kills: u64,
    /// Number of those runs in the first build, when there is no history.
    pub kills_in_first_build: u64,
    /// Seconds until all actions had ended.
    pub makespan_seconds: f64,
    /// Processor time of the successful runs, as a share of the time of all processors until the end.
    pub utilisation: f64,
    /// Peak memory of running actions as a share of their reservations; mean over time.
    pub memory_used_of_held: f64,
}

impl SizingRun {
    /// Reduction of kills by learned sizes, as a share of the kills with declared sizes.
    pub fn fewer_kills(&self) -> f64 {
        1.0 - self.learned.kills as f64 / (self.declared.kills as f64).max(1.0)
    }
}

/// Runs one workload with declared, learned and known sizes.
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
