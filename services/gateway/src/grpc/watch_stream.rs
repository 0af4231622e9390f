//! The stream of operations that `Execute` and `WaitExecution` return.

use std::{pin::Pin, time::Duration};

use futures::Stream;
use model::{ExecutionOutcome, ExecutionProgress, ExecutionRecord, ExecutionStage};
use reapi::{longrunning::Operation, status};
use service::sleep_until;
use telemetry::metrics::{Counter, Gauge, Histogram, Label, add, count, observe};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{
    Core, RETRY,
    accept::Accepted,
    merging::MergeHandle,
    names::OperationName,
    pools::{Whereabouts, Why},
    response::{self, Inline},
    state::{self, ClientView, Known},
    trace::CallTrace,
    waiters::Waiter,
};

/// Maximum interval between messages to a client: load balancers and Bazel's keepalive close silent streams.
const SEND_INTERVAL: Duration = Duration::from_secs(10);
/// Delay before the reason for waiting is determined, as most executions start sooner.
const WHY_AFTER: Duration = Duration::from_secs(1);

/// The response stream of `Execute` and `WaitExecution`.
pub(crate) type Operations = Pin<Box<dyn Stream<Item = Result<Operation, Status>> + Send>>;

/// One client that waits for one execution.
pub(crate) struct Watching {
    core: Core,
    name: OperationName,
    waiter: Waiter,
    inline: Inline,
    /// The call that requested it; none for one that only waits.
    trace: Option<CallTrace>,
    /// Whether that client's request started the execution.
    began: bool,
    _merge: Option<MergeHandle>,
    sent: Option<ClientView>,
    why: Option<Why>,
    next_send: Instant,
    find_why_at: Option<Instant>,
    ended: bool,
    _counted: Counted,
}

impl Watching {
    /// Waits with `waiter` for an execution that any client requested.
    pub(crate) fn new(core: &Core, name: OperationName, waiter: Waiter) -> Self {
        let now = Instant::now();
        Self {
            core: core.clone(),
            name,
            waiter,
            inline: Inline::default(),
            trace: None,
            began: false,
            _merge: None,
            sent: None,
            why: None,
            next_send: now,
            find_why_at: Some(now + WHY_AFTER),
            ended: false,
            _counted: Counted::new(),
        }
    }

    /// Waits for an execution that this client requested.
    pub(crate) fn asked(core: &Core, accepted: Accepted, inline: Inline, trace: CallTrace) -> Self {
        let Accepted { name, waiter, joined, merge } = accepted;
        let waiting = Self::new(core, name, waiter);
        Self { inline, trace: Some(trace), began: !joined, _merge: merge, ..waiting }
    }

    /// Converts into a stream pulled by the connection; the waiter is dropped when the connection closes.
    pub(crate) fn stream(self) -> Operations {
        Box::pin(futures::stream::unfold(self, async |mut watching| {
            let next = watching.next().await?;
            Some((next, watching))
        }))
    }

    /// The next operation to send; `None` after the one that is done.
    pub(crate) async fn next(&mut self) -> Option<Result<Operation, Status>> {
        while !self.ended {
            let known = self.waiter.known();
            if known.lost {
                self.ended = true;
                let text = format!("operation {} is no longer stored; execute the action again", self.name);
                return Some(Err(Status::not_found(text)));
            }
            if let Some(record) = known.record()
                && let Some(outcome) = record.outcome()
            {
                self.ended = true;
                if let Some(trace) = &mut self.trace {
                    trace.complete(outcome.is_success());
                }
                // Boxed, because this future is large and rarely in use.
                return Some(Ok(Box::pin(self.done(&known, record, outcome)).await));
            }
            if self.sent.is_none() {
                self.why = self.why_at_once(&known);
            }
            let view = state::client_view(&known, self.why.as_ref());
            if self.sent.as_ref() != Some(&view) || self.next_send <= Instant::now() {
                self.sent = Some(view);
                self.next_send = Instant::now() + SEND_INTERVAL;
                return Some(Ok(state::pending(&self.name, &known, self.why.as_ref())));
            }
            tokio::select! {
                () = self.waiter.changed() => {}
                () = tokio::time::sleep_until(self.next_send) => {}
                () = sleep_until(self.find_why_at) => Box::pin(self.find_why(&known)).await,
                () = self.core.stop.cancelled() => {
                    self.ended = true;
                    let text = "this gateway is stopping; wait for the operation again";
                    return Some(Err(status::retry(Code::Unavailable, text, RETRY)));
                }
            }
        }
        None
    }

