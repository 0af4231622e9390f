//! All metrics with their names, help texts and labels.

use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelKey, LabelKeyEncoder};

/// Name of a label. Values come from small fixed sets, never from ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// Stream of the bus.
    BusStream,
    /// Call of Redis: a script or a query.
    Call,
    /// Durable consumer of the bus.
    Consumer,
    /// What a disk is used for: `store`, `workspaces` or `executor`.
    Disk,
    /// Route of the API as a template without ids, call of the API, or method of gRPC.
    Endpoint,
    /// Executor type: `x86`, `gpu`, ...
    ExecutorType,
    /// Quota group with a quota of its own; `other` adds up all others.
    Group,
    /// Kind of an advisory of nats-server, or of an audit event.
    Kind,
    /// Archived stream: `events` or `actions`.
    Log,
    /// Kind of a mean: `mean`, `mean_absolute` or `root_mean_square`.
    Mean,
    /// Outcome of a build or an action.
    Outcome,
    /// Autoscaled pool: `workers`, or `executors.POOL`.
    Pool,
    /// Priority class of a build, or of the build that sent an action.
    Priority,
    /// Reason for the counted event.
    Reason,
    /// Sensor by which an executor decides whether it may admit more actions.
    Sensor,
    /// Share of estimates: `within_10`, `within_20`, `over` or `under`.
    Share,
    /// Direction of an error of an estimate: `over`, `under`, or `none` without an estimate.
    Side,
    /// Place in the source: file and line.
    Site,
    /// State of a workspace or process: `idle` or `busy`, and `closed` for a workspace that is not offered; for
    /// processes also `ready`, `starting`, `closed`, `draining` or `full`.
    State,
    /// Status of an answer: a code of HTTP or gRPC, or the outcome of a call of the API.
    Status,
    /// Stream of console output: `stdout` or `stderr`.
    Stream,
    /// Verdict on an offer, claim or lookup.
    Verdict,
    /// Error of an estimate in percent: at most `10`, at most `20`, or `more`; `unknown` without an estimate.
    Within,
    /// Trust zone of the farm.
    Zone,
}

impl Label {
    /// Name in the Prometheus exposition.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BusStream | Self::Stream => "stream",
            Self::Call => "call",
            Self::Consumer => "consumer",
            Self::Disk => "disk",
            Self::Endpoint => "endpoint",
            Self::ExecutorType => "type",
            Self::Group => "group",
            Self::Kind => "kind",
            Self::Log => "log",
            Self::Mean => "mean",
            Self::Outcome => "outcome",
            Self::Pool => "pool",
            Self::Priority => "priority",
            Self::Reason => "reason",
            Self::Sensor => "sensor",
            Self::Share => "share",
            Self::Side => "side",
            Self::Site => "site",
            Self::State => "state",
            Self::Status => "status",
            Self::Verdict => "verdict",
            Self::Within => "within",
            Self::Zone => "zone",
        }
    }
}

impl EncodeLabelKey for Label {
    fn encode(&self, encoder: &mut LabelKeyEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(self.name())
    }
}

/// Declares an enum of metrics: variant, name, labels, help (also the doc comment).
macro_rules! metrics {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident $name:literal [$($label:ident),*] $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind {
            $(#[doc = concat!($help, ".")] $variant,)*
        }

        impl $kind {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name in the Prometheus exposition.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Help text in the Prometheus exposition.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// Labels that every use must give, in this order.
            pub const fn labels(self) -> &'static [Label] {
                match self { $(Self::$variant => &[$(Label::$label),*],)* }
            }
        }
    };
}

