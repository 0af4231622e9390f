//! The gains and limits of the governor.

/// How the governor reacts. The gains were found by simulation (`simulate`) for builds of about two minutes whose usage
/// ramps up over 20 s, with estimates between 0.8 and 1.25 of the truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GovernorSettings {
    /// Seconds between decisions.
    pub tick_seconds: f64,
    /// Kp of section 2.3: ESU to start a tick, for each ESU of error.
    pub kp: f64,
    /// Ki: ESU to start a tick, for each ESU of error that lasted a second. Per second.
    pub ki: f64,
    /// Kd: ESU to start less a tick, for each ESU a second by which the use rises. In seconds. It looks at the use and
    /// not at the error, so that a set point that moves does not kick.
    pub kd: f64,
    /// The most that the integral term becomes, above or below zero, as a share of the set point.
    pub integral_max: f64,
    /// The error, as a share of the set point, beyond which nothing is integrated (anti-windup).
    pub integrate_within: f64,
    /// How much of the way to what it could borrow a group goes in a tick, in (0, 1]. Giving back is not delayed.
    pub sp_smoothing: f64,
    /// How much of its unused quota a group lends, in [0, 1].
    pub borrow_share: f64,
    /// The most that one group borrows, as a share of all quotas of the type, in [0, 1].
    pub borrow_max: f64,
    /// Seconds by which usage lags the start of builds: what was started since is counted by its estimate.
    pub lag_seconds: f64,
    /// The most estimated ESU in progress, for each ESU of set point: a bound for when builds use next to nothing, or
    /// usage is not reported. At least 1.
    pub overcommit_max: f64,
}

/// Why settings of the governor cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name} of the governor is {value}: a number from {least} to {most} is expected")]
pub struct InvalidGovernorSettings {
    /// Which field.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// The smallest that is accepted.
    pub least: f64,
    /// The largest that is accepted.
    pub most: f64,
}

impl Default for GovernorSettings {
    fn default() -> Self {
        Self {
            tick_seconds: 5.0,
            kp: 0.3,
            ki: 0.0003,
            kd: 2.0,
            integral_max: 0.05,
            integrate_within: 0.35,
            sp_smoothing: 0.2,
            borrow_share: 0.9,
            borrow_max: 0.75,
            lag_seconds: 12.0,
            overcommit_max: 4.0,
        }
    }
}

impl GovernorSettings {
    /// Refuses what is no number or out of range.
    pub fn check(&self) -> Result<(), InvalidGovernorSettings> {
        let ranges = [
            ("tick_seconds", self.tick_seconds, 0.1, 600.0),
            ("kp", self.kp, 0.0, 10.0),
            ("ki", self.ki, 0.0, 10.0),
            ("kd", self.kd, 0.0, 1000.0),
            ("integral_max", self.integral_max, 0.0, 10.0),
            ("integrate_within", self.integrate_within, 0.0, 10.0),
            ("sp_smoothing", self.sp_smoothing, 0.001, 1.0),
            ("borrow_share", self.borrow_share, 0.0, 1.0),
            ("borrow_max", self.borrow_max, 0.0, 1.0),
            ("lag_seconds", self.lag_seconds, 0.0, 600.0),
            ("overcommit_max", self.overcommit_max, 1.0, 1000.0),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(InvalidGovernorSettings { name, value, least, most });
            }
        }
        Ok(())
    }
}
