use std::time::Duration;

use model::{Attempt, FetchHost, TaskLimits};

use super::images::ImageSettings;
use crate::{PageSettings, Settings};

/// Settings of the service `gateway`.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    pub http_listen: String,
    pub pages: Option<PageSettings>,
    pub grpc_listen: String,
    pub request_bytes_max: usize,
    pub instances: String,
    pub action_limits: TaskLimits,
    pub action_timeout: Duration,
    pub action_timeout_max: Duration,
    pub action_queue_timeout: Duration,
    pub action_attempts: Attempt,
    pub action_waiter_grace: Duration,
    pub action_merging: bool,
    pub trace_actions_max: u32,
    pub fetch_timeout: Duration,
    pub fetch_bytes_max: u64,
    pub fetch_hosts: Vec<FetchHost>,
    pub images: ImageSettings,
}

impl Settings {
    pub fn gateway(&self) -> GatewaySettings {
        GatewaySettings {
            http_listen: self.http_listen.clone(),
            pages: self.gateway_pages.then(|| self.pages()),
            grpc_listen: self.grpc_listen.clone(),
            request_bytes_max: self.request_bytes_max,
            instances: self.instances.clone(),
            action_limits: self.action_limits(),
            action_timeout: Duration::from_secs(self.action_timeout_seconds),
            action_timeout_max: Duration::from_secs(self.action_timeout_seconds_max),
            action_queue_timeout: Duration::from_secs(self.action_queue_timeout_seconds),
            action_attempts: Attempt(self.action_attempts),
            action_waiter_grace: Duration::from_millis(self.action_waiter_grace_ms),
            action_merging: self.action_merging,
            trace_actions_max: self.trace_actions_max,
            fetch_timeout: Duration::from_secs(self.fetch_timeout_seconds),
            fetch_bytes_max: self.cas_blob_bytes_max,
            fetch_hosts: self.fetch_hosts.clone(),
            images: self.image_settings(),
        }
    }
}