metrics! {
    /// A metric that only grows.
    Counter {
        ActionClaims "forebay_action_claims_total" [Verdict] "Actions granted to this executor: granted, or returned because it accepted none";
        ActionsRun "forebay_actions_run_total" [Outcome] "Actions run by this executor";
        BuildsEnqueued "forebay_builds_enqueued_total" [Priority] "Builds accepted and queued";
        BuildRequestBytes "forebay_build_request_bytes_total" [Priority] "Bytes of the records of accepted builds";
        BuildTargets "forebay_build_targets_total" [Priority] "Targets that accepted builds name; of a job, its tasks";
        BuildsFinished "forebay_builds_finished_total" [Outcome, Priority] "Builds that finished";
        BuildsRejected "forebay_builds_rejected_total" [Reason] "Build requests that were rejected";
        BuildsRequeued "forebay_builds_requeued_total" [Reason] "Builds that were requeued";
        EstimatedBuilds "forebay_estimate_builds_total" [Within, Side] "Builds that ended on their own, by the error of their estimated run time; every enqueuer counts all of them";
        InvariantBreaches "forebay_invariant_breaches_total" [Site] "States that the program rules out but reached; each is a bug to report";
        InvocationsStarted "forebay_invocations_started_total" [] "Processes started for builds";
        LeasesExpired "forebay_leases_expired_total" [] "Leases that expired without renewal";
        Offers "forebay_offers_total" [Verdict] "Offers of builds to workers";
        IndexRebuilds "forebay_index_rebuilds_total" [] "Times an index was rebuilt from scratch";
        IndexCallFailures "forebay_index_call_failures_total" [Call] "Calls of Redis that failed";
        IndexApplied "forebay_index_applied_total" [] "Events applied to an index";
        ApiRequests "forebay_api_requests_total" [Endpoint, Status] "Requests answered by the API";
        CallsRefused "forebay_calls_refused_total" [Reason] "Calls refused by access rules: missing, invalid, denied, or limited";
        ConnectionsClosed "forebay_connections_closed_total" [Reason] "Connections closed or refused because of a limit: for_another, refused, no_descriptors";
        ConsoleBytes "forebay_console_bytes_total" [Stream] "Bytes of console output read from builds";
        ScaleDecisions "forebay_scale_decisions_total" [Pool, Reason] "Changes of the target size of a pool";
        ExecutionClaims "forebay_execution_claims_total" [Verdict] "Executions granted to executors, executors whose room was outdated, and executors that were full although they reported room";
        ExecutionsHedged "forebay_executions_hedged_total" [] "Additional copies started of slow executions";
        AffinityLookups "forebay_affinity_lookups_total" [Verdict] "Executions that were warm on an executor, by whether they ran there";
        ExecutionsRequeued "forebay_executions_requeued_total" [] "Executions requeued because their executor was lost";
        ExecutionsFinished "forebay_executions_finished_total" [Outcome] "Executions of actions that finished";
        ExecutionsRefused "forebay_executions_refused_total" [Reason] "Executions that were refused";
        ExecutionsMerged "forebay_executions_merged_total" [] "Requests that joined an execution of the same action instead of starting one";
        ExecutionsRaised "forebay_executions_raised_total" [] "Executions whose priority was raised by a joining request";
        MergingSkipped "forebay_merging_skipped_total" [] "Requests that started an execution without checking the index for a running one";
        ActionsCached "forebay_actions_cached_total" [] "Executions answered from the action cache";
        ActionCacheHits "forebay_action_cache_hits_total" [] "Action results found in the action cache";
        ActionCacheMisses "forebay_action_cache_misses_total" [] "Action results not found in the action cache";
        CasBlobsFound "forebay_cas_blobs_found_total" [] "Requested blobs that were found";
        CasBlobsMissing "forebay_cas_blobs_missing_total" [] "Requested blobs that were missing";
        CasBytesRead "forebay_cas_read_bytes_total" [] "Bytes of blobs sent to clients";
        CasBytesWritten "forebay_cas_written_bytes_total" [] "Bytes of blobs received from clients";
        CasEvictedBytes "forebay_cas_evicted_bytes_total" [] "Bytes of blobs evicted from the store";
        CasUploadsResumed "forebay_cas_uploads_resumed_total" [] "Interrupted uploads that were resumed";
        ToolServersStopped "forebay_tool_servers_stopped_total" [Reason] "Tool servers of idle workspaces that were shut down";
        BazelEvents "forebay_bazel_events_total" [Outcome] "Build events of Bazel: stored, stored_as_blob, repeated, run_ended (dropped), unreadable, or lifecycle (not stored)";
        SpansExported "forebay_spans_exported_total" [] "Spans of traces sent to the collector";
        SpansDropped "forebay_spans_dropped_total" [Reason] "Spans that were dropped: queue_full, or collector_away";
        ArchiveBatches "forebay_archive_batches_total" [Log] "Transactions of the archive";
        ArchiveRows "forebay_archive_rows_total" [Log] "Rows written to the archive";
        ArchiveSetAside "forebay_archive_set_aside_total" [Log] "Messages that could not be archived";
        ArchiveGapPositions "forebay_archive_gap_positions_total" [Log] "Positions that were gone from their stream before they could be archived";
        AuditEvents "forebay_audit_events_total" [Kind] "Audit events written by this process, by kind";
        AuditDropped "forebay_audit_dropped_total" [Reason] "Audit events that were left out: rate (too many of a caller, counted in its next event), or bus_away";
        BusAdvisories "forebay_bus_advisories_total" [Kind] "Advisories of nats-server about streams and consumers: max_deliver, terminated, nak, stream_quorum_lost, consumer_quorum_lost, stream_leader_elected, consumer_leader_elected, other";
        BusPublishFailures "forebay_bus_publish_failures_total" [] "Messages that the bus did not acknowledge, without lost compare-and-sets";
        BusSlowConsumers "forebay_bus_slow_consumers_total" [] "Times that a subscription of this process was too slow and lost messages";
        BusReconnects "forebay_bus_reconnects_total" [] "Times the connection to the bus was restored";
    }
}

