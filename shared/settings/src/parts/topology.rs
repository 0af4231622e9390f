use std::time::Duration;

use crate::{Settings, units::days};

/// Settings of streams, buckets and consumers.
#[derive(Debug, Clone)]
pub struct TopologySettings {
    pub replicas: usize,
    pub requests_bytes_max: u64,
    pub events_retention: Duration,
    pub events_bytes_max: u64,
    pub bazel_bytes_max: u64,
    pub rejected_retention: Duration,
    pub actions_retention: Duration,
    pub actions_bytes_max: u64,
    pub log_streams_retention: Duration,
    pub audit_retention: Duration,
    pub audit_bytes_max: u64,
}

impl Settings {
    pub fn topology(&self) -> TopologySettings {
        TopologySettings {
            replicas: self.replicas,
            requests_bytes_max: self.requests_bytes_max,
            events_retention: days(self.events_days),
            events_bytes_max: self.events_bytes_max,
            bazel_bytes_max: self.bazel_bytes_max,
            rejected_retention: days(self.rejected_days),
            actions_retention: days(self.actions_days),
            actions_bytes_max: self.actions_bytes_max,
            log_streams_retention: days(self.log_streams_days),
            audit_retention: days(self.audit_days),
            audit_bytes_max: self.audit_bytes_max,
        }
    }
}
