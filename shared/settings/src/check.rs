//! Settings that make no sense.

use model::{Esu, ExecutorType};

use crate::Settings;

/// Looks at a pool in `scale_in_after_seconds` at least.
const LOOKS_MIN: f64 = 4.0;

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or variable that cannot be read.
    #[error("settings cannot be read")]
    Read(#[from] config::ConfigError),
    /// A name that is no setting.
    #[error("{file} names {name:?}, which is no setting")]
    Unknown {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// A value that makes no sense.
    #[error("setting {name} is {value}: {wanted}")]
    Invalid {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// What is expected.
        wanted: String,
    },
}

impl Settings {
    /// Checks what no type can.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.lease_ttl_seconds == 0 {
            return Err(invalid("lease_ttl_seconds", &0, "expected at least 1"));
        }
        if self.heartbeat_seconds == 0 {
            return Err(invalid("heartbeat_seconds", &0, "expected at least 1"));
        }
        if self.request_head_timeout_seconds == 0 {
            return Err(invalid("request_head_timeout_seconds", &0, "expected at least 1"));
        }
        if self.request_body_timeout_seconds == 0 {
            return Err(invalid("request_body_timeout_seconds", &0, "expected at least 1"));
        }
        if !matches!(self.replicas, 1 | 3 | 5) {
            return Err(invalid("replicas", &self.replicas, "1, 3 or 5 is expected"));
        }
        if !matches!(self.log_format.as_str(), "text" | "json") {
            return Err(invalid("log_format", &self.log_format, "text or json is expected"));
        }
        if self.timeout_seconds > self.timeout_seconds_max {
            return Err(invalid(
                "timeout_seconds",
                &self.timeout_seconds,
                "at most timeout_seconds_max is expected",
            ));
        }
        if self.queue_timeout_seconds > self.queue_timeout_seconds_max {
            let wanted = "at most queue_timeout_seconds_max is expected";
            return Err(invalid("queue_timeout_seconds", &self.queue_timeout_seconds, wanted));
        }
        let ways = ["default", "refuse"];
        if !ways.contains(&self.groups_without_quota.as_str()) {
            let wanted = "default or refuse is expected";
            return Err(invalid("groups_without_quota", &self.groups_without_quota, wanted));
        }
        if !["thesis", "adaptive"].contains(&self.estimator.as_str()) {
            return Err(invalid("estimator", &self.estimator, "thesis or adaptive is expected"));
        }
        if self.job_tasks_in_flight == 0 {
            return Err(invalid("job_tasks_in_flight", &0, "expected at least 1"));
        }
        if self.governor_tick_ms < 100 {
            return Err(invalid("governor_tick_ms", &self.governor_tick_ms, "at least 100 is expected"));
        }
        if !(1..=100).contains(&self.tool_memory_percent) {
            return Err(invalid("tool_memory_percent", &self.tool_memory_percent, "1 to 100 is expected"));
        }
        if !self.executor_types.contains_key(&ExecutorType::x86()) {
            return Err(invalid("executor_types", &"without x86", "all builds use x86"));
        }
        if !self.executor_types.contains_key(&self.executor_type) {
            return Err(invalid("executor_type", &self.executor_type, "one of executor_types is expected"));
        }
        self.check_amounts()?;
        self.check_scheduling()?;
        self.check_autoscale()?;
        if self.attempts == 0 || self.attempts > self.attempts_max {
            return Err(invalid("attempts", &self.attempts, "1 to attempts_max is expected"));
        }
        if !matches!(self.sandbox.as_str(), "bubblewrap" | "none") {
            return Err(invalid("sandbox", &self.sandbox, "bubblewrap or none is expected"));
        }
        if self.action_timeout_seconds == 0 || self.action_timeout_seconds > self.action_timeout_seconds_max {
            let wanted = "1 to action_timeout_seconds_max is expected";
            return Err(invalid("action_timeout_seconds", &self.action_timeout_seconds, wanted));
        }
        if self.action_attempts == 0 {
            return Err(invalid("action_attempts", &0, "expected at least 1"));
        }
        let longest = self.action_queue_timeout_seconds + self.action_timeout_seconds_max;
        if self.actions_days * 24 * 3600 <= longest {
            let wanted = "executions must outlast action_queue_timeout_seconds + action_timeout_seconds_max";
            return Err(invalid("actions_days", &self.actions_days, wanted));
        }
        let longest = self.queue_timeout_seconds_max + self.timeout_seconds_max;
        if self.events_days * 24 * 3600 <= longest {
            let wanted = "events must outlast queue_timeout_seconds_max + timeout_seconds_max";
            return Err(invalid("events_days", &self.events_days, wanted));
        }
        Ok(())
    }

    fn check_scheduling(&self) -> Result<(), SettingsError> {
        if self.action_hedges > 0 && self.action_hedge_delay_ms == 0 && !self.action_hedge_by_history {
            let wanted = "action_hedge_delay_ms or action_hedge_by_history says when a copy is started";
            return Err(invalid("action_hedges", &self.action_hedges, wanted));
        }
        if self.action_hedge_factor.is_nan() || self.action_hedge_factor < 1.0 {
            return Err(invalid("action_hedge_factor", &self.action_hedge_factor, "expected at least 1"));
        }
        if self.action_probes == 0 {
            return Err(invalid("action_probes", &0, "expected at least 1"));
        }
        if self.window_tick_ms < 10 {
            return Err(invalid("window_tick_ms", &self.window_tick_ms, "at least 10 is expected"));
        }
        if self.memory_left_percent >= 100 {
            return Err(invalid("memory_left_percent", &self.memory_left_percent, "0 to 99 is expected"));
        }
        if self.disk_left_percent >= 100 {
            return Err(invalid("disk_left_percent", &self.disk_left_percent, "0 to 99 is expected"));
        }
        if self.load_max.is_nan() || self.load_max < 0.0 {
            return Err(invalid("load_max", &self.load_max, "0 or more is expected"));
        }
        Ok(())
    }

    /// What the planner cannot use it refuses itself: ranges of times and shares.
    fn check_autoscale(&self) -> Result<(), SettingsError> {
        if self.autoscale_tick_ms < 100 {
            return Err(invalid("autoscale_tick_ms", &self.autoscale_tick_ms, "at least 100 is expected"));
        }
        for (pool, scaling) in &self.autoscale {
            let (min, max) = (scaling.min, scaling.max);
            if max == 0 || min > max {
                let wanted = "at least one process, and no more at least than at most, are expected";
                return Err(invalid("autoscale", &format!("{min}..{max} of {pool}"), wanted));
            }
            // What was needed lately is not known when it is looked at too seldom: then no process would ever go.
            let looks = scaling.scale_in_after_seconds * 1000.0 / self.autoscale_tick_ms as f64;
            if scaling.scale_in_after_seconds > 0.0 && looks < LOOKS_MIN {
                let value = format!("scale_in_after_seconds {} of {pool}", scaling.scale_in_after_seconds);
                let wanted = "0, or four times autoscale_tick_ms at least, is expected";
                return Err(invalid("autoscale", &value, wanted));
            }
        }
        Ok(())
    }

    fn check_amounts(&self) -> Result<(), SettingsError> {
        for (kind, amount) in self.capacity.iter() {
            if amount < Esu::ZERO || !self.executor_types.contains_key(kind) {
                let wanted = "0 ESU or more of one of executor_types is expected";
                return Err(invalid("capacity", &format!("{kind} {amount}"), wanted));
            }
        }
        for (priority, times) in &self.priority_limits {
            let most = self.request_limits().times_max;
            let asked = [
                (times.timeout_seconds, most.timeout_seconds),
                (times.queue_timeout_seconds, most.queue_timeout_seconds),
                (times.lease_ttl_seconds, most.lease_ttl_seconds),
            ];
            if asked.iter().any(|(asked, most)| asked.is_some_and(|asked| asked == 0 || asked > *most)) {
                let wanted = "times from 1 s to the maximum that is set for all builds are expected";
                return Err(invalid("priority_limits", priority, wanted));
            }
        }
        Ok(())
    }
}

fn invalid(name: &'static str, value: &dyn std::fmt::Display, wanted: &str) -> SettingsError {
    SettingsError::Invalid { name, value: value.to_string(), wanted: wanted.to_owned() }
}