metrics! {
    /// A metric that goes up and down.
    Gauge {
        ActionSensorRed "forebay_action_sensor_red" [Sensor] "Whether a sensor of this executor reports overload (1) or not (0)";
        ActionWindowPoints "forebay_action_window_points" [] "Size of this executor's congestion window in points; 0 if it is off";
        ActionWindowUsedPoints "forebay_action_window_used_points" [] "Points in use of this executor's congestion window";
        ArchiveLagPositions "forebay_archive_lag_positions" [Log] "Messages of a stream that are not archived yet";
        ArchiveLagSeconds "forebay_archive_lag_seconds" [Log] "Age of the last archived message of a stream while others wait, in seconds; else 0";
        ArchiveWriter "forebay_archive_writer" [] "Whether this process writes the archive (1) or waits for the right to do so (0)";
        BuildSensorRed "forebay_build_sensor_red" [Sensor] "Whether a sensor of this worker reports overload (1) or not (0)";
        BuildWindowPoints "forebay_build_window_points" [] "Size of this worker's congestion window in points; 0 if it is off";
        BuildWindowUsedPoints "forebay_build_window_used_points" [] "Points in use of this worker's congestion window";
        BuildsOldestWaitSeconds "forebay_builds_oldest_wait_seconds" [Priority] "Longest current wait of a build in seconds; 0 without one";
        BuildsWaiting "forebay_builds_waiting" [Priority] "Builds in all queues of the farm";
        BesOldestUnackedSeconds "forebay_bes_oldest_unacked_seconds" [] "Age of the oldest build event of Bazel that this gateway has not acknowledged";
        BusConnected "forebay_bus_connected" [] "Whether this process has a connection to nats-server (1) or not (0)";
        CasBytesMax "forebay_cas_bytes_max" [] "Maximum of forebay_cas_used_bytes; 0 if this process does not evict";
        CasUsedBytes "forebay_cas_used_bytes" [] "Bytes of the store that count towards its maximum; 0 if this process does not evict";
        CasZoneBlobs "forebay_cas_zone_blobs" [Zone] "Blobs that a trust zone has in the store, if this process evicts from it";
        CasZoneBytes "forebay_cas_zone_bytes" [Zone] "Bytes of the blobs that a trust zone has in the store, each rounded up to 4 KiB";
        CasZoneFull "forebay_cas_zone_full" [Zone] "Whether new blobs of a trust zone are refused (1) or not (0)";
        CasZoneUsedPercent "forebay_cas_zone_used_percent" [Zone] "Used part of the limit of a trust zone in percent, of bytes or of blobs, whichever is more; 0 without a limit";
        Connections "forebay_connections" [] "Open client connections";
        ConsumerAckPending "forebay_consumer_ack_pending" [Consumer] "Messages that were delivered to a consumer and are not acknowledged";
        ConsumerAckPendingMax "forebay_consumer_ack_pending_max" [Consumer] "Maximum of forebay_consumer_ack_pending";
        ConsumerOldestSeconds "forebay_consumer_oldest_seconds" [Consumer] "Age of the oldest message of a consumer that is not acknowledged in seconds; 0 without one";
        ConsumerPending "forebay_consumer_pending" [Consumer] "Messages of a consumer that were not delivered yet";
        ConsumerPulls "forebay_consumer_pulls" [Consumer] "Requests that wait for messages of a consumer";
        ConsumerRedelivered "forebay_consumer_redelivered" [Consumer] "Messages that were delivered more than once and are not acknowledged";
        DiskBytes "forebay_disk_bytes" [Disk] "Size of a disk in bytes";
        DiskFreeBytes "forebay_disk_free_bytes" [Disk] "Free bytes of a disk";
        Executors "forebay_executors" [State] "Live executors: ready, closed or draining";
        PoolDesired "forebay_pool_desired" [Pool] "Target number of processes of a pool";
        PoolOldestWaitSeconds "forebay_pool_oldest_wait_seconds" [Pool] "Longest current wait for a pool in seconds";
        PoolProcesses "forebay_pool_processes" [Pool, State] "Processes of a pool by state; busy ones are also counted as ready";
        PoolQueuedSeconds "forebay_pool_queued_seconds" [Pool] "Expected run time of all waiting builds or executions of a pool, added up";
        PoolWaiting "forebay_pool_waiting" [Pool] "Builds or executions waiting for a pool";
        EstimatePermille "forebay_estimate_permille" [Share] "Share of the last 1000 run time estimates, in thousandths, that were within 10 or 20 percent, too high, or too low";
        OccupancyErrorMilliEsu "forebay_occupancy_error_milli_esu" [ExecutorType, Mean] "Error of the last 1000 estimates of occupancy, estimate minus use in thousandths of ESU: the mean, the mean of its absolute value, and the square root of the mean of its square";
        QuotaMilliEsu "forebay_quota_milli_esu" [Group, ExecutorType] "Quota of a group in thousandths of ESU";
        QuotaInUseMilliEsu "forebay_quota_in_use_milli_esu" [Group, ExecutorType] "ESU that a group uses, in thousandths";
        QuotaSetPointMilliEsu "forebay_quota_set_point_milli_esu" [Group, ExecutorType] "ESU that a group should use, in thousandths";
        QuotaToStartMilliEsu "forebay_quota_to_start_milli_esu" [Group, ExecutorType] "ESU that may be started for a group, in thousandths";
        QuotaTargetMilliEsu "forebay_quota_target_milli_esu" [Group, ExecutorType] "Target of the ESU in progress of a group, in thousandths";
        QuotaInProgressMilliEsu "forebay_quota_in_progress_milli_esu" [Group, ExecutorType] "ESU of a group's builds in progress, in thousandths";
        QuotaWaitingMilliEsu "forebay_quota_waiting_milli_esu" [Group, ExecutorType] "ESU of a group's waiting builds, in thousandths";
        StreamBytes "forebay_stream_bytes" [BusStream] "Size of a stream in bytes";
        StreamBytesMax "forebay_stream_bytes_max" [BusStream] "Maximum size of a stream in bytes; 0 without a limit";
        StreamMessages "forebay_stream_messages" [BusStream] "Messages of a stream";
        Workers "forebay_workers" [State] "Live workers: ready, draining or full";
        Workspaces "forebay_workspaces" [State] "Workspaces of this worker by state";
        ClockSkewMilliseconds "forebay_clock_skew_milliseconds" [] "Offset of this machine's clock from that of nats-server, which the farm uses; negative if it is behind";
        BuildsRunning "forebay_builds_running" [] "Builds in progress in the farm, as this dispatcher sees them";
        ExecutionsWaiting "forebay_executions_waiting" [] "Executions waiting for an executor";
        ExecutionsWaitedFor "forebay_executions_waited_for" [] "Client streams waiting for an execution";
    }
}

