//! Every setting of Forebay: defaults < `forebay.toml` < `FOREBAY_*` environment < flags.
//!
//! The names are flat and carry their unit, so that `lease_ttl_seconds` in the file is
//! `FOREBAY_LEASE_TTL_SECONDS` in the environment.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use config::{Config, Environment, File, FileFormat};
use model::{
    Amount, BandOrder, ExecutorType, Occupancy, Priority, RequestLimits, ResourceName, ScaledPool,
    SomeTimeLimits, TimeLimits,
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

mod autoscale;
mod check;
mod defaults;
mod jobs;
mod limits;
mod variables;

pub use autoscale::PoolScaling;
pub use check::SettingsError;
pub use variables::unknown_variables;

/// All settings of all services.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Where nats-server listens.
    pub nats_url: String,
    /// Where Redis listens.
    pub redis_url: String,
    /// Where blobs are kept: `file:///PATH`. Empty: as the bus says, else `data`/objects.
    pub store_url: String,
    /// The data folder.
    pub data: PathBuf,
    /// Address of the HTTP API.
    pub http_listen: String,
    /// Address of the Remote Execution API (gRPC).
    pub grpc_listen: String,
    /// Address of `/metrics` and `/healthz`; port 0 is any free one.
    pub metrics_listen: String,
    /// Connections of clients to one process at most. 0: as many as its limit of open files allows, up to 10,000.
    pub connections_max: usize,
    /// Connections from one address at most. 0: half of `connections_max`. Raise it behind a proxy.
    pub connections_per_client_max: usize,
    /// Seconds that a client has to send the head of a request, and that a connection without a request is kept (HTTP), or to
    /// begin to speak (gRPC, where an idle connection is kept as long as it answers).
    pub request_head_timeout_seconds: u64,
    /// Seconds that the body of a request may pause; over all it must bring 1 KiB a second.
    pub request_body_timeout_seconds: u64,
    /// `text` or `json`.
    pub log_format: String,

    /// Replicas of every stream: 1, 3 or 5.
    pub replicas: usize,
    /// Days that build events are kept. Must outlast queue, run and look-back.
    pub events_days: u64,
    /// Bytes of build events at most; when full, new builds are refused. 0 is no limit.
    pub events_bytes_max: u64,
    /// Bytes of waiting requests at most; when full, publishing is refused. 0 is no limit.
    pub requests_bytes_max: u64,
    /// Days that rejections are kept.
    pub rejected_days: u64,

    /// Bytes of a request message at most.
    pub request_bytes_max: usize,
    /// Tasks of a job at most.
    pub job_tasks_max: usize,
    /// Bytes of a job as JSON at most.
    pub job_bytes_max: usize,
    /// Seconds a build may run when it says nothing.
    pub timeout_seconds: u64,
    /// Seconds a build may run at most.
    pub timeout_seconds_max: u64,
    /// Seconds a build may wait when it says nothing.
    pub queue_timeout_seconds: u64,
    /// Seconds a build may wait at most.
    pub queue_timeout_seconds_max: u64,
    /// Times of builds by priority, where they differ: `timeout_seconds`, `queue_timeout_seconds` and
    /// `lease_ttl_seconds` of `emergency`, `interactive`, `automated` or `batch`.
    #[serde(deserialize_with = "structured")]
    pub priority_limits: BTreeMap<Priority, SomeTimeLimits>,
    /// Attempts of a build when it says nothing.
    pub attempts: u32,
    /// Attempts of a build at most.
    pub attempts_max: u32,

    /// Seconds a lease lives without renewal when the build says nothing; well above a restart of nats-server.
    pub lease_ttl_seconds: u64,
    /// Seconds a lease lives without renewal at most.
    pub lease_ttl_seconds_max: u64,
    /// Milliseconds a worker has to claim an offered build.
    pub offer_timeout_ms: u64,
    /// Seconds between two heartbeats of a worker; it counts as gone after three.
    pub heartbeat_seconds: u64,
    /// Seconds a build past its own timeout may stay in progress before the reaper ends it.
    pub overrun_seconds: u64,

    /// The executor types of this farm, each with the signs by which a build is known to use it: a flag's beginning, or
    /// `tag:NAME`. All builds use x86.
    #[serde(deserialize_with = "structured")]
    pub executor_types: BTreeMap<ExecutorType, Vec<String>>,
    /// The type of this machine's executors and workers.
    pub executor_type: ExecutorType,
    /// ESU of each executor type that the farm has; quotas that add up to more are scaled down. A type that is not named has
    /// as much as the quotas say.
    #[serde(deserialize_with = "structured")]
    pub capacity: Occupancy,
    /// What becomes of a build whose group has no quota, once any group has one: `default` (the quota that is set for
    /// the name `default`; without it such a group only borrows what others leave unused), or `refuse`.
    pub groups_without_quota: String,
    /// Milliseconds between two decisions of the governor.
    pub governor_tick_ms: u64,
    /// Order of a group's builds of the same priority: `fcfs`, `spt`, `edf`, `oagm`, `least_flex` or `spt-aged`.
    pub band_order: BandOrder,
    /// The same for `emergency`, `interactive`, `automated` or `batch`, where it is another.
    #[serde(deserialize_with = "structured")]
    pub band_orders: BTreeMap<Priority, BandOrder>,
    /// How it is estimated how long builds will run: `thesis` or `adaptive`.
    pub estimator: String,
    /// The pools whose number of processes follows the work: `workers`, `executors` (of the pool `default`) or
    /// `executors.POOL`, each with its bounds. Where none is named, nothing is scaled.
    #[serde(deserialize_with = "structured")]
    pub autoscale: BTreeMap<ScaledPool, PoolScaling>,
    /// Milliseconds between two looks at a pool that is scaled, while anything waits or runs there.
    pub autoscale_tick_ms: u64,
    /// Whether warm workspaces are looked for. Off, each build starts in an empty one.
    pub warm_workspaces: bool,
    /// Percent of the machine's memory in use above which idle tool servers are shut down, the least valuable first.
    pub tool_memory_percent: u8,
    /// Seconds between two trainings of the occupancy model; 0: never.
    pub training_seconds: u64,

    /// Workspaces of a worker. 0: two for each processor.
    pub workspaces: u16,
    /// Milliseconds between SIGTERM and SIGKILL when a build is cancelled or times out.
    pub kill_grace_ms: u64,
    /// Seconds a worker that is told to stop lets its builds run on before it gives them back.
    pub drain_seconds: u64,
    /// Seconds after which what a killed `forebay up` left running ends by itself, once its builds have ended, unless another `up`
    /// takes it over. 0: never.
    pub orphan_seconds: u64,
    /// Bytes of console output of one build on the bus at most; the rest goes to the store.
    pub console_bytes_max: u64,
    /// Bytes of console output of one build kept at all.
    pub log_bytes_max: u64,
    /// Bytes of one kept output file at most.
    pub output_bytes_max: u64,
    /// Keeps the workspace folder of a failed build, for looking at.
    pub keep_failed_workspaces: bool,
    /// Bytes that the archive of a build may unpack to at most.
    pub unpacked_bytes_max: u64,
    /// A file with settings of git for fetching sources: proxies, mirrors, credential helpers, filters. That of the machine
    /// and of the worker's user are not read: a build could have written them.
    pub git_config_file: Option<PathBuf>,
    /// Tasks of one job that a worker has executed at a time.
    pub job_tasks_in_flight: usize,

    /// Which instance names there are and which quota group each stands for, with spaces between:
    /// `PATTERN=GROUP[,GROUP...][;priority=MIN..MAX][;pool=POOL][;readonly]`. The pattern is a name, `NAME/*` or `*`; the first that
    /// matches holds. A client may ask for one of the further groups by the header `x-forebay-group`.
    pub instances: String,
    /// Seconds that the origin of an asset may take to send it.
    pub fetch_timeout_seconds: u64,

    /// Days that executions are kept. Must outlast their queue and run.
    pub actions_days: u64,
    /// Bytes of executions on the bus at most; when full, new actions are refused. 0 is no limit.
    pub actions_bytes_max: u64,
    /// Days that log streams written by clients are kept.
    pub log_streams_days: u64,
    /// Seconds an action's command may run when the client says nothing.
    pub action_timeout_seconds: u64,
    /// Seconds an action's command may run at most.
    pub action_timeout_seconds_max: u64,
    /// Seconds an action may wait for an executor.
    pub action_queue_timeout_seconds: u64,
    /// Runs of an action at most, when executors die under it.
    pub action_attempts: u32,
    /// Milliseconds that an action runs on after the last client has gone.
    pub action_waiter_grace_ms: u64,
    /// Bytes of each of stdout and stderr of an action at most; beyond, the action is killed.
    pub action_output_bytes_max: u64,
    /// Bytes of memory of an action at most, where cgroups can be had; 0 is no limit.
    pub action_memory_bytes_max: u64,
    /// Seconds of processor time of an action at most, of all its processes together; 0 is no limit. This and the three
    /// that follow hold also for actions that ask for no limit (`limit-cpu-ms` and the like); one that asks for more is refused.
    pub action_cpu_seconds_max: u64,
    /// Processes and threads of an action at a time at most; 0 is no limit.
    pub action_processes_max: u64,
    /// Files and folders that an action may add at most; 0 is no limit.
    pub action_files_max: u64,
    /// Bytes by which an action may make its folder larger at most; 0 is no limit.
    pub action_disk_bytes_max: u64,
    /// User and group id of actions when the executor runs as root. Must own nothing.
    pub action_uid: u32,
    /// Whether an action that is asked for while the same one waits or runs joins it instead of running again.
    pub action_merging: bool,
    /// Copies of an action that takes long which may be started beside the first; 0: none, however long it takes.
    pub action_hedges: u16,
    /// Milliseconds after which the first copy is started; each further one waits as much longer.
    pub action_hedge_delay_ms: u64,
    /// Starts a copy also when an action takes longer than `action_hedge_factor` times what 95 % of its kind took.
    pub action_hedge_by_history: bool,
    /// See `action_hedge_by_history`; at least 1.
    pub action_hedge_factor: f64,
    /// Executors that are told of a waiting action at once; the first of them with room for it has it.
    pub action_probes: u16,
    /// Milliseconds that each of them lets those go first that suit the action better.
    pub action_probe_delay_ms: u64,
    /// Whether an action goes first to where actions like it ran before.
    pub action_affinity: bool,
    /// Whether, beyond that, the emptier of two executors is preferred, or any.
    pub action_load_aware: bool,
    /// Milliseconds that an action is passed over in favour of one of the same group that is warm on the executor that asks.
    pub action_affinity_wait_ms: u64,
    /// Seconds that others may pass an action which waits for a custom resource alone; after that, room is kept for it.
    pub custom_resource_patience_seconds: u64,
    /// Whether actions are packed by what their kind was seen to use; else by what they ask for.
    pub action_sizing: bool,

    /// Actions an executor runs at a time at most. 0: one for each processor.
    pub executor_slots: u16,
    /// Thousandths of a processor that actions of an executor may hold together. 0: 1000 for each slot.
    pub executor_cpu_millis: u64,
    /// Bytes of memory that they may hold together. 0: nine tenths of what the machine or its control group has.
    pub executor_memory_bytes: u64,
    /// Custom resources of this machine's executors, which actions ask for by `resources:NAME`: `gpu = 2`.
    #[serde(deserialize_with = "structured")]
    pub executor_resources: BTreeMap<ResourceName, Amount>,
    /// Whether an executor admits actions by a congestion window, which shrinks when the machine is short of something.
    pub congestion_window: bool,
    /// Points of that window at the start; an action costs 5, and 5 more for each slot that it holds. 0: all slots.
    pub window_start_points: u32,
    /// Points of it at most. 0: all slots.
    pub window_points_max: u32,
    /// Milliseconds between two looks at the sensors, while anything runs.
    pub window_tick_ms: u64,
    /// Load of a minute above which the machine is overloaded, for each processor or slot, whichever are more. 0: never.
    pub load_max: f64,
    /// Percent of memory, of the machine's or of the control group's, that must be left.
    pub memory_left_percent: u8,
    /// Percent of the data folder's disk, and of its inodes, that must be left: below that workers and executors take nothing
    /// new, below half of it stores refuse writes and a build that fills the disk is ended. 0: they fill it.
    pub disk_left_percent: u8,
    /// Actions that may fetch their inputs at a time. 0: any number.
    pub starting_max: u16,
    /// `bubblewrap`, or `none` where the machine cannot.
    pub sandbox: String,
    /// Folders of the machine that sandboxed actions can read, besides the system's own.
    #[serde(deserialize_with = "structured")]
    pub sandbox_read_only: Vec<PathBuf>,
    /// The pool of this machine's executors.
    pub pool: String,
    /// Platform properties that they offer, with the values of each.
    #[serde(deserialize_with = "structured")]
    pub pool_properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is an action's `/` there.
    pub pool_root_is_input: bool,

    /// Where blobs and action results are kept beyond the data folder: `s3://`, `gs://`, `az://` or another URL. Empty: nowhere.
    pub cas_url: String,
    /// Bytes on disk of blobs and action results in the data folder at most.
    pub cas_bytes_max: u64,
    /// Seconds that a blob is kept after someone was told that it is there, while there is room.
    pub cas_keep_seconds: u64,
    /// Seconds that it is kept at least, when the store is about to be full: then the oldest go.
    pub cas_keep_min_seconds: u64,
    /// Bytes of memory for small blobs, in each process.
    pub cas_memory_bytes: u64,
    /// Bytes of one blob at most.
    pub cas_blob_bytes_max: u64,
    /// Writes blobs through to the disk before they count as stored.
    pub cas_fsync: bool,
}

