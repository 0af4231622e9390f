use std::time::Duration;

use crate::Settings;

/// Limits of client connections to a process.
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    pub max: usize,
    pub per_client_max: usize,
    pub request_head_timeout: Duration,
    pub request_body_timeout: Duration,
}

impl Settings {
    pub fn connections(&self) -> ConnectionSettings {
        ConnectionSettings {
            max: self.connections_max,
            per_client_max: self.connections_per_client_max,
            request_head_timeout: Duration::from_secs(self.request_head_timeout_seconds),
            request_body_timeout: Duration::from_secs(self.request_body_timeout_seconds),
        }
    }
}
