//! Default values of all settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use invariant::impossible;
use model::{ActionOrder, BandOrder, EstimatorKind, ExecutorType, Occupancy, ResourceName, ZoneLimits};

use crate::{BuildNetwork, BuildSandbox, GroupsWithoutQuota, LogFormat, SandboxKind, Settings, SlotCores};

/// Instruction set of the machine, as spelt in platform properties.
fn isa() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "arm-v8",
        other => other,
    }
}

/// What machines of this kind offer to builds and actions.
fn properties() -> BTreeMap<String, Vec<String>> {
    [("OSFamily", "linux"), ("ISA", isa())]
        .map(|(name, value)| (name.to_owned(), vec![value.to_owned()]))
        .into()
}

/// Programs that use graphics processors look for the numbers of theirs in this variable.
fn device_variables() -> BTreeMap<ResourceName, String> {
    let gpu = "gpu".parse();
    let gpu = gpu.inspect_err(|error| impossible!("default resource: {error}")).ok();
    gpu.into_iter().map(|name| (name, "CUDA_VISIBLE_DEVICES".to_owned())).collect()
}

/// Executor types of the paper, with its example signs.
fn default_executor_types() -> BTreeMap<ExecutorType, Vec<String>> {
    let signs: [(&str, &[&str]); 4] = [
        ("x86", &[]),
        ("mac", &["--ios", "--macos", "tag:requires-mac", "tag:requires-darwin"]),
        ("gpu", &["tag:requires-gpu"]),
        ("tpu", &["tag:requires-tpu"]),
    ];
    let named = signs.into_iter().filter_map(|(name, signs)| {
        let kind = name.parse::<ExecutorType>();
        let kind = kind.inspect_err(|error| impossible!("default executor type {name:?}: {error}")).ok()?;
        Some((kind, signs.iter().map(|sign| (*sign).to_owned()).collect()))
    });
    named.collect()
}

