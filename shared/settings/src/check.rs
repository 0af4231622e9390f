//! Validation of settings: constraints beyond their types.

use std::{io, path::Path};

use config::ConfigError;
use model::{BuildLimits, Esu, ExecutorType, Group};

use crate::{Settings, units::days};

/// Minimum number of checks of a pool within `scale_in_after_seconds`.
const LOOKS_MIN: f64 = 4.0;

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or variable that cannot be read.
    #[error("cannot read the settings")]
    Read(#[source] ConfigError),
    /// Settings that cannot be shown as text.
    #[error("cannot show the settings")]
    NotText(#[source] serde_json::Error),
    #[error("settings file {file} not found")]
    NoFile { file: String },
    #[error("unknown setting {name:?} in {file}")]
    Unknown { file: String, name: String },
    #[error("setting {name} is {value}: {wanted}")]
    Invalid {
        name: &'static str,
        value: String,
        /// Expectation as used in the message, for example `expected at least 1`.
        wanted: String,
    },
}

/// How `config` describes whole numbers, and the range of each.
const RANGES: [(&str, &str); 4] = [
    ("an unsigned 64 bit or less integer", "0 or more"),
    ("an unsigned 32 bit integer", "0 to 4294967295"),
    ("an unsigned 16 bit integer", "0 to 65535"),
    ("an unsigned 8 bit integer", "0 to 255"),
];

impl From<ConfigError> for SettingsError {
    fn from(error: ConfigError) -> Self {
        if let ConfigError::Type { origin, unexpected, expected, key } = error {
            let range = RANGES.into_iter().find(|(text, _)| *text == expected);
            let expected = range.map_or(expected, |(_, range)| range);
            return Self::Read(ConfigError::Type { origin, unexpected, expected, key });
        }
        Self::Read(error)
    }
}

impl SettingsError {
    /// The same error, except for a missing file: `config` also reports as missing what it may not read.
    pub(crate) fn of_file(self, file: &Path) -> Self {
        let is_missing = matches!(
            &self,
            Self::Read(ConfigError::Foreign(cause))
                if cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound)
        );
        if !is_missing {
            return self;
        }
        match file.try_exists() {
            Ok(_) => Self::NoFile { file: file.display().to_string() },
            Err(cause) => Self::Read(ConfigError::Foreign(Box::new(cause))),
        }
    }
}

/// Maximum number of days of a retention.
const DAYS_MAX: u64 = 36_500;

/// Folders that each sandbox has its own of. What the machine has below them can be shown.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];
/// Folders that each sandbox has its own of, with all that is below them.
const KERNEL: [&str; 2] = ["/dev", "/proc"];

