//! What the gRPC side of the gateway is set up with.

use std::time::Duration;

use model::{Attempt, TaskLimits};
use policy::{InstanceRules, ParseRuleError};
use settings::Settings;

use super::validate::TimeoutLimits;

/// What the gRPC side of the gateway is set up with.
#[derive(Debug, Clone)]
pub struct GrpcConfig {
    /// Address to listen on; port 0 is any free one.
    pub listen: String,
    /// Which instance names there are, and what their clients may do.
    pub instances: InstanceRules,
    /// How long a command may run.
    pub(crate) timeouts: TimeoutLimits,
    /// What a command may be allowed to use.
    pub limits: TaskLimits,
    /// How long an action may wait for an executor.
    pub queue_timeout: Duration,
    /// Runs of an action at most, when executors die under it.
    pub attempts: Attempt,
    /// How long an action goes on when nobody waits for it any more.
    pub grace: Duration,
    /// Whether what is asked for several times at once is executed once.
    pub merging: bool,
    /// How long the origin of an asset may take.
    pub fetch_timeout: Duration,
    /// Bytes of an asset at most.
    pub fetch_bytes_max: u64,
}

/// Settings that the gRPC side cannot use.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The instance rules.
    #[error("setting instances cannot be used")]
    Instances(#[from] ParseRuleError),
}

impl GrpcConfig {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Result<Self, ConfigError> {
        Ok(Self {
            listen: settings.grpc_listen.clone(),
            instances: settings.instances.parse()?,
            timeouts: TimeoutLimits {
                default: Duration::from_secs(settings.action_timeout_seconds),
                max: Duration::from_secs(settings.action_timeout_seconds_max),
            },
            limits: settings.action_limits(),
            queue_timeout: Duration::from_secs(settings.action_queue_timeout_seconds),
            attempts: Attempt(settings.action_attempts),
            grace: Duration::from_millis(settings.action_waiter_grace_ms),
            merging: settings.action_merging,
            fetch_timeout: Duration::from_secs(settings.fetch_timeout_seconds),
            fetch_bytes_max: settings.cas_blob_bytes_max,
        })
    }
}
