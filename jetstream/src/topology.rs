//! The table of streams, buckets and consumers.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{AckPolicy, DeliverPolicy, pull},
    stream::{Compression, Config, DiscardPolicy, Republish, RetentionPolicy, StorageType},
};
use bus::{
    ActionSubject, AuditSubject, BazelSubject, DECISIONS_SUBJECT, EventSubject, ExecutorLeaseSubject,
    LeaseSubject, LogSubject, RequestSubject, stream,
};
use invariant::Present as _;
use model::Priority;
use settings::TopologySettings;

/// All streams (buckets are streams too) and durable consumers.
#[derive(Debug, Clone)]
pub struct Topology {
    pub streams: Vec<Config>,
    pub consumers: Vec<ConsumerSpec>,
}

/// A durable consumer and its stream.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Name of the stream that it reads.
    pub stream: &'static str,
    pub config: pull::Config,
}

impl ConsumerSpec {
    pub fn name(&self) -> &str {
        self.config.durable_name.as_deref().present("the name of a durable consumer")
    }
}

/// The reapers' durable consumer of the lease bucket.
pub const LEASE_CONSUMER: &str = "reaper-leases";

/// The schedulers' durable consumer of the executors' leases.
pub const EXECUTOR_CONSUMER: &str = "scheduler-executors";

/// The shortest window that the server accepts: the lifecycle subject decides whether builds are the same, and a
/// longer window would suppress messages with the id of another group's message for longer (see `enqueuer::repeats`).
const DEDUPE_MIN: Duration = Duration::from_millis(100);
/// Console chunks are repeated after an uncertain answer, which happens within seconds.
const DEDUPE_EVENTS: Duration = Duration::from_secs(120);
/// A reaper that was down for less than this receives every expired lease; the sweep finds the others.
const MARKER_TTL: Duration = Duration::from_secs(4 * 3600);
/// Unlimited: a message past the server's limit would stay in the queue, invisible. Unreadable messages are refused
/// and acknowledged, so only a fault of the farm repeats a delivery.
const MAX_DELIVER: i64 = -1;

/// Name of the enqueuers' durable consumer for one priority.
pub fn request_consumer(priority: Priority) -> String {
    format!("enqueuer-{priority}")
}

impl Topology {
    /// The topology that `settings` define.
    pub fn new(settings: &TopologySettings) -> Self {
        let mut consumers: Vec<ConsumerSpec> =
            Priority::ALL.into_iter().map(|priority| request_consumer_spec(priority, settings)).collect();
        consumers.push(lease_consumer_spec(settings));
        consumers.push(executor_consumer_spec(settings));
        let streams = vec![
            requests(settings),
            events(settings),
            bazel(settings),
            rejected(settings),
            leases(settings),
            actions(settings),
            executors(settings),
            logs(settings),
            quotas(settings),
            decisions(settings),
            audit(settings),
            models(settings),
            scale(settings),
            environments(settings),
            shared_settings(settings),
        ];
        Self { streams, consumers }
    }
}

fn stream_base(name: &str, description: &str, subjects: Vec<String>, settings: &TopologySettings) -> Config {
    Config {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        subjects,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        // When a limit is reached, writes are refused; acknowledged messages are never dropped.
        discard: DiscardPolicy::New,
        retention: RetentionPolicy::Limits,
        max_messages: -1,
        max_messages_per_subject: -1,
        max_bytes: -1,
        max_consumers: -1,
        max_message_size: -1,
        duplicate_window: DEDUPE_MIN,
        ..Config::default()
    }
}

fn size_limit(bytes: u64) -> i64 {
    if bytes == 0 { -1 } else { i64::try_from(bytes).unwrap_or(i64::MAX) }
}

fn requests(settings: &TopologySettings) -> Config {
    // Only these four: a publish with another priority matches no stream and is refused by the server.
    let subjects = Priority::ALL.into_iter().map(RequestSubject::filter).collect();
    let what = "Build requests as clients publish them, until the enqueuer has written BUILD_ENQUEUED";
    Config {
        retention: RetentionPolicy::WorkQueue,
        max_bytes: size_limit(settings.requests_bytes_max),
        ..stream_base(stream::REQUESTS, what, subjects, settings)
    }
}

