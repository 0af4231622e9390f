//! The trace of a build.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::{
    Attempt, Build, BuildRecord, BuildResult, Invocation, Outcome, Phase, Reason, ReasonCode, State,
};
use telemetry::spans::{self, Span, SpanContext, SpanKind, TraceId};

use crate::{Made, ids, names};

/// A build that takes more than this many times its expected run time is kept.
const SLOW_FACTOR: u32 = 2;
/// A build that takes less is never slow.
const SLOW_MIN: Duration = Duration::from_secs(10);

/// The trace of a build, and the places of its spans.
#[derive(Debug, Clone)]
pub struct BuildTrace {
    key: String,
    trace: TraceId,
    parent: Option<SpanContext>,
    sampled: bool,
}

impl BuildTrace {
    /// The publisher's trace, else a trace of its own.
    pub fn of(build: &Build) -> Self {
        let key = build.key().to_string();
        let parent: Option<SpanContext> = build.traceparent.as_deref().and_then(|text| text.parse().ok());
        let own = || ids::trace_id(&["build", &key, &build.submitted_at_ms.0.to_string()]);
        let trace = parent.map_or_else(own, |parent| parent.trace);
        Self { key, trace, parent, sampled: spans::selects(trace, parent) }
    }

    fn span(&self, role: &str, attempt: Attempt) -> SpanContext {
        let span = ids::span_id(&[&self.key, &attempt.to_string(), role]);
        SpanContext { trace: self.trace, span, sampled: self.sampled }
    }

    fn root(&self) -> SpanContext {
        self.span(names::BUILD, Attempt(0))
    }

    /// The span of the command or the job of an attempt, which what it starts continues. None if this process does not
    /// trace and the publisher did not either.
    pub fn command(&self, attempt: Attempt) -> Option<SpanContext> {
        if !spans::trace_enabled() {
            return self.parent;
        }
        Some(self.span(names::COMMAND, attempt))
    }

    /// The span of the wait in the queue before an attempt.
    pub fn queue(&self, attempt: Attempt) -> SpanContext {
        self.span(names::QUEUE, attempt)
    }

    /// The span of the acceptance of its request, which was written to the log at `written`.
    pub fn enqueued(&self, build: &Build, written: SystemTime) -> Span {
        let context = self.span(names::ENQUEUE, Attempt(0));
        let begun = build.submitted_at_ms.into();
        Span::new(context, Some(self.root().span), names::ENQUEUE, begun, written)
            .kind(SpanKind::Consumer)
            .with(names::MESSAGING_SYSTEM, "nats")
            .with(names::DESTINATION, "forebay.build.request.{group}.{priority}")
            .with(names::GROUP, build.group.to_string())
            .with(names::PRIORITY, build.priority.as_str())
    }
}

/// The spans of what ended when `after` was written as the record that follows `before`: of a wait, of an attempt, or
/// of the whole build.
pub fn run_ended(before: &BuildRecord, after: &BuildRecord) -> Made {
    let trace = BuildTrace::of(&before.build);
    let root = trace.root().span;
    let (attempt, end) = (before.attempt, SystemTime::from(after.at_ms));
    let mut spans = Vec::new();
    let run = before.invocation().filter(|_| before.state() == State::InProgress);
    let offered = run.map_or(end, |run| offered(before, run));
    let retry = before.queue.retry.as_ref().map(|retry| retry.reason.code.to_string());
    spans.push(
        Span::new(
            trace.queue(attempt),
            Some(root),
            names::QUEUE,
            before.queue.enqueued_at_ms.into(),
            offered,
        )
        .with(names::ATTEMPT, attempt.0)
        .with(names::PRIORITY, before.build.priority.as_str())
        .with_some(names::REASON, retry),
    );
    if let Some(run) = run {
        let claimed = SystemTime::from(run.started_at_ms);
        spans.push(Span::new(trace.span(names::OFFER, attempt), Some(root), names::OFFER, offered, claimed));
        spans.extend(invocation(&trace, before, after, run));
    }
    if after.state() == State::Finished {
        spans.push(whole(&trace, after));
    }
    let keep = (!trace.sampled && is_worth_keeping(after)).then_some(trace.trace);
    Made { spans, keep }
}

/// When the build left the queue. The clocks that wrote the times before and after may differ slightly.
fn offered(before: &BuildRecord, run: &Invocation) -> SystemTime {
    let picked = UNIX_EPOCH + Duration::from_micros(run.dispatched_at_us);
    picked.clamp(
        before.queue.enqueued_at_ms.into(),
        SystemTime::from(run.started_at_ms).max(before.queue.enqueued_at_ms.into()),
    )
}

