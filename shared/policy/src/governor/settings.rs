//! The gains and limits of the governor.

/// Parameters of the governor. The gains were determined by simulation (`simulate`) for builds of about two minutes
/// whose usage ramps up over 20 s, with estimates between 0.8 and 1.25 of the truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ControlSettings {
    /// Time between two decisions, in seconds.
    pub tick_seconds: f64,
    /// Kp of section 2.3 of the paper: ESU to start per tick, for each ESU of error.
    pub kp: f64,
    /// Ki: ESU to start per tick, for each ESU of error that lasted a second. Unit: per second.
    pub ki: f64,
    /// Kd: reduction of the ESU to start per tick, for each ESU per second by which the use rises. Unit: seconds. It
    /// acts on the use and not on the error, so that a change of the set point does not cause a jump.
    pub kd: f64,
    /// Maximum of the integral term, above or below zero, as a fraction of the set point.
    pub integral_max: f64,
    /// Error, as a fraction of the set point, above which nothing is integrated (anti-windup).
    pub integrate_within: f64,
    /// Fraction of the way towards the amount that it could borrow that a group moves per tick, in (0,
    /// 1]. Returning is immediate.
    pub sp_smoothing: f64,
    /// Fraction of its unused quota that a group lends, in [0, 1].
    pub borrow_share: f64,
    /// Maximum that one group borrows, as a fraction of all quotas of the type, in [0, 1].
    pub borrow_max: f64,
    /// Seconds by which usage lags behind the start of builds: builds started since then count by their estimate.
    pub lag_seconds: f64,
    /// Maximum of the estimated ESU in progress, as a multiple of the set point: a limit for builds that use almost
    /// nothing, and for usage that is not reported. At least 1.
    pub overcommit_max: f64,
}

/// A setting of the governor is out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("governor setting {name} is {value}: expected a number from {least} to {most}")]
pub struct InvalidControlSettings {
    /// Name of the field.
    pub name: &'static str,
    /// Value of the field.
    pub value: f64,
    /// Smallest value that is accepted.
    pub least: f64,
    /// Largest value that is accepted.
    pub most: f64,
}

impl Default for ControlSettings {
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

impl ControlSettings {
    /// Rejects values that are NaN or out of range.
    pub fn check(&self) -> Result<(), InvalidControlSettings> {
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
                return Err(InvalidControlSettings { name, value, least, most });
            }
        }
        Ok(())
    }
}
