//! Every setting of Forebay: defaults < `forebay.toml` < `FOREBAY_*` environment < flags.
//!
//! The names are flat and carry their unit, so that `lease_ttl_seconds` in the file is
//! `FOREBAY_LEASE_TTL_SECONDS` in the environment.

use std::path::{Path, PathBuf};

use config::{Config, Environment, File, FileFormat};
use model::RequestLimits;
use serde::{Deserialize, Serialize};

/// All settings of all services.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Where nats-server listens.
    pub nats_url: String,
    /// Where Redis listens.
    pub redis_url: String,
    /// Where blobs are kept: `file:///PATH`. Empty: as the bus says, else `data`/objects.
    pub store_url: String,
    /// The data folder.
    pub data: PathBuf,
    /// Address of the HTTP API.
    pub http_listen: String,
    /// Address of `/metrics` and `/healthz`; port 0 is any free one.
    pub metrics_listen: String,
    /// `text` or `json`.
    pub log_format: String,

    /// Replicas of every stream: 1, 3 or 5.
    pub replicas: usize,
    /// Days that build events are kept. Must outlast queue, run and look-back.
    pub events_days: u64,
    /// Bytes of build events at most; when full, new builds are refused. 0 is no limit.
    pub events_bytes_max: u64,
    /// Bytes of waiting requests at most; when full, publishing is refused. 0 is no limit.
    pub requests_bytes_max: u64,
    /// Days that rejections are kept.
    pub rejected_days: u64,

    /// Bytes of a request message at most.
    pub request_bytes_max: usize,
    /// Seconds a build may run when it says nothing.
    pub timeout_seconds: u64,
    /// Seconds a build may run at most.
    pub timeout_seconds_max: u64,
    /// Seconds a build may wait when it says nothing.
    pub queue_timeout_seconds: u64,
    /// Seconds a build may wait at most.
    pub queue_timeout_seconds_max: u64,
    /// Attempts of a build when it says nothing.
    pub attempts: u32,
    /// Attempts of a build at most.
    pub attempts_max: u32,

    /// Seconds a lease lives without renewal; well above a restart of nats-server.
    pub lease_ttl_seconds: u64,
    /// Milliseconds a worker has to claim an offered build.
    pub offer_timeout_ms: u64,
    /// Seconds between two heartbeats of a worker; it counts as gone after three.
    pub heartbeat_seconds: u64,
    /// Seconds a build past its own timeout may stay in progress before the reaper ends it.
    pub overrun_seconds: u64,

    /// Workspaces of a worker. 0: two for each processor.
    pub workspaces: u16,
    /// Milliseconds between SIGTERM and SIGKILL when a build is cancelled or times out.
    pub kill_grace_ms: u64,
    /// Seconds a worker that is told to stop lets its builds run on before it gives them back.
    pub drain_seconds: u64,
    /// Bytes of console output of one build on the bus at most; the rest goes to the store.
    pub console_bytes_max: u64,
    /// Bytes of console output of one build kept at all.
    pub log_bytes_max: u64,
    /// Bytes of one kept output file at most.
    pub output_bytes_max: u64,
    /// Keeps the workspace folder of a failed build, for looking at.
    pub keep_failed_workspaces: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nats_url: "nats://127.0.0.1:4222".into(),
            redis_url: "redis://127.0.0.1:6379".into(),
            store_url: String::new(),
            data: PathBuf::from("forebay-data"),
            http_listen: "127.0.0.1:8080".into(),
            metrics_listen: "127.0.0.1:0".into(),
            log_format: "text".into(),
            replicas: 1,
            // Ten days in queue and run at most by the limits below, and seventeen days of look-back
            // for whoever learns from results.
            events_days: 30,
            events_bytes_max: 0,
            requests_bytes_max: 0,
            rejected_days: 7,
            request_bytes_max: 256 << 10,
            timeout_seconds: 3600,
            timeout_seconds_max: 24 * 3600,
            queue_timeout_seconds: 24 * 3600,
            queue_timeout_seconds_max: 7 * 24 * 3600,
            attempts: 3,
            attempts_max: 50,
            // A restart of nats-server with a large store takes seconds.
            lease_ttl_seconds: 15,
            offer_timeout_ms: 5000,
            heartbeat_seconds: 10,
            overrun_seconds: 60,
            workspaces: 0,
            kill_grace_ms: 2000,
            drain_seconds: 10,
            console_bytes_max: 4 << 20,
            log_bytes_max: 64 << 20,
            output_bytes_max: 4 << 30,
            keep_failed_workspaces: false,
        }
    }
}

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
    /// Reads `file` (when it exists; `required` when the user named it) and the environment.
    pub fn load(file: &Path, required: bool) -> Result<Self, SettingsError> {
        Self::load_with(file, required, Environment::with_prefix("FOREBAY"))
    }

    fn load_with(file: &Path, required: bool, environment: Environment) -> Result<Self, SettingsError> {
        let source = File::from(file).format(FileFormat::Toml).required(required);
        check_names(file, source.clone())?;
        let merged =
            Config::builder().add_source(source).add_source(environment.try_parsing(true)).build()?;
        let settings: Self = merged.try_deserialize()?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks what no type can.
    pub fn check(&self) -> Result<(), SettingsError> {
        let invalid = |name, value: &dyn std::fmt::Display, wanted: &str| SettingsError::Invalid {
            name,
            value: value.to_string(),
            wanted: wanted.to_owned(),
        };
        if self.lease_ttl_seconds == 0 {
            return Err(invalid("lease_ttl_seconds", &0, "at least 1 is expected"));
        }
        if self.heartbeat_seconds == 0 {
            return Err(invalid("heartbeat_seconds", &0, "at least 1 is expected"));
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
        if self.attempts == 0 || self.attempts > self.attempts_max {
            return Err(invalid("attempts", &self.attempts, "1 to attempts_max is expected"));
        }
        let longest = self.queue_timeout_seconds_max + self.timeout_seconds_max;
        if self.events_days * 24 * 3600 <= longest {
            let wanted = "events must outlast queue_timeout_seconds_max + timeout_seconds_max";
            return Err(invalid("events_days", &self.events_days, wanted));
        }
        Ok(())
    }

    /// What a request is checked against.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            request_bytes_max: self.request_bytes_max,
            timeout_seconds: self.timeout_seconds,
            timeout_seconds_max: self.timeout_seconds_max,
            queue_timeout_seconds: self.queue_timeout_seconds,
            queue_timeout_seconds_max: self.queue_timeout_seconds_max,
            attempts: self.attempts,
            attempts_max: self.attempts_max,
        }
    }

    /// How many workspaces a worker has.
    pub fn workspace_count(&self) -> u16 {
        if self.workspaces > 0 {
            return self.workspaces;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(processors.saturating_mul(2)).unwrap_or(u16::MAX)
    }
}

/// A misspelt name in a file would be ignored without a word.
fn check_names(file: &Path, source: File<config::FileSourceFile, FileFormat>) -> Result<(), SettingsError> {
    let named = Config::builder().add_source(source).build()?;
    let table: std::collections::HashMap<String, config::Value> = named.try_deserialize()?;
    let known = Config::try_from(&Settings::default())?;
    let known: std::collections::HashMap<String, config::Value> = known.try_deserialize()?;
    match table.keys().find(|name| !known.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(SettingsError::Unknown { file: file.display().to_string(), name: name.clone() }),
    }
}

#[cfg(test)]
mod tests;
