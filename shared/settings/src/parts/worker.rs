use std::{path::PathBuf, time::Duration};

use model::{ExecutorType, WorkerProperties};

use super::{contexts::ContextSettings, sandbox::SandboxSettings};
use crate::{BuildNetwork, SandboxKind, Settings};

/// Settings of the service `worker`.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    pub executor_type: ExecutorType,
    pub properties: WorkerProperties,
    pub workspaces: u16,
    pub warm_workspaces: bool,
    pub keep_failed_workspaces: bool,
    pub tool_memory_percent: u8,
    pub disk_left_percent: u8,
    pub console_bytes_max: u64,
    pub log_bytes_max: u64,
    pub output_bytes_max: u64,
    pub unpacked_bytes_max: u64,
    pub memory_bytes_max: Option<u64>,
    pub processes_max: Option<u64>,
    pub sandbox: SandboxKind,
    pub network: BuildNetwork,
    pub sandboxes: SandboxSettings,
    pub contexts: ContextSettings,
    pub git_config_file: Option<PathBuf>,
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
            disk_left_percent: self.disk_left_percent,
            console_bytes_max: self.console_bytes_max,
            log_bytes_max: self.log_bytes_max,
            output_bytes_max: self.output_bytes_max,
            unpacked_bytes_max: self.unpacked_bytes_max,
            memory_bytes_max: Some(self.workspace_memory_bytes).filter(|bytes| *bytes > 0),
            processes_max: Some(self.workspace_processes_max).filter(|count| *count > 0),
            sandbox: self.build_sandbox,
            network: self.build_network,
            sandboxes: self.sandboxes(),
            contexts: self.contexts(),
            git_config_file: self.git_config_file.clone(),
            job_tasks_in_flight: self.job_tasks_in_flight,
            action_output_bytes_max: self.action_output_bytes_max,
            heartbeat: Duration::from_secs(self.heartbeat_seconds),
            kill_grace: Duration::from_millis(self.kill_grace_ms),
            drain: Duration::from_secs(self.drain_seconds),
        }
    }
}