impl Settings {
    /// Checks constraints that types cannot express.
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
            return Err(invalid("replicas", &self.replicas, "expected 1, 3 or 5"));
        }
        if self.timeout_seconds > self.timeout_seconds_max {
            return Err(invalid(
                "timeout_seconds",
                &self.timeout_seconds,
                "expected at most timeout_seconds_max",
            ));
        }
        if self.queue_timeout_seconds > self.queue_timeout_seconds_max {
            let wanted = "expected at most queue_timeout_seconds_max";
            return Err(invalid("queue_timeout_seconds", &self.queue_timeout_seconds, wanted));
        }
        if self.job_tasks_in_flight == 0 {
            return Err(invalid("job_tasks_in_flight", &0, "expected at least 1"));
        }
        if self.governor_tick_ms < 100 {
            return Err(invalid("governor_tick_ms", &self.governor_tick_ms, "expected at least 100"));
        }
        if !(1..=100).contains(&self.tool_memory_percent) {
            return Err(invalid("tool_memory_percent", &self.tool_memory_percent, "expected 1 to 100"));
        }
        if !self.executor_types.contains_key(&ExecutorType::x86()) {
            return Err(invalid("executor_types", &"without x86", "expected x86, which all builds use"));
        }
        if !self.executor_types.contains_key(&self.executor_type) {
            return Err(invalid("executor_type", &self.executor_type, "expected one of executor_types"));
        }
        if let Some(path) = self.context_paths.iter().find(|path| !path.is_absolute()) {
            return Err(invalid("context_paths", &path.display(), "expected absolute paths"));
        }
        if let Some(path) = self.secrets_folder.as_ref().filter(|path| !path.is_absolute()) {
            return Err(invalid("secrets_folder", &path.display(), "expected an absolute path"));
        }
        self.check_tls()?;
        self.check_amounts()?;
        self.check_scheduling()?;
        self.check_autoscale()?;
        self.check_devices()?;
        self.check_images()?;
        if self.attempts == 0 || self.attempts > self.attempts_max {
            return Err(invalid("attempts", &self.attempts, "expected 1 to attempts_max"));
        }
        if self.action_timeout_seconds == 0 || self.action_timeout_seconds > self.action_timeout_seconds_max {
            let wanted = "expected 1 to action_timeout_seconds_max";
            return Err(invalid("action_timeout_seconds", &self.action_timeout_seconds, wanted));
        }
        if self.action_attempts == 0 {
            return Err(invalid("action_attempts", &0, "expected at least 1"));
        }
        self.check_retentions()?;
        Ok(())
    }

    fn check_tls(&self) -> Result<(), SettingsError> {
        let shown = |path: &Option<std::path::PathBuf>| {
            path.as_ref().map_or_else(|| "not set".to_owned(), |path| path.display().to_string())
        };
        if self.tls_certificate_file.is_some() != self.tls_key_file.is_some() {
            let wanted = "expected both tls_certificate_file and tls_key_file";
            return Err(invalid("tls_key_file", &shown(&self.tls_key_file), wanted));
        }
        if self.tls_client_ca_file.is_some() && self.tls_certificate_file.is_none() {
            let wanted = "expected tls_certificate_file with it";
            return Err(invalid("tls_client_ca_file", &shown(&self.tls_client_ca_file), wanted));
        }
        if self.servers_certificate_file.is_some() != self.servers_key_file.is_some() {
            let wanted = "expected both servers_certificate_file and servers_key_file";
            return Err(invalid("servers_key_file", &shown(&self.servers_key_file), wanted));
        }
        if self.gateway_certificate_file.is_some() != self.gateway_key_file.is_some() {
            let wanted = "expected both gateway_certificate_file and gateway_key_file";
            return Err(invalid("gateway_key_file", &shown(&self.gateway_key_file), wanted));
        }
        Ok(())
    }

    fn check_retentions(&self) -> Result<(), SettingsError> {
        let retentions = [
            ("events_days", self.events_days),
            ("actions_days", self.actions_days),
            ("rejected_days", self.rejected_days),
            ("log_streams_days", self.log_streams_days),
            ("objects_days", self.objects_days),
            ("archive_days", self.archive_days),
            ("audit_days", self.audit_days),
        ];
        if let Some((name, days)) = retentions.into_iter().find(|(_, days)| *days > DAYS_MAX) {
            return Err(invalid(name, &days, "expected at most 36500"));
        }
        if self.audit_days == 0 {
            return Err(invalid("audit_days", &self.audit_days, "expected at least 1"));
        }
        let longest = self.action_queue_timeout_seconds.saturating_add(self.action_timeout_seconds_max);
        if days(self.actions_days).as_secs() <= longest {
            let wanted = "expected more than action_queue_timeout_seconds + action_timeout_seconds_max";
            return Err(invalid("actions_days", &self.actions_days, wanted));
        }
        let longest = self.queue_timeout_seconds_max.saturating_add(self.timeout_seconds_max);
        if days(self.events_days).as_secs() <= longest {
            let wanted = "expected more than queue_timeout_seconds_max + timeout_seconds_max";
            return Err(invalid("events_days", &self.events_days, wanted));
        }
        if self.archive_days < self.events_days {
            return Err(invalid("archive_days", &self.archive_days, "expected at least events_days"));
        }
        let invalid_days = |days: &u64| !(1..=DAYS_MAX).contains(days);
        if let Some((group, days)) = self.archive_days_by_group.iter().find(|(_, days)| invalid_days(days)) {
            let value = format!("{days} of group {group}");
            return Err(invalid("archive_days_by_group", &value, "expected 1 to 36500"));
        }
        Ok(())
    }

    fn check_scheduling(&self) -> Result<(), SettingsError> {
        if self.action_hedges > 0 && self.action_hedge_delay_ms == 0 && !self.action_hedge_by_history {
            let wanted = "expected action_hedge_delay_ms or action_hedge_by_history to be set";
            return Err(invalid("action_hedges", &self.action_hedges, wanted));
        }
        if self.action_hedge_factor.is_nan() || self.action_hedge_factor < 1.0 {
            return Err(invalid("action_hedge_factor", &self.action_hedge_factor, "expected at least 1"));
        }
        // With one slot per processor, the number depends on the machine: an executor then leaves one slot for others.
        if self.executor_slots > 0 && self.emergency_slots >= self.executor_slots {
            let wanted = "expected less than executor_slots";
            return Err(invalid("emergency_slots", &self.emergency_slots, wanted));
        }
        if self.window_tick_ms < 10 {
            return Err(invalid("window_tick_ms", &self.window_tick_ms, "expected at least 10"));
        }
        self.check_window()?;
        if self.memory_left_percent >= 100 {
            return Err(invalid("memory_left_percent", &self.memory_left_percent, "expected 0 to 99"));
        }
        if self.disk_left_percent >= 100 {
            return Err(invalid("disk_left_percent", &self.disk_left_percent, "expected 0 to 99"));
        }
        if self.load_max.is_nan() || self.load_max < 0.0 {
            return Err(invalid("load_max", &self.load_max, "expected 0 or more"));
        }
        Ok(())
    }

    fn check_window(&self) -> Result<(), SettingsError> {
        for (name, value, from, to) in [
            ("window_growth_percent", self.window_growth_percent, 1, 1000),
            ("window_cut_percent", self.window_cut_percent, 1, 99),
            ("window_threshold_percent", self.window_threshold_percent, 1, 100),
            ("throttled_percent_max", self.throttled_percent_max, 0, 100),
            ("cpu_pressure_percent_max", self.cpu_pressure_percent_max, 0, 100),
            ("memory_pressure_percent_max", self.memory_pressure_percent_max, 0, 100),
            ("io_pressure_percent_max", self.io_pressure_percent_max, 0, 100),
            ("workspace_cpu_weight", self.workspace_cpu_weight, 0, 10_000),
        ] {
            if !(from..=to).contains(&value) {
                return Err(invalid(name, &value, &format!("expected {from} to {to}")));
            }
        }
        if self.alone_patience_seconds == 0 {
            return Err(invalid(
                "alone_patience_seconds",
                &self.alone_patience_seconds,
                "expected at least 1",
            ));
        }
        if self.sensor_seconds == 0 {
            return Err(invalid("sensor_seconds", &self.sensor_seconds, "expected at least 1"));
        }
        if self.sensor_max.is_nan() {
            return Err(invalid("sensor_max", &self.sensor_max, "expected a number"));
        }
        if self.workspace_cpu_millis > 0 && self.workspace_cpu_millis < 10 {
            return Err(invalid(
                "workspace_cpu_millis",
                &self.workspace_cpu_millis,
                "expected 0, or at least 10",
            ));
        }
        let factor = self.out_of_memory_factor;
        if factor.is_nan() || (factor != 0.0 && !(1.1..=10.0).contains(&factor)) {
            return Err(invalid("out_of_memory_factor", &factor, "expected 0, or 1.1 to 10"));
        }
        for path in &self.sandbox_read_only {
            let is_private = PRIVATE.iter().any(|private| path == Path::new(private))
                || KERNEL.iter().any(|kernel| path.starts_with(kernel));
            if !path.is_absolute() || is_private {
                let wanted = "expected absolute paths (without ~) outside of /dev and /proc, and not /tmp itself: a sandbox has its own of these";
                return Err(invalid("sandbox_read_only", &path.display(), wanted));
            }
        }
        for (group, limits) in &self.build_limits {
            let is_group = group == BuildLimits::OTHER_GROUPS || group.parse::<Group>().is_ok();
            if !is_group || limits.wrong(&BuildLimits::default()).is_some() {
                let wanted = "expected a quota group or *, and limits of at least 1 (cpu_millis: 10)";
                return Err(invalid("build_limits", group, wanted));
            }
        }
        Ok(())
    }

    /// Ranges of times and shares are checked by the planner itself.
    fn check_autoscale(&self) -> Result<(), SettingsError> {
        if self.autoscale_tick_ms < 100 {
            return Err(invalid("autoscale_tick_ms", &self.autoscale_tick_ms, "expected at least 100"));
        }
        for (pool, scaling) in &self.autoscale {
            let (min, max) = (scaling.min, scaling.max);
            if max == 0 || min > max {
                let wanted = "expected a maximum of at least 1, and not below the minimum";
                return Err(invalid("autoscale", &format!("{min}..{max} of {pool}"), wanted));
            }
            // With fewer checks, the recent need is unknown and no process would ever be stopped.
            let looks = scaling.scale_in_after_seconds * 1000.0 / self.autoscale_tick_ms as f64;
            if scaling.scale_in_after_seconds > 0.0 && looks < LOOKS_MIN {
                let value = format!("scale_in_after_seconds {} of {pool}", scaling.scale_in_after_seconds);
                let wanted = "expected 0, or at least four times autoscale_tick_ms";
                return Err(invalid("autoscale", &value, wanted));
            }
        }
        Ok(())
    }

    fn check_amounts(&self) -> Result<(), SettingsError> {
        // Everything would be refused, and nothing could run.
        if self.cas_bytes_max == 0 {
            return Err(invalid("cas_bytes_max", &0, "expected at least 1"));
        }
        for (kind, amount) in self.capacity.iter() {
            if amount < Esu::ZERO || !self.executor_types.contains_key(kind) {
                let wanted = "expected 0 ESU or more of one of executor_types";
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
                let wanted = "expected times from 1 s to the maximum for all builds";
                return Err(invalid("priority_limits", priority, wanted));
            }
        }
        Ok(())
    }
}

pub(crate) fn invalid(name: &'static str, value: &dyn std::fmt::Display, wanted: &str) -> SettingsError {
    SettingsError::Invalid { name, value: value.to_string(), wanted: wanted.to_owned() }
}
