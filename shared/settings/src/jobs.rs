//! Limits that jobs are checked against.

use model::JobLimits;

use crate::Settings;

impl Settings {
    /// Limits that a job is checked against when it is submitted.
    pub fn job_limits(&self) -> JobLimits {
        JobLimits {
            tasks_max: self.job_tasks_max,
            bytes_max: self.job_bytes_max,
            task_max: self.action_limits(),
        }
    }
}