    async fn done(&self, known: &Known, record: &ExecutionRecord, outcome: &ExecutionOutcome) -> Operation {
        if self.began {
            let took = self.core.bus.now().since(record.execution.accepted_at_ms);
            count(Counter::ExecutionsFinished, &[(Label::Outcome, outcome_label(outcome))], 1);
            let band = record.urgency().band;
            observe(Histogram::ExecutionSeconds, &[(Label::Priority, band.as_str())], took);
        }
        finished(&self.core, &self.name, known, &self.inline).await
    }

    /// The reason that is known without a query: no live executor can run it.
    fn why_at_once(&self, known: &Known) -> Option<Why> {
        let record = known.record().filter(|_| known.waits())?;
        let snapshot = self.core.pools.cached()?;
        let why = snapshot.has_none(&record.execution.requirements).then(|| snapshot.why(record))?;
        tracing::debug!(execution = %self.waiter.key(), why, "an execution waits");
        Some(why.into())
    }

    /// Determines why an execution waits, or that it runs and its progress message was lost.
    async fn find_why(&mut self, known: &Known) {
        self.find_why_at = Some(Instant::now() + SEND_INTERVAL);
        let Some(record) = known.record().filter(|_| known.waits()) else {
            self.why = None;
            return;
        };
        match self.core.pools.whereabouts(record).await {
            None => {}
            Some(Whereabouts::With(executor)) => {
                let stage = ExecutionStage::Fetching;
                self.waiter.learn_progress(ExecutionProgress {
                    executor,
                    stage,
                    at_ms: self.core.bus.now(),
                    image: None,
                });
            }
            Some(Whereabouts::Waits(why)) => {
                if self.why.as_ref() != Some(&why) {
                    let text = &why.text;
                    tracing::debug!(execution = %self.waiter.key(), why = text, "an execution waits");
                }
                self.why = Some(why);
            }
        }
    }
}

/// The current operation of an execution, done or not.
pub(crate) async fn current_operation(core: &Core, name: &OperationName, known: &Known) -> Operation {
    if known.is_over() {
        return finished(core, name, known, &Inline::default()).await;
    }
    let Some(record) = known.record().filter(|_| known.waits()) else {
        return state::pending(name, known, None);
    };
    match core.pools.whereabouts(record).await {
        None => state::pending(name, known, None),
        Some(Whereabouts::Waits(why)) => state::pending(name, known, Some(&why)),
        Some(Whereabouts::With(executor)) => {
            let stage = ExecutionStage::Fetching;
            let mut known = known.clone();
            known.apply_progress(ExecutionProgress { executor, stage, at_ms: core.bus.now(), image: None });
            state::pending(name, &known, None)
        }
    }
}

async fn finished(core: &Core, name: &OperationName, known: &Known, inline: &Inline) -> Operation {
    let metadata = state::metadata(name, known, None);
    let Some((record, outcome)) = known.record().and_then(|record| Some((record, record.outcome()?))) else {
        let gone = Status::not_found(format!("operation {name} is no longer stored"));
        return state::done(&name.to_string(), metadata, &response::failed(&gone));
    };
    let response = response::finished(&core.cas, &record.execution, outcome, inline).await;
    state::done(&name.to_string(), metadata, &response)
}

/// The metric label of an outcome.
fn outcome_label(outcome: &ExecutionOutcome) -> &'static str {
    match (Code::from_i32(outcome.code), outcome.exit_code) {
        (Code::Ok, Some(0)) => "succeeded",
        (Code::Ok, _) => "failed",
        (Code::DeadlineExceeded, _) => "timed_out",
        (Code::Cancelled, _) => "cancelled",
        (Code::FailedPrecondition | Code::InvalidArgument, _) => "rejected",
        _ => "lost",
    }
}

/// Counts the open streams in a gauge.
struct Counted;

impl Counted {
    fn new() -> Self {
        add(Gauge::ExecutionsWaitedFor, &[], 1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        add(Gauge::ExecutionsWaitedFor, &[], -1);
    }
}
