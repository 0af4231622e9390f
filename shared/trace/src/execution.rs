//! The trace of an execution.

use std::time::SystemTime;

use model::{
    Attempt, Execution, ExecutionKey, ExecutionOutcome, ExecutionPhase, ExecutionRecord, ExecutorId,
};
use telemetry::spans::{self, Span, SpanContext, SpanId, SpanKind, TraceId};

use crate::{Made, ids, names};

/// The trace of an execution, and the places of its spans.
#[derive(Debug, Clone)]
pub struct ExecutionTrace {
    key: String,
    trace: TraceId,
    parent: Option<SpanContext>,
    sampled: bool,
}

impl ExecutionTrace {
    /// The trace of the client that started it, else a trace of its own.
    pub fn of(execution: &Execution) -> Self {
        let parent = execution.traceparent.as_deref().and_then(|text| text.parse().ok());
        Self::new(&execution.key(), parent)
    }

    fn new(key: &ExecutionKey, parent: Option<SpanContext>) -> Self {
        let key = key.to_string();
        let trace = parent.map_or_else(|| ids::trace_id(&["execution", &key]), |parent| parent.trace);
        Self { key, trace, parent, sampled: spans::selects(trace, parent) }
    }

    /// The id of the trace, by which people find it.
    pub fn id(&self) -> TraceId {
        self.trace
    }

    /// The span of the execution itself.
    pub fn context(&self) -> SpanContext {
        self.span(&[names::EXECUTION])
    }

    fn span(&self, parts: &[&str]) -> SpanContext {
        let parts: Vec<&str> = [self.key.as_str()].into_iter().chain(parts.iter().copied()).collect();
        SpanContext { trace: self.trace, span: ids::span_id(&parts), sampled: self.sampled }
    }

    /// The span of a copy, of the run after `requeues` requeues, or one of its phases.
    fn copy(&self, requeues: u16, copy: u16, role: &str) -> SpanContext {
        self.span(&[role, &requeues.to_string(), &copy.to_string()])
    }
}

/// Times of the phases of a copy, by the clock of the farm; those that it reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyTimes {
    pub started: Option<SystemTime>,
    pub inputs_ready: Option<SystemTime>,
    pub command: Option<(SystemTime, SystemTime)>,
}

/// How a copy ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// The record after which the copy was claimed, or the last record before its end if the executor was lost.
    pub claimed: &'a ExecutionRecord,
    /// Whether its executor was lost, so that it is not known which of several copies it had.
    pub lost: bool,
    /// The record that its end made; none if another copy or a client had ended the execution before.
    pub after: Option<&'a ExecutionRecord>,
    pub executor: &'a ExecutorId,
    pub at: SystemTime,
}

/// The spans of a copy that ended, and of the execution if it ended with it.
pub fn copy_ended(ended: &Ended<'_>, times: &CopyTimes) -> Made {
    let Ended { claimed, lost, after, executor, at } = *ended;
    let execution = &claimed.execution;
    let trace = ExecutionTrace::of(execution);
    let (requeues, number) = (claimed.so_far.requeues, claimed.so_far.hedges);
    let waited_since = match claimed.phase {
        ExecutionPhase::Hedged => claimed.at_ms,
        ExecutionPhase::Accepted
        | ExecutionPhase::Requeued { .. }
        | ExecutionPhase::CopyEnded { .. }
        | ExecutionPhase::Raised
        | ExecutionPhase::Finished(_) => claimed.waits_since(),
    };
    let started = times.started.unwrap_or(at).max(waited_since.into()).min(at);
    let id = |role: &str| {
        if lost && number > 0 {
            trace.span(&[role, &requeues.to_string(), &executor.to_string()])
        } else {
            trace.copy(requeues, number, role)
        }
    };
    let copy = id(names::COPY);
    let root = trace.context().span;
    let queue = Span::new(id(names::QUEUE), Some(root), names::QUEUE, waited_since.into(), started)
        .with(names::PRIORITY, claimed.urgency().band.as_str())
        .with_some(names::REASON, requeue_reason(claimed));
    let outcome = after.and_then(ExecutionRecord::outcome);
    let mut whole = Span::new(copy, Some(root), names::COPY, started, at)
        .with(names::EXECUTOR, executor.to_string())
        .with(names::ATTEMPT, claimed.attempt.0)
        .with_some(names::COPY_NUMBER, (!lost || number == 0).then(|| u32::from(number)))
        .with_some(names::EXIT_CODE, outcome.and_then(|outcome| outcome.exit_code))
        .error(copy_error(after));
    if number > 0 && !lost {
        whole = whole.link(trace.copy(requeues, 0, names::COPY));
    } else if let Some(before) = requeues.checked_sub(1) {
        whole = whole.link(trace.copy(before, 0, names::COPY));
    }
    let mut spans = vec![queue, whole];
    let mut from = started;
    let ends = [
        (names::INPUTS, times.inputs_ready),
        (names::COMMAND, times.command.map(|(_, ended)| ended)),
        (names::OUTPUTS, times.command.map(|_| at)),
    ];
    for (role, to) in ends {
        let Some(to) = to.map(|to| to.clamp(from, at.max(from))) else { break };
        let context = id(role);
        spans.push(Span::new(context, Some(copy.span), role, from, to));
        from = to;
    }
    // The record was made before it was stored, and the copy ends when it is.
    finish(&trace, after, at, spans)
}

