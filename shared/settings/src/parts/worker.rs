use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use model::{BuildLimits, ExecutorType, WorkerProperties};

use super::{
    contexts::ContextSettings, images::ImageSettings, sandbox::SandboxSettings, sensors::SensorSettings,
};
use crate::{BuildNetwork, BuildSandbox, Settings};

/// Whether the builds of environments, which have no sandbox, may run on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentBuilds {
    Allowed,
    Refused,
}

/// Settings of the service `worker`.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    pub executor_type: ExecutorType,
    pub properties: WorkerProperties,
    pub workspaces: u16,
    pub warm_workspaces: bool,
    pub keep_failed_workspaces: bool,
    pub tool_memory_percent: u8,
    pub tool_age: Option<Duration>,
    pub disk_left_percent: u8,
    pub console_bytes_max: u64,
    pub log_bytes_max: u64,
    pub output_bytes_max: u64,
    pub unpacked_bytes_max: u64,
    pub limits: BuildLimits,
    pub group_limits: BTreeMap<String, BuildLimits>,
    pub cpu_weight: Option<u32>,
    pub out_of_memory_factor: Option<f64>,
    pub sensors: SensorSettings,
    pub machine_lock: Vec<PathBuf>,
    pub window_growth: Duration,
    pub sandbox: BuildSandbox,
    pub network: BuildNetwork,
    pub sandbox_by_request: bool,
    pub environments: EnvironmentBuilds,
    pub first_uid: Option<u32>,
    /// User of the services of builds whose workspace has no user of its own, if the worker is root.
    pub service_uid: u32,
    pub sandboxes: SandboxSettings,
    /// `None` if builds get no images.
    pub images: Option<ImageSettings>,
    pub contexts: ContextSettings,
    /// Folder with secrets of builds; `None` if builds get none.
    pub secrets: Option<PathBuf>,
    pub git_config_file: Option<PathBuf>,
    /// File with the authorities of the certificates of gateways, for the tools of builds.
    pub gateway_authorities: Option<PathBuf>,
    pub job_tasks_in_flight: usize,
    pub action_output_bytes_max: u64,
    pub heartbeat: Duration,
    pub kill_grace: Duration,
    pub drain: Duration,
}

impl Settings {
    pub fn worker(&self) -> WorkerSettings {
        WorkerSettings {
            executor_type: self.executor_type.clone(),
            properties: WorkerProperties(self.worker_properties.clone()),
            workspaces: self.workspace_count(),
            warm_workspaces: self.warm_workspaces,
            keep_failed_workspaces: self.keep_failed_workspaces,
            tool_memory_percent: self.tool_memory_percent,
            tool_age: Some(self.tool_age_seconds).filter(|age| *age > 0).map(Duration::from_secs),
            disk_left_percent: self.disk_left_percent,
            console_bytes_max: self.console_bytes_max,
            log_bytes_max: self.log_bytes_max,
            output_bytes_max: self.output_bytes_max,
            unpacked_bytes_max: self.unpacked_bytes_max,
            limits: self.workspace_limits(),
            group_limits: self.build_limits.clone(),
            cpu_weight: Some(self.workspace_cpu_weight).filter(|weight| *weight > 0),
            out_of_memory_factor: Some(self.out_of_memory_factor).filter(|factor| *factor > 0.0),
            sensors: self.sensors(),
            machine_lock: self.machine_locks(),
            window_growth: Duration::from_millis(self.build_window_growth_ms),
            sandbox: self.build_sandbox,
            network: self.build_network,
            sandbox_by_request: self.build_sandbox_by_request,
            environments: if self.build_environments {
                EnvironmentBuilds::Allowed
            } else {
                EnvironmentBuilds::Refused
            },
            first_uid: Some(self.build_uid).filter(|uid| *uid > 0),
            service_uid: self.action_uid,
            sandboxes: self.sandboxes(),
            images: self.images.then(|| self.image_settings()),
            contexts: self.contexts(),
            secrets: self.secrets_folder.clone(),
            git_config_file: self.git_config_file.clone(),
            gateway_authorities: self.gateway_ca_file.clone(),
            job_tasks_in_flight: self.job_tasks_in_flight,
            action_output_bytes_max: self.action_output_bytes_max,
            heartbeat: Duration::from_secs(self.heartbeat_seconds),
            kill_grace: Duration::from_millis(self.kill_grace_ms),
            drain: Duration::from_secs(self.drain_seconds),
        }
    }

    /// Limits of each workspace, whatever its builds ask for.
    fn workspace_limits(&self) -> BuildLimits {
        let most = |most: u64| (most > 0).then_some(most);
        BuildLimits {
            memory_bytes: most(self.workspace_memory_bytes),
            processes: most(self.workspace_processes_max),
            cpu_millis: most(self.workspace_cpu_millis),
            disk_bytes: most(self.workspace_disk_bytes),
            output_bytes: None,
        }
    }
}
