//! Timestamps and resource usage of an action.

use std::time::SystemTime;

use crate::{
    limits::ExceededLimit,
    outcome::{Ran, timestamp},
};
use invariant::Present as _;
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};
use reapi::{
    execution::ExecutedActionMetadata,
    protobuf::{Any, Duration},
};
use sandbox::Ended;

/// Times of the steps of an action, by the clock of the farm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) queued: SystemTime,
    pub(crate) started: SystemTime,
    pub(crate) fetch_started: SystemTime,
    pub(crate) fetch_ended: SystemTime,
    pub(crate) upload_started: SystemTime,
    pub(crate) upload_ended: SystemTime,
    pub(crate) completed: SystemTime,
}

impl Times {
    /// All steps at the same time.
    pub(crate) fn at(now: SystemTime) -> Self {
        Self {
            queued: now,
            started: now,
            fetch_started: now,
            fetch_ended: now,
            upload_started: now,
            upload_ended: now,
            completed: now,
        }
    }
}

/// Converts to the metadata of the protocol. Each time is at least the previous one, as the clock may be set back.
pub(crate) fn metadata(
    worker: &str,
    times: &Times,
    (ran, interactor): (&Ran, Option<&Ended>),
    broken: Option<&ExceededLimit>,
) -> ExecutedActionMetadata {
    let ended = &ran.ended;
    let mut latest = times.queued;
    let mut next = |at: SystemTime| {
        latest = latest.max(at);
        Some(timestamp(latest))
    };
    ExecutedActionMetadata {
        worker: worker.to_owned(),
        queued_timestamp: next(times.queued),
        worker_start_timestamp: next(times.started),
        input_fetch_start_timestamp: next(times.fetch_started),
        input_fetch_completed_timestamp: next(times.fetch_ended),
        execution_start_timestamp: next(ended.started_at),
        execution_completed_timestamp: next(ended.ended_at),
        output_upload_start_timestamp: next(times.upload_started),
        output_upload_completed_timestamp: next(times.upload_ended),
        worker_completed_timestamp: next(times.completed),
        virtual_execution_duration: Some(Duration {
            seconds: i64::try_from(ended.wall.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(ended.wall.subsec_nanos()).present("nanoseconds are more than a second"),
        }),
        auxiliary_metadata: vec![usage(ran, interactor, broken)],
    }
}

/// The resource usage as a `Struct` of numbers. For an exceeded limit it also has the name of the `limit`, the
/// allowed amount, and the amount used when the excess was detected. For a measured execution it also has
/// what else happened on the processors; for an action with an interactor, the exit code
/// of the command, and the exit code and usage of the interactor.
fn usage(
    Ran { ended, interference }: &Ran,
    interactor: Option<&Ended>,
    broken: Option<&ExceededLimit>,
) -> Any {
    let number = |value: f64| Value { kind: Some(Kind::NumberValue(value)) };
    let fields = [
        ("cpu_seconds", ended.cpu.as_secs_f64()),
        ("wall_seconds", ended.wall.as_secs_f64()),
        ("peak_memory_bytes", ended.peak_memory_bytes as f64),
        ("stdout_bytes", ended.stdout_bytes as f64),
        ("stderr_bytes", ended.stderr_bytes as f64),
        ("voluntary_context_switches", ended.switches.voluntary as f64),
        ("involuntary_context_switches", ended.switches.involuntary as f64),
    ];
    let limit = broken.map(|broken| {
        let name = Value { kind: Some(Kind::StringValue(broken.limit.name().to_owned())) };
        let (allowed, used) = (number(broken.allowed as f64), number(broken.used as f64));
        [("limit", name), ("limit_allowed", allowed), ("limit_used", used)]
    });
    let seconds = |us: u64| us as f64 / 1e6;
    let seen = interference.map(|seen| {
        [
            ("processors", f64::from(seen.processors)),
            ("own_processors", f64::from(u8::from(seen.own_processors))),
            ("steal_seconds", seconds(seen.steal_us)),
            ("other_cpu_seconds", seconds(seen.other_us)),
            ("throttled_periods", seen.throttled_periods as f64),
            ("thermal_throttles", seen.thermal_throttles as f64),
        ]
    });
    let fields = fields.into_iter().chain(seen.into_iter().flatten());
    let fields = fields.map(|(name, value)| (name, number(value)));
    let of_interactor = interactor.map(|interactor| {
        let fields = [
            ("exit_code", f64::from(interactor.exit_code)),
            ("cpu_seconds", interactor.cpu.as_secs_f64()),
            ("wall_seconds", interactor.wall.as_secs_f64()),
            ("peak_memory_bytes", interactor.peak_memory_bytes as f64),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), number(value))).collect();
        let kind = Some(Kind::StructValue(Struct { fields }));
        [("command_exit_code", number(f64::from(ended.exit_code))), ("interactor", Value { kind })]
    });
    let fields = fields.chain(limit.into_iter().flatten()).chain(of_interactor.into_iter().flatten());
    let fields = fields.map(|(name, value)| (name.to_owned(), value)).collect();
    let type_url = "type.googleapis.com/google.protobuf.Struct".to_owned();
    Any { type_url, value: Struct { fields }.encode_to_vec() }
}