fn events(settings: &TopologySettings) -> Config {
    let what = "State and events of builds; the last lifecycle message of a build is its state";
    Config {
        max_age: settings.events_retention,
        max_bytes: size_limit(settings.events_bytes_max),
        duplicate_window: DEDUPE_EVENTS,
        allow_direct: true,
        // Watchers subscribe here instead of costing a consumer each.
        republish: Some(Republish {
            source: "forebay.build.event.>".to_owned(),
            destination: "forebay.build.live.>".to_owned(),
            headers_only: false,
        }),
        ..stream_base(stream::EVENTS, what, EventSubject::ACCEPTED.map(str::to_owned).into(), settings)
    }
}

fn bazel(settings: &TopologySettings) -> Config {
    let what = "Build events of Bazel outside of builds, and the blobs that have large ones";
    Config {
        // What they say of targets and tests is in the archive.
        max_age: settings.actions_retention,
        max_bytes: size_limit(settings.bazel_bytes_max),
        // They inform people only: that they come to an end must not fail the calls of Bazel.
        discard: DiscardPolicy::Old,
        duplicate_window: DEDUPE_EVENTS,
        allow_direct: true,
        ..stream_base(
            stream::BAZEL,
            what,
            vec![BazelSubject::EVENTS.to_owned(), BazelSubject::BLOBS.to_owned()],
            settings,
        )
    }
}

fn rejected(settings: &TopologySettings) -> Config {
    let what = "Published builds that were refused, with the reason";
    Config {
        max_age: settings.rejected_retention,
        allow_direct: true,
        ..stream_base(stream::REJECTED, what, vec!["forebay.build.rejected.*".to_owned()], settings)
    }
}

fn bucket_base(name: &str, description: &str, settings: &TopologySettings) -> Config {
    let subject = format!("$KV.{}.>", name.trim_start_matches("KV_"));
    Config {
        max_messages_per_subject: 1,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..stream_base(name, description, vec![subject], settings)
    }
}

fn leases(settings: &TopologySettings) -> Config {
    let what = "Who runs which build; a lease that is not renewed expires as a message";
    Config {
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(MARKER_TTL),
        ..bucket_base(stream::LEASES, what, settings)
    }
}

fn actions(settings: &TopologySettings) -> Config {
    let what = "Executions of actions; the last message of an execution is its state";
    Config {
        max_age: settings.actions_retention,
        max_bytes: size_limit(settings.actions_bytes_max),
        allow_direct: true,
        // Processes that wait for an execution subscribe here.
        republish: Some(Republish {
            source: "forebay.action.event.>".to_owned(),
            destination: "forebay.action.live.>".to_owned(),
            headers_only: false,
        }),
        ..stream_base(stream::ACTIONS, what, vec![ActionSubject::ALL.to_owned()], settings)
    }
}

fn executors(settings: &TopologySettings) -> Config {
    let what = "Which executors live; what an executor runs is queued again when its lease expires";
    Config {
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(MARKER_TTL),
        ..bucket_base(stream::EXECUTORS, what, settings)
    }
}

fn logs(settings: &TopologySettings) -> Config {
    let what = "Log streams that clients write piece by piece and read as they grow";
    Config {
        max_age: settings.log_streams_retention,
        allow_direct: true,
        // Followers of a log stream are notified here that it has grown.
        republish: Some(Republish {
            source: "forebay.log.>".to_owned(),
            destination: "forebay.log.live.>".to_owned(),
            headers_only: true,
        }),
        ..stream_base(stream::LOGS, what, vec![LogSubject::ALL.to_owned()], settings)
    }
}

fn quotas(settings: &TopologySettings) -> Config {
    let what = "Quotas of groups, and what the governor makes of them";
    Config {
        // Dispatchers subscribe here instead of costing a consumer each.
        republish: Some(Republish {
            source: "$KV.FOREBAY_QUOTA.>".to_owned(),
            destination: "forebay.quota.live.>".to_owned(),
            headers_only: false,
        }),
        ..bucket_base(stream::QUOTA, what, settings)
    }
}

/// Retention of the governor's decisions, and their maximum number: about two busy days at the default tick. Without a size
/// limit, nats-server sets no part of its disk aside.
const DECISIONS_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const DECISIONS_MAX: i64 = 30_000;

