//! Configuration of the gRPC side of the gateway.

use std::time::Duration;

use download::Reach;
use model::{Attempt, TaskLimits};
use policy::{InstanceRules, ParseRuleError};
use settings::{GatewaySettings, ImageSettings};

use super::validate::TimeoutLimits;

/// Configuration of the gRPC side of the gateway.
#[derive(Debug, Clone)]
pub struct GrpcConfig {
    /// Address to listen on; port 0 means any free port.
    pub listen: String,
    /// Instance names and what their clients may do.
    pub instances: InstanceRules,
    /// Default and maximum run time of a command.
    pub(crate) timeouts: TimeoutLimits,
    /// Upper bounds of the resource limits of a command.
    pub limits: TaskLimits,
    /// How long an action may wait for an executor.
    pub queue_timeout: Duration,
    /// Maximum number of attempts of an action when executors are lost.
    pub attempts: Attempt,
    /// How long an action continues after its last client has left.
    pub grace: Duration,
    /// Whether identical concurrent requests share one execution.
    pub merging: bool,
    /// Maximum number of calls of `Execute` that the trace of a client's span shows. 0: all.
    pub trace_actions_max: u32,
    /// Time limit for fetching one URI of an asset.
    pub fetch_timeout: Duration,
    /// Maximum size of a fetched asset, in bytes.
    pub fetch_bytes_max: u64,
    /// Hosts that assets and images may be fetched from.
    pub(crate) fetch_reach: Reach,
    /// Where images come from.
    pub(crate) images: ImageSettings,
}

/// Invalid settings of the gRPC side.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the setting instances is invalid")]
    Instances(#[from] ParseRuleError),
}

impl GrpcConfig {
    /// Reads the configuration from the settings.
    pub fn new(settings: &GatewaySettings) -> Result<Self, ConfigError> {
        Ok(Self {
            listen: settings.grpc_listen.clone(),
            instances: settings.instances.parse()?,
            timeouts: TimeoutLimits { default: settings.action_timeout, max: settings.action_timeout_max },
            limits: settings.action_limits,
            queue_timeout: settings.action_queue_timeout,
            attempts: settings.action_attempts,
            grace: settings.action_waiter_grace,
            merging: settings.action_merging,
            trace_actions_max: settings.trace_actions_max,
            fetch_timeout: settings.fetch_timeout,
            fetch_bytes_max: settings.fetch_bytes_max,
            fetch_reach: Reach::within(&settings.fetch_hosts),
            images: settings.images.clone(),
        })
    }
}
