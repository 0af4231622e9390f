//! Every metric there is: its name, help and labels.

use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelKey, LabelKeyEncoder};

/// The name of a label. Values come from small fixed sets, never from ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// Route of the API, as a template.
    Endpoint,
    /// How a build ended.
    Outcome,
    /// What is scaled: `workers`, or the executors of a pool.
    Pool,
    /// Priority class of a build.
    Priority,
    /// Why something happened.
    Reason,
    /// What an executor looks at to know whether it may admit more.
    Sensor,
    /// Which part of all: `within_10`, `within_20`, `over` or `under`.
    Share,
    /// Whether an estimate was too high: `over`, `under`, or `none` where there was none.
    Side,
    /// What a workspace or a process does: `idle` or `busy`, and of processes `ready`, `starting` or `draining`.
    State,
    /// HTTP status code.
    Status,
    /// Stream of a console: `stdout` or `stderr`.
    Stream,
    /// What became of an offer.
    Verdict,
    /// By how many percent an estimate was off at most: `10`, `20` or `more`; `unknown` where there was none.
    Within,
}

impl Label {
    /// The name as Prometheus shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Outcome => "outcome",
            Self::Pool => "pool",
            Self::Priority => "priority",
            Self::Reason => "reason",
            Self::Sensor => "sensor",
            Self::Share => "share",
            Self::Side => "side",
            Self::State => "state",
            Self::Status => "status",
            Self::Stream => "stream",
            Self::Verdict => "verdict",
            Self::Within => "within",
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
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name as Prometheus shows it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it means.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// The labels that every use has to give, in this order.
            pub const fn labels(self) -> &'static [Label] {
                match self { $(Self::$variant => &[$(Label::$label),*],)* }
            }
        }
    };
}

metrics! {
    /// A number that only grows.
    Counter {
        ActionClaims "forebay_action_claims_total" [Verdict] "Requests of this executor for work: granted, empty, or unanswered";
        ActionsRun "forebay_actions_run_total" [Outcome] "Actions run by this executor";
        BuildsEnqueued "forebay_builds_enqueued_total" [] "Builds accepted and put in the queue";
        BuildsFinished "forebay_builds_finished_total" [Outcome] "Builds that came to an end";
        BuildsRejected "forebay_builds_rejected_total" [Reason] "Builds that were not accepted";
        BuildsRequeued "forebay_builds_requeued_total" [Reason] "Builds put back in the queue";
        EstimatedBuilds "forebay_estimate_builds_total" [Within, Side] "Builds that ended by themselves, by how far the estimate of their run was off; every enqueuer counts all of them";
        InvocationsStarted "forebay_invocations_started_total" [] "Processes started for builds";
        LeasesExpired "forebay_leases_expired_total" [] "Leases that ran out without being renewed";
        Offers "forebay_offers_total" [Verdict] "Offers of builds to workers";
        IndexRebuilds "forebay_index_rebuilds_total" [] "Times an index was built from scratch";
        IndexApplied "forebay_index_applied_total" [] "Events applied to an index";
        ApiRequests "forebay_api_requests_total" [Endpoint, Status] "Requests answered by the API";
        ConnectionsClosed "forebay_connections_closed_total" [Reason] "Connections closed or refused because there was no room: for_another, refused, no_descriptors";
        ConsoleBytes "forebay_console_bytes_total" [Stream] "Console output taken from builds";
        ScaleDecisions "forebay_scale_decisions_total" [Pool, Reason] "Changes of how many processes a pool should have";
        ExecutionClaims "forebay_execution_claims_total" [Verdict] "Answers to executors that ask for work, and executions that they got";
        ExecutionsHedged "forebay_executions_hedged_total" [] "Copies started of executions that take long";
        AffinityLookups "forebay_affinity_lookups_total" [Verdict] "Executions that were warm somewhere, by whether they ran there";
        ExecutionsRequeued "forebay_executions_requeued_total" [] "Executions put back in the queue because their executor was lost";
        ExecutionsFinished "forebay_executions_finished_total" [Outcome] "Executions of actions that came to an end";
        ExecutionsRefused "forebay_executions_refused_total" [Reason] "Executions that were not accepted";
        ExecutionsMerged "forebay_executions_merged_total" [] "Requests that joined an execution of the same action instead of beginning one";
        ExecutionsRaised "forebay_executions_raised_total" [] "Executions that a request which joined them made more urgent";
        MergingSkipped "forebay_merging_skipped_total" [] "Requests that began an execution without the index being asked what runs already";
        ActionsCached "forebay_actions_cached_total" [] "Executions answered from the action cache";
        ActionCacheHits "forebay_action_cache_hits_total" [] "Results of actions found";
        ActionCacheMisses "forebay_action_cache_misses_total" [] "Results of actions looked for in vain";
        CasBlobsFound "forebay_cas_blobs_found_total" [] "Blobs that clients asked for and that were there";
        CasBlobsMissing "forebay_cas_blobs_missing_total" [] "Blobs that clients asked for and that were missing";
        CasBytesRead "forebay_cas_read_bytes_total" [] "Bytes of blobs sent to clients";
        CasBytesWritten "forebay_cas_written_bytes_total" [] "Bytes of blobs taken from clients";
        CasUploadsResumed "forebay_cas_uploads_resumed_total" [] "Uploads that broke off and were resumed";
        ToolServersStopped "forebay_tool_servers_stopped_total" [Reason] "Times that the tool server of an idle workspace was shut down";
        BusReconnects "forebay_bus_reconnects_total" [] "Times the connection to the bus came back";
    }
}

