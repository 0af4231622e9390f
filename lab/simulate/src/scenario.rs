//! Quota scenarios: the input of a simulation.

use model::{Group, ParseIdError};
use policy::{ControlSettings, InvalidControlSettings};
use serde::{Deserialize, Serialize};

/// Groups with quotas, under loads that change in steps. All builds use x86 executors; workspaces are never short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaScenario {
    /// Seed of the run: equal seeds give equal runs.
    pub seed: u64,
    /// Quota groups that share the farm.
    pub groups: Vec<QuotaGroup>,
    /// The steps of the load.
    pub phases: Vec<QuotaPhase>,
    /// Random properties of builds.
    pub builds: BuildMix,
    /// Model of the occupancy estimates.
    pub estimator: Estimator,
    /// Gains of the governor.
    #[serde(with = "Gains")]
    pub governor: ControlSettings,
    /// Capacity of the farm in ESU, if the governor knows it.
    pub capacity_esu: Option<f64>,
}

/// A quota group of the scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaGroup {
    pub name: Group,
    /// Quota of the group in ESU of x86.
    pub quota_esu: f64,
}

/// A step of the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaPhase {
    /// Duration of the phase in seconds.
    pub seconds: u32,
    /// Load of each group, in the order of the groups.
    pub loads: Vec<Load>,
}

/// Load that a group puts on the farm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// No load: waiting builds are withdrawn, running builds continue.
    Idle,
    /// More builds than the group could ever get started.
    Hungry,
    /// Builds that arrive at random and occupy this share of the group's quota on average.
    Share(f64),
}

/// Random properties of builds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BuildMix {
    /// Mean duration in seconds: a tenth of it plus an exponential rest, at most four times the mean in total.
    pub mean_seconds: f64,
    /// Mean occupancy in ESU.
    pub mean_esu: f64,
    /// Largest random deviation of a build's occupancy, as a share of the mean, in [0, 1].
    pub esu_spread: f64,
    /// Seconds that a build needs to reach its occupancy, in proportion to its age.
    pub ramp_seconds: f64,
}

/// Model of the occupancy estimates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Like a trained model: `bias` times the truth, with a random error of up to `noise` of it.
    Model {
        /// Factor by which all estimates are wrong.
        bias: f64,
        /// Largest additional random error of an estimate, as a share, in [0, 1).
        noise: f64,
    },
    /// One ESU for every build: the default that the paper warns of (section 5.3).
    OneEsu,
}

/// Reason why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidScenario {
    #[error(transparent)]
    Governor(#[from] InvalidControlSettings),
    #[error("{name} is {value}: expected {least} to {most}")]
    OutOfRange { name: &'static str, value: f64, least: f64, most: f64 },
    #[error("phase {phase} has {loads} loads for {groups} groups")]
    Loads {
        /// Index of the phase, from 0.
        phase: usize,
        loads: usize,
        groups: usize,
    },
    #[error("group {0} is listed twice")]
    Twice(Group),
}

impl Default for BuildMix {
    fn default() -> Self {
        Self { mean_seconds: 120.0, mean_esu: 2.5, esu_spread: 0.5, ramp_seconds: 20.0 }
    }
}

impl Default for QuotaScenario {
    /// Three groups share 1000 ESU for an hour: one becomes idle and returns, then the two others do.
    fn default() -> Self {
        use Load::{Hungry, Idle};
        let groups = [("search", 500.0), ("mobile", 300.0), ("video", 200.0)];
        let group = |(name, quota_esu): (&str, f64)| {
            let name: Result<Group, ParseIdError> = name.parse();
            name.ok().map(|name| QuotaGroup { name, quota_esu })
        };
        let loads = [
            [Hungry, Hungry, Hungry],
            [Idle, Hungry, Hungry],
            [Hungry, Hungry, Hungry],
            [Hungry, Idle, Idle],
        ];
        Self {
            seed: 1,
            groups: groups.into_iter().filter_map(group).collect(),
            phases: loads.map(|loads| QuotaPhase { seconds: 900, loads: loads.to_vec() }).to_vec(),
            builds: BuildMix::default(),
            estimator: Estimator::Model { bias: 1.0, noise: 0.15 },
            governor: ControlSettings::default(),
            capacity_esu: None,
        }
    }
}

impl QuotaScenario {
    /// Total duration in seconds.
    pub fn seconds(&self) -> u32 {
        self.phases.iter().fold(0, |sum, phase| sum.saturating_add(phase.seconds))
    }

    /// Refuses scenarios that are invalid or would run too long.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        self.governor.check()?;
        let mut quotas = 0.0;
        for (at, group) in self.groups.iter().enumerate() {
            within("a quota", group.quota_esu, 0.0, 1e5)?;
            quotas += group.quota_esu;
            if self.groups.iter().take(at).any(|other| other.name == group.name) {
                return Err(InvalidScenario::Twice(group.name.clone()));
            }
        }
        within("the number of groups", self.groups.len() as f64, 1.0, 100.0)?;
        within("the sum of quotas", quotas, 0.0, 1e5)?;
        within("the number of seconds", f64::from(self.seconds()), 1.0, 1e5)?;
        within("mean_seconds", self.builds.mean_seconds, 0.1, 1e5)?;
        within("mean_esu", self.builds.mean_esu, 0.01, 1e5)?;
        within("esu_spread", self.builds.esu_spread, 0.0, 1.0)?;
        within("ramp_seconds", self.builds.ramp_seconds, 0.0, 1e4)?;
        within("capacity_esu", self.capacity_esu.unwrap_or(0.0), 0.0, 1e6)?;
        if let Estimator::Model { bias, noise } = self.estimator {
            within("bias", bias, 0.01, 100.0)?;
            within("noise", noise, 0.0, 0.99)?;
        }
        for (at, phase) in self.phases.iter().enumerate() {
            let (loads, groups) = (phase.loads.len(), self.groups.len());
            if loads != groups {
                return Err(InvalidScenario::Loads { phase: at, loads, groups });
            }
            for load in &phase.loads {
                if let Load::Share(share) = load {
                    within("a share", *share, 0.0, 100.0)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn within(name: &'static str, value: f64, least: f64, most: f64) -> Result<(), InvalidScenario> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(InvalidScenario::OutOfRange { name, value, least, most })
    }
}

/// Serialized form of [`ControlSettings`], because `policy` does not implement serialization.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ControlSettings", default = "ControlSettings::default", deny_unknown_fields)]
struct Gains {
    tick_seconds: f64,
    kp: f64,
    ki: f64,
    kd: f64,
    integral_max: f64,
    integrate_within: f64,
    sp_smoothing: f64,
    borrow_share: f64,
    borrow_max: f64,
    lag_seconds: f64,
    overcommit_max: f64,
}
