use std::collections::BTreeMap;

use model::{EstimatorKind, ExecutorType, Group, JobLimits, RequestLimits};

use super::images::ImageSettings;
use crate::{GroupsWithoutQuota, Settings};

/// Settings of the service `enqueuer`.
#[derive(Debug, Clone)]
pub struct EnqueuerSettings {
    pub request_limits: RequestLimits,
    /// Maximum number of waiting builds of a group; 0: no limit.
    pub queue_builds_max: u64,
    pub queue_builds_max_by_group: BTreeMap<Group, u64>,
    pub queue_mib_per_hour: u64,
    pub job_limits: JobLimits,
    pub executor_types: BTreeMap<ExecutorType, Vec<String>>,
    pub groups_without_quota: GroupsWithoutQuota,
    pub estimator: EstimatorKind,
    /// Number of idle workspaces of the farm that are left for emergencies.
    pub emergency_workspaces: usize,
    /// The environments that tasks of jobs may name.
    pub images: ImageSettings,
}

impl Settings {
    pub fn enqueuer(&self) -> EnqueuerSettings {
        EnqueuerSettings {
            request_limits: self.request_limits(),
            queue_builds_max: self.queue_builds_max,
            queue_builds_max_by_group: self.queue_builds_max_by_group.clone(),
            queue_mib_per_hour: self.queue_mib_per_hour,
            job_limits: JobLimits {
                tasks_max: self.job_tasks_max,
                bytes_max: self.job_bytes_max,
                task_max: self.action_limits(),
            },
            executor_types: self.executor_types.clone(),
            groups_without_quota: self.groups_without_quota,
            estimator: self.estimator,
            emergency_workspaces: self.emergency_workspaces,
            images: self.image_settings(),
        }
    }
}
