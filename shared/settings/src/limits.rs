//! Limits of requests and actions as configured by the operator.

use model::{RequestLimits, TaskLimits, TimeLimits, WarmDefaults};

use crate::Settings;

impl Settings {
    /// Limits that a request is checked against.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            request_bytes_max: self.request_bytes_max,
            times: TimeLimits {
                timeout_seconds: self.timeout_seconds,
                queue_timeout_seconds: self.queue_timeout_seconds,
                lease_ttl_seconds: self.lease_ttl_seconds,
            },
            times_by_priority: self.priority_limits.clone(),
            times_max: TimeLimits {
                timeout_seconds: self.timeout_seconds_max,
                queue_timeout_seconds: self.queue_timeout_seconds_max,
                lease_ttl_seconds: self.lease_ttl_seconds_max.max(self.lease_ttl_seconds),
            },
            attempts: self.attempts,
            attempts_max: self.attempts_max,
            executor_types: self.executor_types.keys().cloned().collect(),
            build_limits: self.build_limits.clone(),
            warm: WarmDefaults {
                all: self.warm_by_default,
                groups: self.warm_groups.clone(),
                labels: self.warm_labels.clone(),
            },
        }
    }

    /// Upper limits of every action, whatever it requests. Absent values are unlimited.
    pub(crate) fn action_limits(&self) -> TaskLimits {
        // A setting of 0 means no limit.
        let most = |most: u64| (most > 0).then_some(most);
        let millis = |seconds: u64| most(seconds.saturating_mul(1000));
        TaskLimits {
            cpu_ms: millis(self.action_cpu_seconds_max),
            wall_ms: millis(self.action_timeout_seconds_max),
            memory_bytes: most(self.action_memory_bytes_max),
            processes: most(self.action_processes_max),
            files: most(self.action_files_max),
            disk_bytes: most(self.action_disk_bytes_max),
            output_bytes: Some(self.action_output_bytes_max),
        }
    }
}
