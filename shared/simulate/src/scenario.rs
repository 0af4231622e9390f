//! What is simulated.

use model::{Group, ParseIdError};
use policy::{GovernorSettings, InvalidGovernorSettings};
use serde::{Deserialize, Serialize};

/// Groups with quotas, under loads that change in steps. All builds use x86 executors; workspaces are never short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaScenario {
    /// Names the run: equal seeds give equal runs.
    pub seed: u64,
    /// The quota groups.
    pub groups: Vec<QuotaGroup>,
    /// The steps of the load.
    pub phases: Vec<QuotaPhase>,
    /// What the builds are like.
    pub builds: BuildMix,
    /// How their occupancy is estimated.
    pub estimator: Estimator,
    /// The governor's gains.
    #[serde(with = "Gains")]
    pub governor: GovernorSettings,
    /// ESU of the farm, if the governor is told.
    pub capacity_esu: Option<f64>,
}

/// A quota group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaGroup {
    /// Its name.
    pub name: Group,
    /// Its own quota, ESU of x86.
    pub quota_esu: f64,
}

/// A step of the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaPhase {
    /// How long it lasts.
    pub seconds: u32,
    /// The load of each group, in their order.
    pub loads: Vec<Load>,
}

/// What a group asks for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing; what was still waiting is withdrawn, what runs goes on.
    Idle,
    /// More than it could ever get.
    Hungry,
    /// Builds that arrive by chance and occupy so much of its quota on the average.
    Share(f64),
}

/// What builds are like.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BuildMix {
    /// Mean duration: a tenth of it and an exponential rest, at most four times as long.
    pub mean_seconds: f64,
    /// Mean occupancy, ESU.
    pub mean_esu: f64,
    /// By how much of the mean a build may occupy more or less, by chance, in [0, 1].
    pub esu_spread: f64,
    /// How long a build takes to reach its occupancy, in proportion to its age.
    pub ramp_seconds: f64,
}

/// How the occupancy of builds is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// As by a model: `bias` times the truth, give or take up to `noise` of it by chance.
    Model {
        /// The factor by which all estimates are off.
        bias: f64,
        /// The most by which one is off besides, in [0, 1).
        noise: f64,
    },
    /// One ESU, whatever the build: the default that the paper warns of (section 5.3).
    OneEsu,
}

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidScenario {
    /// Its gains.
    #[error(transparent)]
    Governor(#[from] InvalidGovernorSettings),
    /// A number.
    #[error("{name} is {value}: a number from {least} to {most} is expected")]
    OutOfRange {
        /// What it is.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The smallest that is accepted.
        least: f64,
        /// The largest that is accepted.
        most: f64,
    },
    /// A phase.
    #[error("phase {phase} has {loads} loads for {groups} groups")]
    Loads {
        /// Which, from 0.
        phase: usize,
        /// How many loads it has.
        loads: usize,
        /// How many groups there are.
        groups: usize,
    },
    /// A group.
    #[error("group {0} is named twice")]
    Twice(Group),
}

impl Default for BuildMix {
    fn default() -> Self {
        Self { mean_seconds: 120.0, mean_esu: 2.5, esu_spread: 0.5, ramp_seconds: 20.0 }
    }
}

impl Default for QuotaScenario {
    /// Three groups that share 1000 ESU for an hour: one falls silent and comes back, then the two others do.
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
            governor: GovernorSettings::default(),
            capacity_esu: None,
        }
    }
}

impl QuotaScenario {
    /// How long it lasts.
    pub fn seconds(&self) -> u32 {
        self.phases.iter().fold(0, |sum, phase| sum.saturating_add(phase.seconds))
    }

    /// Refuses what cannot be simulated, or would take for ever.
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

/// How [`GovernorSettings`] are written, which `policy` leaves to others.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GovernorSettings", default = "GovernorSettings::default", deny_unknown_fields)]
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
