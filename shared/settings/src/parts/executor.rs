use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use model::{Amount, ExecutorType, FetchHost, ResourceName, TaskLimits};

use super::{images::ImageSettings, sandbox::SandboxSettings, sensors::SensorSettings};
use crate::{SandboxKind, Settings, SlotCores};

/// Settings of the service `executor`.
#[derive(Debug, Clone)]
pub struct ExecutorSettings {
    pub executor_type: ExecutorType,
    pub slots: u16,
    /// Number of slots that are left for actions of the band `emergency`; below `slots`.
    pub emergency_slots: u16,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub resources: BTreeMap<ResourceName, Amount>,
    /// The nodes of each device, by resource.
    pub devices: BTreeMap<ResourceName, Vec<Vec<PathBuf>>>,
    /// Environment variables with the numbers of an action's devices.
    pub device_variables: BTreeMap<ResourceName, String>,
    pub pool: String,
    pub pool_properties: BTreeMap<String, Vec<String>>,
    pub pool_root_is_input: bool,
    pub slot_cores: SlotCores,
    pub sandbox: SandboxKind,
    pub sandboxes: SandboxSettings,
    /// `None` if actions get no images.
    pub images: Option<ImageSettings>,
    /// Whether actions reach the network of the machine if they ask for it.
    pub action_network: bool,
    pub action_uid: u32,
    pub action_limits: TaskLimits,
    pub action_output_bytes_max: u64,
    pub fetch_hosts: Vec<FetchHost>,
    pub sensors: SensorSettings,
    pub machine_lock: Vec<PathBuf>,
    pub alone_patience: Duration,
    pub starting_max: u16,
    pub heartbeat: Duration,
    pub lease_ttl: Duration,
    pub kill_grace: Duration,
    pub drain: Duration,
}

impl Settings {
    pub fn executor(&self) -> ExecutorSettings {
        ExecutorSettings {
            executor_type: self.executor_type.clone(),
            slots: self.executor_slot_count(),
            emergency_slots: self.emergency_slots.min(self.executor_slot_count().saturating_sub(1)),
            cpu_millis: self.executor_cpu_millis,
            memory_bytes: self.executor_memory_bytes,
            resources: self.executor_resources.clone(),
            devices: self.device_nodes(),
            device_variables: self.executor_device_variables.clone(),
            pool: self.pool.clone(),
            pool_properties: self.pool_properties.clone(),
            pool_root_is_input: self.pool_root_is_input,
            slot_cores: self.slot_cores,
            sandbox: self.sandbox,
            sandboxes: self.sandboxes(),
            images: (self.images && self.sandbox == SandboxKind::Bubblewrap).then(|| self.image_settings()),
            action_network: self.action_network,
            action_uid: self.action_uid,
            action_limits: self.action_limits(),
            action_output_bytes_max: self.action_output_bytes_max,
            fetch_hosts: self.fetch_hosts.clone(),
            sensors: self.sensors(),
            machine_lock: self.machine_locks(),
            alone_patience: Duration::from_secs(self.alone_patience_seconds),
            starting_max: self.starting_max,
            heartbeat: Duration::from_secs(self.heartbeat_seconds),
            lease_ttl: Duration::from_secs(self.lease_ttl_seconds),
            kill_grace: Duration::from_millis(self.kill_grace_ms),
            drain: Duration::from_secs(self.drain_seconds),
        }
    }

    /// The nodes of each device; entries are checked to be absolute paths.
    fn device_nodes(&self) -> BTreeMap<ResourceName, Vec<Vec<PathBuf>>> {
        let nodes = |entry: &String| entry.split('+').map(PathBuf::from).collect();
        let all = self.executor_devices.iter();
        all.map(|(name, entries)| (name.clone(), entries.iter().map(nodes).collect())).collect()
    }
}