/// The spans of an execution that ended without a copy that ended with it, for example because it was cancelled.
pub fn ended_alone(after: &ExecutionRecord) -> Made {
    finish(&ExecutionTrace::of(&after.execution), Some(after), after.at_ms.into(), Vec::new())
}

/// Adds the span of the execution, if it has ended. Its end was stored `at` this time.
fn finish(
    trace: &ExecutionTrace,
    after: Option<&ExecutionRecord>,
    at: SystemTime,
    mut spans: Vec<Span>,
) -> Made {
    let Some((after, outcome)) = after.and_then(|after| Some((after, after.outcome()?))) else {
        return Made { spans, keep: None };
    };
    spans.push(whole(trace, after, outcome, at));
    // If a build sent it, the build's trace decides.
    let is_kept = trace.parent.is_none() && !trace.sampled && is_worth_keeping(after, outcome);
    Made { spans, keep: is_kept.then_some(trace.trace) }
}

fn whole(
    trace: &ExecutionTrace,
    after: &ExecutionRecord,
    outcome: &ExecutionOutcome,
    at: SystemTime,
) -> Span {
    let execution = &after.execution;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Span::new(
        trace.context(),
        trace.parent.map(|parent| parent.span),
        names::EXECUTION,
        execution.accepted_at_ms.into(),
        at,
    )
    .kind(SpanKind::Consumer)
    .with(names::EXECUTION_ID, execution.id.to_string())
    .with(names::GROUP, execution.group.to_string())
    .with(names::ACTION, execution.action.to_string())
    .with_some(names::BUILD_ID, execution.build.as_ref().map(|build| build.id.to_string()))
    .with_some(names::TARGET, text(&execution.client.target))
    .with_some(names::MNEMONIC, text(&execution.client.mnemonic))
    .with(names::ATTEMPT, after.attempt.0)
    .with_some(names::EXIT_CODE, outcome.exit_code)
    .error(error(outcome))
}

fn error(outcome: &ExecutionOutcome) -> Option<String> {
    match (outcome.code, outcome.exit_code) {
        // Code 1 is a cancellation, which is not an error.
        (0, None | Some(0)) | (1, _) => None,
        (0, Some(code)) => Some(format!("exit code {code}")),
        (code, _) => Some(format!("code {code}: {}", outcome.message)),
    }
}

fn copy_error(after: Option<&ExecutionRecord>) -> Option<String> {
    match &after?.phase {
        ExecutionPhase::Finished(outcome) => error(outcome),
        ExecutionPhase::Requeued { reason, .. } | ExecutionPhase::CopyEnded { reason, .. } => {
            Some(reason.clone())
        }
        ExecutionPhase::Accepted | ExecutionPhase::Hedged | ExecutionPhase::Raised => None,
    }
}

fn requeue_reason(claimed: &ExecutionRecord) -> Option<String> {
    match &claimed.phase {
        ExecutionPhase::Requeued { reason, .. } => Some(reason.clone()),
        ExecutionPhase::Hedged => Some("hedged: the first copy is slow".to_owned()),
        ExecutionPhase::Accepted
        | ExecutionPhase::CopyEnded { .. }
        | ExecutionPhase::Raised
        | ExecutionPhase::Finished(_) => None,
    }
}

/// Whether an execution that no build sent is worth keeping whatever the sampler selected.
fn is_worth_keeping(after: &ExecutionRecord, outcome: &ExecutionOutcome) -> bool {
    !outcome.is_success() || after.attempt > Attempt::FIRST || after.so_far.hedges > 0
}

/// A call of `Execute`, from the request to the end of its answer.
#[derive(Debug, Clone)]
pub struct Call {
    /// The client's span, if it sent one.
    pub parent: Option<SpanContext>,
    /// A random id of the call.
    pub id: SpanId,
    pub started: SystemTime,
    pub answer: Answer,
}

/// How a call was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It started an execution.
    Started(ExecutionKey),
    /// It joined an execution that another call, perhaps of another trace, had started.
    Merged(ExecutionKey, Option<SpanContext>),
    /// The action cache had the result.
    Cached,
}

impl Call {
    /// The span of the execution that it waits for; none if it found a cached result.
    pub fn execution(&self) -> Option<SpanContext> {
        let (key, parent) = match &self.answer {
            Answer::Started(key) => (key, self.parent),
            Answer::Merged(key, of_first) => (key, *of_first),
            Answer::Cached => return None,
        };
        Some(ExecutionTrace::new(key, parent).context())
    }

    /// The span of the call. None if it found a cached result and the client does not trace.
    pub fn ended(&self, at: SystemTime, status: &str) -> Option<Span> {
        let (key, answer) = match &self.answer {
            Answer::Started(key) => (Some(key), "started"),
            Answer::Merged(key, _) => (Some(key), "merged"),
            Answer::Cached => (None, "cached"),
        };
        let context = self.execution();
        let parent = self.parent.or(context)?;
        let sampled = spans::selects(parent.trace, Some(parent));
        let place = SpanContext { trace: parent.trace, span: self.id, sampled };
        let mut span = Span::new(place, Some(parent.span), names::CALL, self.started, at)
            .kind(SpanKind::Server)
            .with(names::RPC_SYSTEM, "grpc")
            .with(names::RPC_METHOD, names::CALL)
            .with(names::RPC_STATUS, status.to_owned())
            .with(names::ANSWER, answer)
            .with_some(names::EXECUTION_ID, key.map(|key| key.id.to_string()));
        if let Some(context) = context {
            span = span.link(context);
        }
        Some(span)
    }
}