metrics! {
    /// A number that goes up and down.
    Gauge {
        ActionReservations "forebay_action_reservations" [] "Reservations in the queue of this executor";
        ActionSensorRed "forebay_action_sensor_red" [Sensor] "Whether a sensor of this executor says that something is short";
        ActionWindowPoints "forebay_action_window_points" [] "Points of this executor's congestion window; 0 where there is none";
        ActionWindowUsedPoints "forebay_action_window_used_points" [] "Points of it that are in use";
        Connections "forebay_connections" [] "Connections of clients that are open";
        PoolDesired "forebay_pool_desired" [Pool] "Processes that a pool should have";
        PoolOldestWaitSeconds "forebay_pool_oldest_wait_seconds" [Pool] "How long what waits longest for a pool has waited";
        PoolProcesses "forebay_pool_processes" [Pool, State] "Processes of a pool: ready, busy among these, starting or draining";
        PoolQueuedSeconds "forebay_pool_queued_seconds" [Pool] "Time that what waits for a pool is expected to take, added up";
        PoolWaiting "forebay_pool_waiting" [Pool] "Builds or executions that wait for a pool";
        EstimatePermille "forebay_estimate_permille" [Share] "Of the last 1000 estimates of runs, thousandths that were within 10 or 20 percent, too high, or too low";
        Workspaces "forebay_workspaces" [State] "Workspaces of this worker";
        ClockSkewMilliseconds "forebay_clock_skew_milliseconds" [] "How far the clock of this machine is ahead of the one of nats-server, by which the farm goes; negative when it is behind";
        BuildsRunning "forebay_builds_running" [] "Builds running in this process";
        ExecutionsWaiting "forebay_executions_waiting" [] "Executions that wait for an executor";
        ExecutionsWaitedFor "forebay_executions_waited_for" [] "Streams of clients that wait for an execution";
    }
}

metrics! {
    /// A distribution of durations, in seconds.
    Histogram {
        ActionFetchSeconds "forebay_action_fetch_seconds" [] "Time to make the input root of an action";
        ActionRunSeconds "forebay_action_run_seconds" [] "Time that the commands of actions run";
        ActionUploadSeconds "forebay_action_upload_seconds" [] "Time to keep the outputs of an action";
        ApiSeconds "forebay_api_seconds" [Endpoint] "Time to answer a request of the API";
        BuildQueueSeconds "forebay_build_queue_seconds" [Priority] "Time that builds spend in the queue";
        BuildStartSeconds "forebay_build_start_seconds" [] "Time from the creation of a build to its process";
        BuildRunSeconds "forebay_build_run_seconds" [] "Time that builds run";
        ExecutionSeconds "forebay_execution_seconds" [] "Time from the acceptance of an execution to its result";
    }
}
