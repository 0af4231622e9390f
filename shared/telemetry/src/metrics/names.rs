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
    /// Priority class of a build.
    Priority,
    /// Why something happened.
    Reason,
    /// What a workspace does: `idle` or `busy`.
    State,
    /// HTTP status code.
    Status,
    /// Stream of a console: `stdout` or `stderr`.
    Stream,
    /// What became of an offer.
    Verdict,
}

impl Label {
    /// The name as Prometheus shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Outcome => "outcome",
            Self::Priority => "priority",
            Self::Reason => "reason",
            Self::State => "state",
            Self::Status => "status",
            Self::Stream => "stream",
            Self::Verdict => "verdict",
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
        BuildsEnqueued "forebay_builds_enqueued_total" [] "Builds accepted and put in the queue";
        BuildsFinished "forebay_builds_finished_total" [Outcome] "Builds that came to an end";
        BuildsRejected "forebay_builds_rejected_total" [Reason] "Builds that were not accepted";
        BuildsRequeued "forebay_builds_requeued_total" [Reason] "Builds put back in the queue";
        InvocationsStarted "forebay_invocations_started_total" [] "Processes started for builds";
        LeasesExpired "forebay_leases_expired_total" [] "Leases that ran out without being renewed";
        Offers "forebay_offers_total" [Verdict] "Offers of builds to workers";
        IndexRebuilds "forebay_index_rebuilds_total" [] "Times an index was built from scratch";
        IndexApplied "forebay_index_applied_total" [] "Events applied to an index";
        ApiRequests "forebay_api_requests_total" [Endpoint, Status] "Requests answered by the API";
        ConsoleBytes "forebay_console_bytes_total" [Stream] "Console output taken from builds";
        BusReconnects "forebay_bus_reconnects_total" [] "Times the connection to the bus came back";
    }
}

metrics! {
    /// A number that goes up and down.
    Gauge {
        Workspaces "forebay_workspaces" [State] "Workspaces of this worker";
        BuildsRunning "forebay_builds_running" [] "Builds running in this process";
    }
}

metrics! {
    /// A distribution of durations, in seconds.
    Histogram {
        ApiSeconds "forebay_api_seconds" [Endpoint] "Time to answer a request of the API";
        BuildQueueSeconds "forebay_build_queue_seconds" [Priority] "Time that builds spend in the queue";
        BuildStartSeconds "forebay_build_start_seconds" [] "Time from the creation of a build to its process";
        BuildRunSeconds "forebay_build_run_seconds" [] "Time that builds run";
    }
}