fn decisions(settings: &TopologySettings) -> Config {
    let what = "Decisions of the governor over time";
    Config {
        max_age: DECISIONS_AGE,
        max_messages: DECISIONS_MAX,
        // They inform people only.
        discard: DiscardPolicy::Old,
        // One differs little from the next.
        compression: Some(Compression::S2),
        allow_direct: true,
        ..stream_base(stream::DECISIONS, what, vec![DECISIONS_SUBJECT.to_owned()], settings)
    }
}

/// Maximum number of audit events: about 500 MB at most. Unlike a limit of bytes, it sets no part of the disk aside.
const AUDIT_MAX: i64 = 1_000_000;

fn audit(settings: &TopologySettings) -> Config {
    let what = "Who did what to the farm, and whom it refused; nothing of it can be deleted";
    Config {
        max_age: settings.audit_retention,
        max_bytes: size_limit(settings.audit_bytes_max),
        max_messages: AUDIT_MAX,
        // What happens now must not be lost because of what happened long ago; the archive has that.
        discard: DiscardPolicy::Old,
        duplicate_window: DEDUPE_EVENTS,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        ..stream_base(stream::AUDIT, what, vec![AuditSubject::ALL.to_owned()], settings)
    }
}

fn models(settings: &TopologySettings) -> Config {
    let what = "Which occupancy model enqueuers use";
    Config {
        republish: Some(Republish {
            source: "$KV.FOREBAY_MODELS.>".to_owned(),
            destination: "forebay.model.live.>".to_owned(),
            headers_only: false,
        }),
        ..bucket_base(stream::MODELS, what, settings)
    }
}

fn scale(settings: &TopologySettings) -> Config {
    let what = "How many processes each pool should have";
    Config {
        // Processes that start and stop workers and executors subscribe here.
        republish: Some(Republish {
            source: "$KV.FOREBAY_SCALE.>".to_owned(),
            destination: "forebay.scale.>".to_owned(),
            headers_only: false,
        }),
        ..bucket_base(stream::SCALE, what, settings)
    }
}

fn environments(settings: &TopologySettings) -> Config {
    let what = "Environments: names of images, with their versions";
    Config {
        // What builds them and what fetches their images ahead subscribes here.
        republish: Some(Republish {
            source: "$KV.FOREBAY_ENVIRONMENTS.>".to_owned(),
            destination: "forebay.environment.live.>".to_owned(),
            headers_only: false,
        }),
        ..bucket_base(stream::ENVIRONMENTS, what, settings)
    }
}

fn shared_settings(settings: &TopologySettings) -> Config {
    bucket_base(stream::SETTINGS, "What the services of this farm tell each other about its set-up", settings)
}

fn request_consumer_spec(priority: Priority, settings: &TopologySettings) -> ConsumerSpec {
    let config = pull::Config {
        durable_name: Some(request_consumer(priority)),
        description: Some(format!("{priority} requests, for the enqueuers")),
        filter_subject: RequestSubject::filter(priority),
        // When an enqueuer dies, its requests are delivered to another after this time.
        ack_wait: Duration::from_secs(10),
        max_ack_pending: 10_000,
        ..consumer_base(settings)
    };
    ConsumerSpec { stream: stream::REQUESTS, config }
}

fn lease_consumer_spec(settings: &TopologySettings) -> ConsumerSpec {
    let config = pull::Config {
        durable_name: Some(LEASE_CONSUMER.to_owned()),
        description: Some("expired leases, for the reapers".to_owned()),
        filter_subject: LeaseSubject::ALL.to_owned(),
        ack_wait: Duration::from_secs(10),
        headers_only: true,
        max_ack_pending: 20_000,
        ..consumer_base(settings)
    };
    ConsumerSpec { stream: stream::LEASES, config }
}

fn executor_consumer_spec(settings: &TopologySettings) -> ConsumerSpec {
    let config = pull::Config {
        durable_name: Some(EXECUTOR_CONSUMER.to_owned()),
        description: Some("executors that came and went, for the schedulers".to_owned()),
        filter_subject: ExecutorLeaseSubject::ALL.to_owned(),
        ack_wait: Duration::from_secs(10),
        headers_only: true,
        max_ack_pending: 10_000,
        ..consumer_base(settings)
    };
    ConsumerSpec { stream: stream::EXECUTORS, config }
}

fn consumer_base(settings: &TopologySettings) -> pull::Config {
    pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        max_deliver: MAX_DELIVER,
        num_replicas: settings.replicas,
        max_waiting: 512,
        ..pull::Config::default()
    }
}
