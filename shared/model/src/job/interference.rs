//! What else happened on the processors of a command while it ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the executor measured on the processors that a command could use, while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Interference {
    /// Number of processors that the command could use.
    pub processors: u32,
    /// Whether these processors belong to its slot (`slot_cores`), so that no other action uses them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_processors: bool,
    /// Time in microseconds for which the host ran something else instead of these processors, summed over all of them.
    pub steal_us: u64,
    /// CPU time in microseconds that other processes and the kernel used on these processors.
    pub other_us: u64,
    /// Number of periods in which a control group of the executor had used up its processor time and was stopped.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub throttled_periods: u64,
    /// Number of times that these processors were slowed down because they were too hot.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub thermal_throttles: u64,
}

/// What disturbed a measured run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// The host ran other machines on its processors.
    Steal,
    /// Other processes used its processors, or those of the machine that it shared.
    OtherLoad,
    /// Other processes repeatedly got the processor although it could continue.
    Preempted,
    /// A control group of the executor had used up its processor time.
    Throttled,
    /// A processor was slowed down because it was too hot.
    ThermalThrottling,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(number: &u64) -> bool {
    *number == 0
}