impl Settings {
    /// Reads `file` (when it exists; `required` when the user named it) and the environment.
    pub fn load(file: &Path, required: bool) -> Result<Self, SettingsError> {
        Self::load_with(file, required, Environment::with_prefix("FOREBAY"))
    }

    fn load_with(file: &Path, required: bool, environment: Environment) -> Result<Self, SettingsError> {
        let source = File::from(file).format(FileFormat::Toml).required(required);
        check_names(file, source.clone())?;
        let merged =
            Config::builder().add_source(source).add_source(environment.try_parsing(true)).build()?;
        let settings: Self = merged.try_deserialize()?;
        settings.check()?;
        Ok(settings)
    }

    /// What a request is checked against.
    pub fn request_limits(&self) -> RequestLimits {
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
        }
    }

    /// By what a group's builds of this priority are ordered.
    pub fn band_order_of(&self, priority: Priority) -> BandOrder {
        self.band_orders.get(&priority).copied().unwrap_or(self.band_order)
    }

    /// How many actions an executor runs at a time.
    pub fn executor_slot_count(&self) -> u16 {
        if self.executor_slots > 0 {
            return self.executor_slots;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(processors).unwrap_or(u16::MAX)
    }

    /// How many workspaces a worker has.
    pub fn workspace_count(&self) -> u16 {
        if self.workspaces > 0 {
            return self.workspaces;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(processors.saturating_mul(2)).unwrap_or(u16::MAX)
    }
}

/// A list or table: as itself from a file, as JSON from a variable.
fn structured<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        Text(String),
        Value(T),
    }
    match Either::deserialize(deserializer)? {
        Either::Text(text) => serde_json::from_str(&text).map_err(serde::de::Error::custom),
        Either::Value(value) => Ok(value),
    }
}

/// A misspelt name in a file would be ignored without a word.
fn check_names(file: &Path, source: File<config::FileSourceFile, FileFormat>) -> Result<(), SettingsError> {
    let named = Config::builder().add_source(source).build()?;
    let table: std::collections::HashMap<String, config::Value> = named.try_deserialize()?;
    // Not through `Config`, which knows nothing of what is empty.
    let known = serde_json::to_value(Settings::default()).unwrap_or_default();
    match table.keys().filter(|name| known.get(name).is_none()).min() {
        None => Ok(()),
        Some(name) => Err(SettingsError::Unknown { file: file.display().to_string(), name: name.clone() }),
    }
}

#[cfg(test)]
mod tests;