metrics! {
    /// A distribution of durations, in seconds.
    Histogram {
        ActionFetchSeconds "forebay_action_fetch_seconds" [] "Time to prepare the input root of an action";
        ActionQueueSeconds "forebay_action_queue_seconds" [Priority] "Time that actions wait for a slot, from their acceptance or requeue; further copies of slow actions do not count";
        ActionRunSeconds "forebay_action_run_seconds" [Priority] "Run time of commands of actions";
        ActionUploadSeconds "forebay_action_upload_seconds" [] "Time to store the outputs of an action";
        ApiSeconds "forebay_api_seconds" [Endpoint] "Time to answer an API request";
        ArchiveBatchSeconds "forebay_archive_batch_seconds" [Log] "Time of a transaction of the archive";
        BuildPreparationSeconds "forebay_build_preparation_seconds" [Priority] "Time to prepare the workspace of a build";
        BuildQueueSeconds "forebay_build_queue_seconds" [Priority] "Time that builds wait in the queue";
        BuildStartSeconds "forebay_build_start_seconds" [Priority] "Time from the creation of a build to the start of its process";
        BuildRunSeconds "forebay_build_run_seconds" [Priority] "Run time of builds";
        BusPublishSeconds "forebay_bus_publish_seconds" [] "Time until a stored message is acknowledged";
        ImageSeconds "forebay_image_seconds" [] "Time to fetch and unpack the image of an action, where a machine did not have all of it";
        ServicesReadySeconds "forebay_services_ready_seconds" [] "Time from the start of the services of a build or action until all are ready";
        IndexCallSeconds "forebay_index_call_seconds" [Call] "Time of a call of Redis";
        ExecutionSeconds "forebay_execution_seconds" [Priority] "Time from the acceptance of an execution to its result";
    }
}
