//! All settings of Forebay. Precedence: defaults < `forebay.toml` < `FOREBAY_*` environment < flags.
//!
//! Names are flat and include their unit: `lease_ttl_seconds` in the file is
//! `FOREBAY_LEASE_TTL_SECONDS` in the environment.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use model::{
    ActionOrder, Amount, BandOrder, BuildLimits, EstimatorKind, ExecutorType, FetchHost, Group, Occupancy,
    Priority, PublicUrl, ResourceName, ScaledPool, SomeTimeLimits, ZoneLimits,
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

mod autoscale;
mod check;
mod choices;
mod defaults;
mod descriptions;
mod devices;
mod limits;
mod loading;
mod parts;
mod units;
mod variables;

pub use autoscale::PoolScaling;
pub use check::SettingsError;
pub use choices::{BuildNetwork, BuildSandbox, GroupsWithoutQuota, LogFormat, SandboxKind, SlotCores};
pub use descriptions::DescribedSetting;
pub use loading::earlier_names;
pub use parts::{
    AccessSettings, ArchiveSettings, AutoscalerSettings, CasSettings, ConnectionSettings, ContextSettings,
    DispatcherSettings, EnqueuerSettings, EnvironmentBuilds, ExecutorSettings, GatewayLogin, GatewaySettings,
    GovernorSettings, HedgeSettings, ImageSettings, PageSettings, ReaperSettings, RegistrySettings,
    SandboxSettings, SchedulerSettings, SensorSettings, ServiceSettings, StoreSettings, TlsSettings,
    TopologySettings, TrainerSettings, WatchdogSettings, WebSettings, WindowSettings, WorkerSettings,
};
pub use variables::unknown_variables;