impl Default for Settings {
    #[expect(clippy::too_many_lines, reason = "it has a line for each setting")]
    fn default() -> Self {
        Self {
            nats_url: "nats://127.0.0.1:4222".into(),
            redis_url: "redis://127.0.0.1:6379".into(),
            data: PathBuf::from("forebay-data"),
            seed_file: None,
            servers_ca_file: None,
            servers_certificate_file: None,
            servers_key_file: None,
            gateway_access_file: None,
            tls_certificate_file: None,
            tls_key_file: None,
            tls_client_ca_file: None,
            build_token_key_file: None,
            session_key_file: None,
            seal_key_file: None,
            public_url: None,
            gateway_token_file: None,
            gateway_ca_file: None,
            gateway_certificate_file: None,
            gateway_key_file: None,
            http_listen: "127.0.0.1:8080".into(),
            gateway_pages: true,
            web_listen: "127.0.0.1:8081".into(),
            trace_page_url: String::new(),
            grpc_listen: "127.0.0.1:8980".into(),
            cas_listen: "127.0.0.1:0".into(),
            metrics_listen: "127.0.0.1:0".into(),
            connections_max: 0,
            connections_per_client_max: 0,
            request_head_timeout_seconds: 30,
            request_body_timeout_seconds: 30,
            log_format: LogFormat::Text,
            replicas: 1,
            // At most ten days in queue and run by the limits below, plus seventeen days of history
            // for training from results.
            events_days: 30,
            events_bytes_max: 0,
            archive_url: "archive/archive.db".into(),
            archive_days: 365,
            archive_days_by_group: BTreeMap::new(),
            archive_keeps_blobs: true,
            archive_bytes_max: 0,
            audit_days: 90,
            audit_bytes_max: 0,
            requests_bytes_max: 0,
            bazel_bytes_max: 0,
            rejected_days: 7,
            queue_builds_max: 1_000_000,
            queue_builds_max_by_group: BTreeMap::new(),
            queue_mib_per_hour: 2048,
            request_bytes_max: 256 << 10,
            job_tasks_max: 100_000,
            job_bytes_max: 64 << 20,
            timeout_seconds: 3600,
            timeout_seconds_max: 24 * 3600,
            queue_timeout_seconds: 24 * 3600,
            queue_timeout_seconds_max: 7 * 24 * 3600,
            priority_limits: BTreeMap::new(),
            attempts: 3,
            attempts_max: 50,
            // A restart of nats-server with a large store takes seconds.
            lease_ttl_seconds: 15,
            lease_ttl_seconds_max: 600,
            offer_timeout_ms: 5000,
            heartbeat_seconds: 10,
            overrun_seconds: 60,
            executor_types: default_executor_types(),
            executor_type: ExecutorType::x86(),
            capacity: Occupancy::default(),
            groups_without_quota: GroupsWithoutQuota::Default,
            governor_tick_ms: 5000,
            band_order: BandOrder::Fcfs,
            band_orders: BTreeMap::new(),
            estimator: EstimatorKind::Adaptive,
            autoscale: BTreeMap::new(),
            autoscale_tick_ms: 2000,
            warm_workspaces: true,
            warm_by_default: false,
            warm_groups: BTreeSet::new(),
            warm_labels: BTreeMap::new(),
            tool_age_seconds: 0,
            machine_lock: PathBuf::new(),
            alone_patience_seconds: 60,
            emergency_workspaces: 0,
            tool_memory_percent: 85,
            training_seconds: 24 * 3600,
            workspaces: 0,
            kill_grace_ms: 2000,
            drain_seconds: 10,
            orphan_seconds: 60,
            console_bytes_max: 4 << 20,
            log_bytes_max: 1 << 30,
            output_bytes_max: 4 << 30,
            keep_failed_workspaces: false,
            worker_properties: properties(),
            context_paths: Vec::new(),
            fetch_hosts: Vec::new(),
            images: true,
            image_repositories: Vec::new(),
            environments: BTreeMap::new(),
            prefetch_images: false,
            registries: BTreeMap::new(),
            image_bytes_max: 20 << 30,
            image_tag_seconds: 60,
            unpacked_bytes_max: 10 << 30,
            workspace_memory_bytes: 0,
            workspace_processes_max: 0,
            workspace_cpu_millis: 0,
            workspace_cpu_weight: 0,
            workspace_disk_bytes: 0,
            build_limits: BTreeMap::new(),
            out_of_memory_factor: 0.0,
            build_sandbox: BuildSandbox::Auto,
            build_network: BuildNetwork::Host,
            build_sandbox_by_request: false,
            build_environments: false,
            build_uid: 0,
            git_config_file: None,
            job_tasks_in_flight: 512,
            instances: "=default main=default main/*=default".into(),
            zones: String::new(),
            zone_limits: ZoneLimits::default(),
            fetch_timeout_seconds: 600,
            actions_days: 3,
            actions_bytes_max: 0,
            log_streams_days: 7,
            action_timeout_seconds: 3600,
            action_timeout_seconds_max: 24 * 3600,
            action_queue_timeout_seconds: 6 * 3600,
            action_attempts: 4,
            action_waiter_grace_ms: 5000,
            action_output_bytes_max: 4 << 30,
            action_memory_bytes_max: 0,
            action_cpu_seconds_max: 0,
            action_processes_max: 0,
            action_files_max: 0,
            action_disk_bytes_max: 0,
            action_uid: 65_534,
            action_merging: true,
            trace_actions_max: 300,
            action_hedges: 0,
            action_hedge_delay_ms: 0,
            action_hedge_by_history: false,
            action_hedge_factor: 1.5,
            action_affinity: true,
            action_order: ActionOrder::Turns,
            action_affinity_wait_ms: 500,
            custom_resource_patience_seconds: 30,
            action_sizing: true,
            executor_slots: 0,
            emergency_slots: 0,
            executor_cpu_millis: 0,
            executor_memory_bytes: 0,
            executor_resources: BTreeMap::new(),
            executor_devices: BTreeMap::new(),
            executor_device_variables: device_variables(),
            congestion_window: true,
            window_start_points: 0,
            window_points_max: 0,
            window_tick_ms: 250,
            window_growth_percent: 100,
            window_cut_percent: 25,
            window_threshold_percent: 75,
            build_window_growth_ms: 2000,
            // Builds of this machine's workers count too.
            load_max: 4.0,
            memory_left_percent: 5,
            disk_left_percent: 2,
            starting_max: 0,
            slot_cores: SlotCores::Shared,
            throttled_percent_max: 80,
            // With more runnable processes than processors this is always close to 100: load_max decides.
            cpu_pressure_percent_max: 0,
            memory_pressure_percent_max: 30,
            io_pressure_percent_max: 95,
            sensor_command: Vec::new(),
            sensor_file: None,
            sensor_max: 1.0,
            sensor_seconds: 5,
            sandbox: SandboxKind::Bubblewrap,
            sandbox_read_only: Vec::new(),
            sandbox_hidden: Vec::new(),
            secrets_folder: None,
            sandbox_filter: true,
            action_network: false,
            pool: "default".into(),
            pool_properties: properties(),
            pool_root_is_input: false,
            cas_url: String::new(),
            objects_days: 30,
            cas_bytes_max: 40 << 30,
            // Buck2 relies on three hours.
            cas_keep_seconds: 4 * 3600,
            cas_keep_min_seconds: 300,
            cas_memory_bytes: 64 << 20,
            cas_blob_bytes_max: 16 << 30,
            cas_fsync: false,
        }
    }
}