/// The spans of an attempt and its phases, which follow each other without a gap.
fn invocation(trace: &BuildTrace, before: &BuildRecord, after: &BuildRecord, run: &Invocation) -> Vec<Span> {
    let attempt = before.attempt;
    let (start, end) = (SystemTime::from(run.started_at_ms), SystemTime::from(after.at_ms));
    let context = trace.span(names::INVOCATION, attempt);
    let previous = attempt.0.checked_sub(1).filter(|number| *number > 0).map(Attempt);
    let reason = match &after.phase {
        Phase::Finished { result, .. } => result.reason.as_ref(),
        Phase::Enqueued | Phase::InProgress { .. } => after.queue.retry.as_ref().map(|retry| &retry.reason),
    };
    let result = match after.result() {
        Some(result) => of_outcome(result.outcome),
        None => "error",
    };
    let mut whole = Span::new(context, Some(trace.root().span), names::INVOCATION, start, end)
        .with(names::ATTEMPT, attempt.0)
        .with(names::TASK_NAME, names::INVOCATION)
        .with_some(names::TASK_ID, run.id.map(|id| id.to_string()))
        .with(names::TASK_RESULT, result)
        .with(names::WORKER, run.worker.to_string())
        .with(names::WORKSPACE, u32::from(run.workspace))
        .with_some(names::REASON, reason.map(|reason| reason.code.to_string()))
        .error(error(result, reason));
    if let Some(previous) = previous {
        whole = whole.link(trace.span(names::INVOCATION, previous));
    }
    let mut spans = vec![whole];
    let child = |role: &'static str, from, to| {
        Span::new(trace.span(role, attempt), Some(context.span), role, from, to)
    };
    if reason.is_some_and(|reason| reason.code == ReasonCode::LeaseExpired) {
        // The last renewal arrived one life of the lease before its expiry.
        let life = Duration::from_secs(before.build.lease_ttl_seconds);
        let silent = end.checked_sub(life).unwrap_or(start).max(start);
        spans.push(unknown(child(names::COMMAND, start, silent), names::UNTIL_SILENT));
        spans.push(child(names::LEASE_EXPIRY, silent, end));
        return spans;
    }
    let Some(ran) = after.result() else {
        spans.push(unknown(child(names::COMMAND, start, end), names::UNTIL_REQUEUE));
        return spans;
    };
    let started = ran.command_started_at_us.map(|at| UNIX_EPOCH + Duration::from_micros(at));
    let within = |at: SystemTime| at.clamp(start, end.max(start));
    let Some(started) = started.map(within) else { return spans };
    let wall = Duration::try_from_secs_f64(ran.wall_seconds).unwrap_or_default();
    // A record may state any time: one that no clock reaches ends with the attempt.
    let ended = started.checked_add(wall).map_or(end.max(start), within);
    spans.push(child(names::PREPARE, start, started));
    spans.push(command(before, ran, child(names::COMMAND, started, ended)));
    spans.push(child(names::OUTPUTS, ended, end));
    spans
}

/// The span of a command of which it is not known when it started. It is the parent of what the command started.
fn unknown(command: Span, name: &'static str) -> Span {
    Span { name: name.into(), ..command }
}

fn command(before: &BuildRecord, ran: &BuildResult, span: Span) -> Span {
    let name = if before.build.job.is_some() { names::JOB } else { names::COMMAND };
    let program = before.build.command.first().cloned();
    let failed = ran.exit_code.filter(|code| *code != 0).map(|code| format!("exit code {code}"));
    Span { name: name.into(), ..span }
        .with_some("process.executable.name", program)
        .with_some(names::EXIT_CODE, ran.exit_code)
        .error(failed)
}

/// The first span of the build's trace.
fn whole(trace: &BuildTrace, after: &BuildRecord) -> Span {
    let build = &after.build;
    let outcome = after.result().map_or(Outcome::Lost, |result| result.outcome);
    let reason = after.result().and_then(|result| result.reason.as_ref());
    let result = of_outcome(outcome);
    let name = build.labels.get("name");
    let span_name = name.map_or_else(|| names::BUILD.to_owned(), |name| format!("{} {name}", names::BUILD));
    Span::new(
        trace.root(),
        trace.parent.map(|parent| parent.span),
        span_name,
        build.submitted_at_ms.into(),
        after.at_ms.into(),
    )
    .kind(SpanKind::Server)
    .with(names::ACTION_NAME, names::BUILD)
    .with_some(names::PIPELINE, name.cloned())
    .with(names::RUN_ID, trace.key.clone())
    .with(names::RESULT, result)
    .with(names::GROUP, build.group.to_string())
    .with(names::BUILD_ID, build.id.to_string())
    .with(names::PRIORITY, build.priority.as_str())
    .with(names::ATTEMPT, after.attempt.0)
    .with_some(names::ERROR_TYPE, reason.map(|reason| reason.code.to_string()))
    .error(error(result, reason))
}

/// The conventions separate what the command failed (`failure`) from what the farm failed (`error`).
fn of_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "success",
        Outcome::Failed => "failure",
        Outcome::TimedOut | Outcome::Expired => "timeout",
        Outcome::Cancelled => "cancellation",
        Outcome::Lost => "error",
        Outcome::Rejected => "skip",
    }
}

/// The status of the span: a cancelled build is not an error.
fn error(result: &str, reason: Option<&Reason>) -> Option<String> {
    let is_error = matches!(result, "failure" | "timeout" | "error" | "skip");
    is_error.then(|| reason.map_or_else(|| result.to_owned(), |reason| reason.message.clone()))
}

/// Whether the trace is worth keeping whatever the sampler selected: the build failed, was run again, or was slow.
fn is_worth_keeping(after: &BuildRecord) -> bool {
    let Some(result) = after.result() else { return true };
    let took = Duration::try_from_secs_f64(result.wall_seconds).unwrap_or_default();
    let expected = after.build.expected_ms.map(Duration::from_millis);
    let is_slow = expected.is_some_and(|expected| took > SLOW_MIN.max(expected * SLOW_FACTOR));
    result.outcome != Outcome::Succeeded || after.attempt > Attempt::FIRST || is_slow
}