/// All settings of all services. A service gets its own part, for example [`Settings::worker`].
#[expect(clippy::struct_excessive_bools, reason = "each is an independent setting")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// URL of nats-server, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    /// URL of Redis, for example `redis://127.0.0.1:6379`.
    pub redis_url: String,
    /// Path of the data folder.
    pub data: PathBuf,
    /// File with the key of this process for nats-server and Redis, as `forebay access` made and named it: `ROLE.NAME.seed`, or
    /// `ROLE.NAME.creds` where users have JWTs. `{service}` in it is the name of the service; `operator` for commands. A changed key applies to the next connection.
    /// Absent: without a key.
    pub seed_file: Option<PathBuf>,
    /// File with the authorities of the certificates of nats-server and Redis, in PEM. Absent: those of the machine.
    pub servers_ca_file: Option<PathBuf>,
    /// File with the certificate by which nats-server and Redis know this process, in PEM.
    pub servers_certificate_file: Option<PathBuf>,
    /// File with the private key of that certificate, in PEM.
    pub servers_key_file: Option<PathBuf>,
    /// File with the access rules of gateways and of the services `web` and `cas`: who may do what. Absent: every
    /// caller may do everything.
    pub gateway_access_file: Option<PathBuf>,
    /// File with the certificate of the same servers, in PEM, with those that lead to its authority. Absent: no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM.
    pub tls_key_file: Option<PathBuf>,
    /// File with the authorities of client certificates, in PEM. Without `gateway_access_file`, a certificate is then required.
    pub tls_client_ca_file: Option<PathBuf>,
    /// File with at least 32 random bytes, the same for workers and gateways: workers sign a token for each build with it, with
    /// which the Bazel of the build calls gateways that have access rules.
    pub build_token_key_file: Option<PathBuf>,
    /// File with at least 32 random bytes, the same for gateways, `web` and `cas`: it seals the sessions of people who sign in on the
    /// pages. A changed key applies at the next start, and ends all sessions. Absent: no sign-in.
    pub session_key_file: Option<PathBuf>,
    /// File with at least 32 random bytes, the same for enqueuers, gateways, dispatchers and schedulers: the first two prove with it
    /// what they accepted, and the others start nothing else. Workers and executors must not have it. What is older than the
    /// file needs no proof. Absent: everything that the bus has is started.
    pub seal_key_file: Option<PathBuf>,
    /// Address at which browsers reach the pages, such as `https://forebay.example.com`, if it is not that of the server itself:
    /// behind a proxy, or by a name of its own. Absent: that of the server.
    pub public_url: Option<PublicUrl>,
    /// File with the API key or token with which this process calls gateways. Changes apply to the next call.
    pub gateway_token_file: Option<PathBuf>,
    /// File with the authorities of the certificates of gateways, in PEM. Absent: those of the machine.
    pub gateway_ca_file: Option<PathBuf>,
    /// File with the certificate with which this process calls gateways, in PEM.
    pub gateway_certificate_file: Option<PathBuf>,
    /// File with the private key of that certificate, in PEM.
    pub gateway_key_file: Option<PathBuf>,
    /// Listen address of the HTTP API.
    pub http_listen: String,
    /// Whether gateways also serve the pages for browsers, on the port of the HTTP API.
    pub gateway_pages: bool,
    /// Listen address of the service `web`, which serves the HTTP API and the pages.
    pub web_listen: String,
    /// Address of the page of a trace, for links, with `{trace}` in place of the trace id, for example
    /// `http://localhost:16686/trace/{trace}`. Empty: no links.
    pub trace_page_url: String,
    /// Listen address of the Remote Execution API (gRPC).
    pub grpc_listen: String,
    /// Listen address of the cache-only gRPC API of the service `cas`; port 0 means any free port.
    pub cas_listen: String,
    /// Listen address of `/metrics` and `/healthz`; port 0 means any free port.
    pub metrics_listen: String,
    /// Maximum number of client connections to one process. 0: as many as its limit of open files
    /// allows, up to 10,000.
    pub connections_max: usize,
    /// Maximum number of connections from one address. 0: half of `connections_max`. Raise it behind a proxy.
    pub connections_per_client_max: usize,
    /// Seconds that a client has to send the head of a request, and that a connection without a request is kept
    /// (HTTP), or to start the protocol (gRPC, where an idle connection is kept as long as it answers). At least 1.
    pub request_head_timeout_seconds: u64,
    /// Seconds that the body of a request may pause, at least 1; on average it must arrive at 1 KiB per second.
    pub request_body_timeout_seconds: u64,
    /// Format of log lines: `text` or `json`.
    #[serde(deserialize_with = "choices::named")]
    pub log_format: LogFormat,

    /// Number of replicas of every stream: 1, 3 or 5.
    pub replicas: usize,
    /// Retention of build events in days. Must exceed the maximum times in queue and run together.
    pub events_days: u64,
    /// Maximum size of build events in bytes; when it is reached, new builds are refused. 0: no limit.
    pub events_bytes_max: u64,
    /// Maximum size of the build events of Bazel outside of builds in bytes; when it is reached, the oldest are
    /// dropped. nats-server sets as much of its disk aside. 0: no limit.
    pub bazel_bytes_max: u64,
    /// Database of the archive: `postgres://USER:PASSWORD@HOST/DATABASE`, or the path of a SQLite file, relative to `data`.
    pub archive_url: String,
    /// Retention of builds and actions in the archive in days, from their submission; at least `events_days`.
    pub archive_days: u64,
    /// The same for groups that differ from `archive_days`; may be less than `events_days`.
    #[serde(deserialize_with = "structured")]
    pub archive_days_by_group: BTreeMap<Group, u64>,
    /// Whether the store keeps blobs that archived builds name as long as the archive keeps builds, and not only for
    /// `objects_days`. The archive decides for the farm.
    pub archive_keeps_blobs: bool,
    /// Size of the archive in bytes above which its oldest rows are removed, also within `archive_days`. 0: no limit.
    pub archive_bytes_max: u64,
    /// Retention of audit events on the bus in days, at least 1, and at most the last 1,000,000 events. The archive keeps them for
    /// `archive_days`.
    pub audit_days: u64,
    /// Maximum size of audit events on the bus in bytes; when it is reached, the oldest are dropped. nats-server sets as much of
    /// its disk aside. 0: no limit.
    pub audit_bytes_max: u64,
    /// Maximum size of waiting requests in bytes; when it is reached, publishing fails. 0: no limit.
    pub requests_bytes_max: u64,
    /// Retention of rejections in days. 0: no limit.
    pub rejected_days: u64,

    /// Maximum number of waiting builds of a group, about; further ones are refused, emergencies above twice as many. 0: no limit.
    pub queue_builds_max: u64,
    /// The same for groups that differ from `queue_builds_max`.
    #[serde(deserialize_with = "structured")]
    pub queue_builds_max_by_group: BTreeMap<Group, u64>,
    /// Maximum size of the records that builds of a group add in an hour, in MiB for each enqueuer; twice as much for emergencies.
    /// With 0 there is no limit.
    pub queue_mib_per_hour: u64,
    /// Maximum size of a request message in bytes.
    pub request_bytes_max: usize,
    /// Maximum number of tasks of a job.
    pub job_tasks_max: usize,
    /// Maximum size of a job as JSON in bytes.
    pub job_bytes_max: usize,
    /// Default maximum run time of a build in seconds.
    pub timeout_seconds: u64,
    /// Largest `timeout_seconds` that a build may request.
    pub timeout_seconds_max: u64,
    /// Default maximum wait of a build in the queue in seconds.
    pub queue_timeout_seconds: u64,
    /// Largest `queue_timeout_seconds` that a build may request.
    pub queue_timeout_seconds_max: u64,
    /// Default times by priority, where they differ: `timeout_seconds`, `queue_timeout_seconds` and
    /// `lease_ttl_seconds` for `emergency`, `interactive`, `automated` or `batch`.
    #[serde(deserialize_with = "structured")]
    pub priority_limits: BTreeMap<Priority, SomeTimeLimits>,
    /// Default maximum number of attempts of a build, 1 to `attempts_max`.
    pub attempts: u32,
    /// Largest number of attempts that a build may request.
    pub attempts_max: u32,

    /// Default number of seconds after which a lease expires unless renewed; well above the
    /// restart time of nats-server.
    pub lease_ttl_seconds: u64,
    /// Largest `lease_ttl_seconds` that a build may request.
    pub lease_ttl_seconds_max: u64,
    /// Milliseconds that a worker has to claim an offered build.
    pub offer_timeout_ms: u64,
    /// Seconds between two heartbeats of a worker, at least 1; it counts as lost after three.
    pub heartbeat_seconds: u64,
    /// Seconds that a build may stay in progress beyond its timeout before the reaper ends it.
    pub overrun_seconds: u64,

    /// Executor types of this farm, each with the signs that a build uses it: the beginning of a flag, or `tag:NAME`.
    /// All builds use x86.
    #[serde(deserialize_with = "structured")]
    pub executor_types: BTreeMap<ExecutorType, Vec<String>>,
    /// Type of this machine's executors and workers; one of `executor_types`.
    pub executor_type: ExecutorType,
    /// Maximum ESU of each executor type in the farm. The capacity of a type is what its live executors carry, at most
    /// this; quotas that add up to more are scaled down. A type without executors that is not listed has as much as its
    /// quotas add up to.
    #[serde(deserialize_with = "structured")]
    pub capacity: Occupancy,
    /// Treatment of builds whose group has no quota, once any group has one: `default` (use the quota named `default`;
    /// without it the group only borrows unused quota), or `refuse`.
    #[serde(deserialize_with = "choices::named")]
    pub groups_without_quota: GroupsWithoutQuota,
    /// Milliseconds between two decisions of the governor, at least 100.
    pub governor_tick_ms: u64,
    /// Order of a group's builds of the same priority: `fcfs`, `spt`, `edf`, `oagm`, `least_flex` or `spt-aged`.
    #[serde(deserialize_with = "choices::named")]
    pub band_order: BandOrder,
    /// Order by priority, for those of `emergency`, `interactive`, `automated` and `batch`
    /// that differ from `band_order`.
    #[serde(deserialize_with = "structured")]
    pub band_orders: BTreeMap<Priority, BandOrder>,
    /// Estimator of run times of builds: `thesis` or `adaptive`.
    #[serde(deserialize_with = "choices::named")]
    pub estimator: EstimatorKind,
    /// Pools to autoscale, with their bounds: `workers`, `executors` (the pool `default`) or
    /// `executors.POOL`. Empty: no autoscaling.
    #[serde(deserialize_with = "structured")]
    pub autoscale: BTreeMap<ScaledPool, PoolScaling>,
    /// Milliseconds between two checks of an autoscaled pool while builds wait or run there, at least 100.
    pub autoscale_tick_ms: u64,
    /// Whether to use warm workspaces. If off, each build starts in an empty workspace.
    pub warm_workspaces: bool,
    /// Whether builds that do not say how they start (`workspace`) start in a warm workspace.
    pub warm_by_default: bool,
    /// Quota groups whose builds start in a warm workspace unless they say otherwise.
    #[serde(deserialize_with = "structured")]
    pub warm_groups: BTreeSet<Group>,
    /// Labels of builds that start in a warm workspace unless they say otherwise: values by name.
    #[serde(deserialize_with = "structured")]
    pub warm_labels: BTreeMap<String, String>,
    /// Seconds after its last build at which an idle tool server is shut down. 0: only when memory runs short.
    pub tool_age_seconds: u64,
    /// Folder of the lock by which an action that must be alone keeps other executors and workers of the machine from
    /// starting anything. Empty: `/run/lock/forebay`, or the data folder if that cannot be used.
    pub machine_lock: PathBuf,
    /// Seconds that such an action waits for what runs on the machine; then others may start for as long before it tries
    /// again. At least 1.
    pub alone_patience_seconds: u64,
    /// Number of idle workspaces of the farm that stay free for emergency builds.
    pub emergency_workspaces: usize,
    /// Percentage of the machine's memory in use, 1 to 100, above which idle tool servers are shut
    /// down, least valuable first.
    pub tool_memory_percent: u8,
    /// Seconds between two trainings of the occupancy model. 0: never.
    pub training_seconds: u64,

    /// Number of workspaces of a worker. 0: two per processor.
    pub workspaces: u16,
    /// Milliseconds between SIGTERM and SIGKILL when a build is cancelled or times out.
    pub kill_grace_ms: u64,
    /// Seconds that a stopping worker lets its builds run before they are requeued.
    pub drain_seconds: u64,
    /// Seconds after which the processes left by a killed `forebay up` stop, once their builds have ended, unless
    /// another `up` takes them over. 0: never.
    pub orphan_seconds: u64,
    /// Maximum console output of one build on the bus in bytes; the rest goes to the store in frames.
    pub console_bytes_max: u64,
    /// Maximum console output of one build that is kept at all, in bytes.
    pub log_bytes_max: u64,
    /// Maximum size of one output file in bytes.
    pub output_bytes_max: u64,
    /// Whether to keep the workspace folder of a failed build for inspection.
    pub keep_failed_workspaces: bool,
    /// Properties that this machine's workers offer to builds, with the values of each.
    #[serde(deserialize_with = "structured")]
    pub worker_properties: BTreeMap<String, Vec<String>>,
    /// Folders of this machine from which builds may ask for sources: folders, archives and git repositories in or below
    /// them. Empty: none. `forebay up` adds the current folder and the user's home folder.
    #[serde(deserialize_with = "structured")]
    pub context_paths: Vec<PathBuf>,
    /// Hosts that clients may name in the URLs of archives, git repositories and assets although they are at an address
    /// of the machine itself or of its link: a name, `*.` and a domain, an address, or a network such as `127.0.0.0/8`,
    /// each with or without `:PORT`. All other addresses, also private ones, are open. `forebay up` adds all addresses
    /// of the loopback interface.
    #[serde(deserialize_with = "structured")]
    pub fetch_hosts: Vec<FetchHost>,
    /// Whether executors run actions, and workers builds, in the container images that they ask for (`container-image`). This
    /// requires a sandbox on their machine.
    pub images: bool,
    /// Repositories from which images may be read, such as `docker.io/library` or `registry.example.com/team/tools`: those
    /// named and all below them. Empty: all.
    #[serde(deserialize_with = "structured")]
    pub image_repositories: Vec<String>,
    /// Images by name, which actions ask for by the property `env`: `{ gcc = "docker://registry.example.com/tools/gcc:11" }`. A
    /// name `GROUP/NAME` is for actions of that quota group only.
    #[serde(deserialize_with = "structured")]
    pub environments: BTreeMap<String, String>,
    /// Whether executors fetch the images of `environments` when they start.
    pub prefetch_images: bool,
    /// Registries of images that need more than their name, by host: `mirrors` (URLs that are asked first), `plain_http`,
    /// `username` and `password_file`. Only services read this; clients never see or send credentials.
    #[serde(deserialize_with = "structured")]
    pub registries: BTreeMap<String, RegistrySettings>,
    /// Maximum bytes of unpacked images on a machine, without those in use; also the maximum of one layer.
    pub image_bytes_max: u64,
    /// Seconds for which a tag of an image means the same content after it was looked up in its registry.
    pub image_tag_seconds: u64,
    /// Maximum unpacked size of the archive of a build in bytes.
    pub unpacked_bytes_max: u64,
    /// Maximum memory of all processes in a workspace in bytes: of a build, and of the tool servers that it uses. A build
    /// that needs more fails. 0: no limit.
    pub workspace_memory_bytes: u64,
    /// Maximum number of processes and threads in a workspace. 0: 768 for each processor, at least 1024 and at most 4096, if control
    /// groups can enforce it.
    pub workspace_processes_max: u64,
    /// Processors that all processes in a workspace may use at a time, in thousandths, at least 10. Only control groups can
    /// limit this. 0: no limit.
    pub workspace_cpu_millis: u64,
    /// Share of the processors that a workspace gets while others want them too, in proportion to the shares of the
    /// others: 1 to 10,000. 0: the default of the machine, 100.
    pub workspace_cpu_weight: u32,
    /// Maximum size of everything in a workspace in bytes. A build that fills it fails. 0: no limit.
    pub workspace_disk_bytes: u64,
    /// Limits of builds by quota group, `*` for all others: `memory_bytes`, `processes`, `cpu_millis`, `disk_bytes`,
    /// `output_bytes`. A build that asks for none has these, and none may ask for more.
    #[serde(deserialize_with = "structured")]
    pub build_limits: BTreeMap<String, BuildLimits>,
    /// Factor by which the memory limit of a build grows when it is requeued because it exceeded it, up to the limit of its
    /// group and its workspace. 0: it is not requeued.
    pub out_of_memory_factor: f64,
    /// Sandbox of builds: `bubblewrap`, `none`, or `auto`, which is bubblewrap where the machine supports it. Their sources
    /// are fetched outside of it.
    #[serde(deserialize_with = "choices::named")]
    pub build_sandbox: BuildSandbox,
    /// Network of sandboxed builds: `host`; `loopback`, without any other machine and without the farm; or `none`.
    #[serde(deserialize_with = "choices::named")]
    pub build_network: BuildNetwork,
    /// Whether builds may ask for less isolation than these two, by the requirements `sandbox` and `network`. They may
    /// always ask for more.
    pub build_sandbox_by_request: bool,
    /// Whether the worker makes the images of environments, if it has bubblewrap, mmdebstrap, skopeo and umoci. Their builds, those of
    /// the quota group `environments`, run without a sandbox, as the user of the worker.
    pub build_environments: bool,
    /// User and group id of the sandboxed builds of the first workspace if the worker runs as root; each further workspace has
    /// the next one. These users must not own any files. 0: builds run as the user of the worker.
    pub build_uid: u32,
    /// File with git settings for fetching sources: proxies, mirrors, credential helpers, filters. The settings of the
    /// machine and of the worker's user are ignored, because a build could have written them.
    pub git_config_file: Option<PathBuf>,
    /// Maximum number of tasks of one job that a worker has in execution at a time, at least 1.
    pub job_tasks_in_flight: usize,

    /// Instance names and their quota groups, separated by spaces:
    /// `PATTERN=GROUP[,GROUP...][;priority=MIN..MAX][;pool=POOL][;readonly]`. The pattern is a name, `NAME/*` or `*`;
    /// the first match applies. A client can select one of the further groups with the header `x-forebay-group`.
    pub instances: String,
    /// Trust zones, which do not see each other's blobs and results of actions, and their quota groups: `ZONE=GROUP[,GROUP...]`, or
    /// `ZONE<PARENT=...` for one that also reads from another. All processes of the farm need the same. Empty: no zones.
    pub zones: String,
    /// How much each zone may have in a store in a folder: `bytes_max` and `blobs_max` (0: no limit) by its name, or `*` for those
    /// that are not named. All processes on the store need the same. Empty: no limits.
    #[serde(deserialize_with = "structured")]
    pub zone_limits: ZoneLimits,
    /// Maximum time in seconds to download an asset from its origin.
    pub fetch_timeout_seconds: u64,

    /// Retention of executions in days. Must exceed the maximum times in queue and run together.
    pub actions_days: u64,
    /// Maximum size of executions on the bus in bytes; when it is reached, new actions are refused. 0: no limit.
    pub actions_bytes_max: u64,
    /// Retention in days of log streams written by clients. 0: no limit.
    pub log_streams_days: u64,
    /// Default maximum run time of an action's command in seconds.
    pub action_timeout_seconds: u64,
    /// Largest timeout in seconds that an action may request.
    pub action_timeout_seconds_max: u64,
    /// Maximum wait of an action for an executor in seconds.
    pub action_queue_timeout_seconds: u64,
    /// Maximum number of attempts of an action if executors are lost, at least 1.
    pub action_attempts: u32,
    /// Milliseconds that an action keeps running after its last client has disconnected.
    pub action_waiter_grace_ms: u64,
    /// Maximum size of stdout, and of stderr, of an action in bytes; an action that exceeds it is killed.
    pub action_output_bytes_max: u64,
    /// Maximum memory of an action in bytes, where cgroups are available. 0: no limit.
    pub action_memory_bytes_max: u64,
    /// Maximum CPU time of an action in seconds, of all its processes together. 0: no limit. This and the
    /// three following limits also apply to actions that request no limit (`limit-cpu-ms` etc.); requests
    /// above them are refused.
    pub action_cpu_seconds_max: u64,
    /// Maximum number of processes and threads of an action at a time. 0: no limit.
    pub action_processes_max: u64,
    /// Maximum number of files and folders that an action may add. 0: no limit.
    pub action_files_max: u64,
    /// Maximum growth of the folder of an action in bytes. 0: no limit.
    pub action_disk_bytes_max: u64,
    /// User and group id of actions if the executor runs as root. Must not own any files.
    pub action_uid: u32,
    /// Whether a request for an action joins a waiting or running execution of the same action.
    pub action_merging: bool,
    /// Maximum number of actions that the trace of a client's span shows, such as that of a command of a build; spans that
    /// stand for further actions link to the traces of these. 0: no limit.
    pub trace_actions_max: u32,
    /// Maximum number of additional copies of a slow action. 0: none.
    pub action_hedges: u16,
    /// Milliseconds after which the first copy is started; each further copy waits that long again.
    pub action_hedge_delay_ms: u64,
    /// Whether to start a copy also if an action takes longer than `action_hedge_factor` times the run time of 95
    /// % of similar actions.
    pub action_hedge_by_history: bool,
    /// Factor for `action_hedge_by_history`, at least 1.
    pub action_hedge_factor: f64,
    /// Whether to prefer executors on which similar actions ran before.
    pub action_affinity: bool,
    /// Order of a group's actions of the same priority: `turns` (the client's invocations take turns by the cost of
    /// their actions), `multi-level` (levels of expected run time take turns, each with a share of the processing
    /// time), or an order of builds: `fcfs`, `spt`, `edf`, `oagm`, `least_flex`, `spt-aged`.
    pub action_order: ActionOrder,
    /// Milliseconds for which an action may be passed over in favour of one of the same group that is warm
    /// on the claiming executor.
    pub action_affinity_wait_ms: u64,
    /// Seconds for which others may overtake an action that waits only for a custom resource; after that, capacity
    /// is reserved for it.
    pub custom_resource_patience_seconds: u64,
    /// Whether actions are packed by the measured use of similar actions; else by their requests.
    pub action_sizing: bool,

    /// Maximum number of actions that an executor runs at a time. 0: one per processor.
    pub executor_slots: u16,
    /// Number of slots of each executor that stay free for actions of the band `emergency`, with their part of its
    /// processors and memory; at most all slots but one.
    pub emergency_slots: u16,
    /// CPU that the actions of an executor may hold together, in thousandths of a processor. 0: 1000 per slot.
    pub executor_cpu_millis: u64,
    /// Memory that they may hold together, in bytes. 0: nine tenths of the memory of the machine or its control group.
    pub executor_memory_bytes: u64,
    /// Custom resources of this machine's executors, which actions request by `resources:NAME`, for example `gpu = 2`.
    #[serde(deserialize_with = "structured")]
    pub executor_resources: BTreeMap<ResourceName, Amount>,
    /// Devices of this machine that its executors give to actions, by the resource that requests them, for example
    /// `{ gpu = ["/dev/nvidia0+/dev/nvidiactl", "/dev/nvidia1+/dev/nvidiactl"] }`: each entry is one device with its nodes.
    /// Their number is also the amount of the resource.
    #[serde(deserialize_with = "structured")]
    pub executor_devices: BTreeMap<ResourceName, Vec<String>>,
    /// Environment variables that contain the numbers of an action's devices, by resource.
    #[serde(deserialize_with = "structured")]
    pub executor_device_variables: BTreeMap<ResourceName, String>,
    /// Whether executors limit their actions, and workers their builds, by a congestion window, which shrinks when the
    /// machine is short of a resource.
    pub congestion_window: bool,
    /// Initial size of the window in points. An action costs 5, plus 5 for each slot that it holds; a build costs 10. 0: a
    /// quarter of all slots or workspaces.
    pub window_start_points: u32,
    /// Maximum size of the window in points. 0: all slots or workspaces.
    pub window_points_max: u32,
    /// Milliseconds between two readings of the sensors while something runs, at least 10.
    pub window_tick_ms: u64,
    /// Growth of a window in percent before the first shortage, 1 to 1000; after it, a window grows by one slot at a time.
    pub window_growth_percent: u32,
    /// Percentage of the points in use by which a window is cut below them when a resource becomes short, 1 to 99.
    pub window_cut_percent: u32,
    /// Percentage of a window that must be in use before it grows, 1 to 100.
    pub window_threshold_percent: u32,
    /// Milliseconds that all sensors of a worker must be green before its window grows by one step: builds need most of
    /// their memory some time after their start.
    pub build_window_growth_ms: u64,
    /// One-minute load above which the machine counts as overloaded, per processor or slot, whichever
    /// are more. 0: never.
    pub load_max: f64,
    /// Percentage of memory, of the machine or its control group, that must stay free: 0 to 99.
    pub memory_left_percent: u8,
    /// Percentage of the data folder's disk, and of its inodes, that must stay free: 0 to 99. Below it, workers and
    /// executors accept no new work; below half of it, stores refuse writes and a build that fills the disk is
    /// ended. 0: no reserve.
    pub disk_left_percent: u8,
    /// Maximum number of actions that fetch their inputs at a time. 0: no limit.
    pub starting_max: u16,
    /// Percentage of the periods of the control group's processor limit in which it was reached, over 10 seconds: 0 to
    /// 100. Above it, the machine counts as overloaded. 0: never.
    pub throttled_percent_max: u32,
    /// Percentage of the last 10 seconds in which some process waited for a processor, as the kernel measures it (PSI): 0
    /// to 100. Above it, the machine counts as overloaded. 0: never.
    pub cpu_pressure_percent_max: u32,
    /// The same for processes that waited for memory.
    pub memory_pressure_percent_max: u32,
    /// The same for time in which all processes waited for disks.
    pub io_pressure_percent_max: u32,
    /// Program with arguments that prints a number, run every `sensor_seconds`: above `sensor_max`, the machine counts as
    /// overloaded. The rest of its first line is shown as the reason.
    #[serde(deserialize_with = "structured")]
    pub sensor_command: Vec<String>,
    /// File with such a number, read with the other sensors.
    pub sensor_file: Option<PathBuf>,
    /// Maximum of the numbers of `sensor_command` and `sensor_file`.
    pub sensor_max: f64,
    /// Seconds between two runs of `sensor_command`, at least 1; it may run for as long.
    pub sensor_seconds: u64,
    /// Whether each slot of an executor owns physical cores, so that actions measure stable times: `shared` (it may use all
    /// processors), `own` (further threads of its cores stay unused) or `own_with_siblings`. Executors with own cores offer
    /// the property `cores = own`.
    #[serde(deserialize_with = "choices::named")]
    pub slot_cores: SlotCores,
    /// Sandbox of actions: `bubblewrap`, or `none` on machines that do not support it.
    #[serde(deserialize_with = "choices::named")]
    pub sandbox: SandboxKind,
    /// Folders of the machine that sandboxed actions and builds can read, in addition to system folders.
    #[serde(deserialize_with = "structured")]
    pub sandbox_read_only: Vec<PathBuf>,
    /// Files and folders of the machine that sandboxed actions and builds never see, in addition to the data folder and
    /// the passwords and keys in `/etc`.
    #[serde(deserialize_with = "structured")]
    pub sandbox_hidden: Vec<PathBuf>,
    /// Folder with secrets of builds, in files `GROUP/NAME`, which only their owner may read. Absent: builds get none.
    pub secrets_folder: Option<PathBuf>,
    /// Whether sandboxed actions and builds are refused system calls that most escapes from sandboxes use, for example
    /// those that create user namespaces.
    pub sandbox_filter: bool,
    /// Whether actions of this machine's executors reach its network if they ask for it by the platform property
    /// `network = on`. They then also reach what listens on the machine's loopback interface.
    pub action_network: bool,
    /// Name of the pool of this machine's executors.
    pub pool: String,
    /// Platform properties that they offer, with the values of each.
    #[serde(deserialize_with = "structured")]
    pub pool_properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is an action's `/` in this pool.
    pub pool_root_is_input: bool,

    /// Store of all blobs and action results: `file:///PATH` of a folder that all services share, or `s3://BUCKET/PREFIX`,
    /// `gs://…`, `az://…` or `grpc://HOST:PORT` of one of the farm's gateways, of which the data folder then has copies.
    /// Empty: the farm's store as recorded on the bus, else `data`/cas.
    pub cas_url: String,
    /// Days for which outputs, logs and inputs that a build's record names are kept, from the record's last change; if
    /// `events_days` is longer, that applies; see also `archive_keeps_blobs`. In an object store, also the days after which unused blobs are deleted.
    pub objects_days: u64,
    /// Maximum size on disk of blobs and action results in the data folder, in bytes, at least 1; blobs that the records
    /// of builds name do not count.
    pub cas_bytes_max: u64,
    /// Seconds that a blob is kept after a client was informed that it exists, while there is free space.
    pub cas_keep_seconds: u64,
    /// Minimum of these seconds when the store is nearly full; the oldest blobs are then evicted.
    pub cas_keep_min_seconds: u64,
    /// Memory for small blobs in each process, in bytes.
    pub cas_memory_bytes: u64,
    /// Maximum size of one blob in bytes.
    pub cas_blob_bytes_max: u64,
    /// Whether blobs are flushed to disk before they count as stored.
    pub cas_fsync: bool,
}

impl Settings {
    /// How long blobs that records name are kept after the record's last change.
    pub(crate) fn objects_retention(&self) -> Duration {
        units::days(self.objects_days.max(self.events_days))
    }

    /// Maximum number of actions that an executor runs at a time.
    pub(crate) fn executor_slot_count(&self) -> u16 {
        if self.executor_slots > 0 {
            return self.executor_slots;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(processors).unwrap_or(u16::MAX)
    }

    /// Number of workspaces of a worker.
    pub(crate) fn workspace_count(&self) -> u16 {
        if self.workspaces > 0 {
            return self.workspaces;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u16::try_from(processors.saturating_mul(2)).unwrap_or(u16::MAX)
    }
}

/// Deserialises a list or table: directly from a file, as JSON from a variable.
fn structured<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    if let serde_json::Value::String(text) = &value {
        let wanted = "expected a list or table, or in a variable one as JSON";
        return serde_json::from_str(text)
            .map_err(|error| serde::de::Error::custom(format!("{wanted}: {error}")));
    }
    serde_json::from_value(value).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests;
