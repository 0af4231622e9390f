//! Limits of actions as configured by the operator.

use model::TaskLimits;

use crate::Settings;

impl Settings {
    /// Upper limits of every action, whatever it requests. Absent values are unlimited.
    pub fn action_limits(&self) -> TaskLimits {
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
