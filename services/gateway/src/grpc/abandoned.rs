//! Ends executions that no client waits for. A client that gives up just drops its stream, so this is
//! how its actions stop.
//!
//! A gateway without waiting clients asks the others. A client that starts to wait while the question is pending must
//! not be overlooked. So the end is written only if the record that was read before the question is still the last
//! one, and a client that arrives after the question writes one more record ([`keep_running`]): one of the two writes
//! wins, and the other fails.

use std::time::Duration;

use bus::{Bus, BusError, Plain, Subject, Written};
use model::{ExecutionKey, ExecutionOutcome, ExecutionRecord, ExecutorControl, ExecutorId, Millis, Sequence};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::{debug, info, warn};

use super::{
    interest::{ClientCounts, Invocation},
    state::Known,
    waiters::{Waiter, Waiters},
};

/// Time for the other gateways to answer that a client waits there.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a write is retried while the bus is unavailable.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const TRIES: u32 = 20;
const RETRY: Duration = Duration::from_secs(1);

/// A question that gateways ask each other. A gateway with nothing to report does not answer, except the asking one:
/// its own answer proves that the bus works, so that the silence of the others counts as their answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(super) enum Question {
    /// Whether any client waits for the execution.
    Anybody { execution: ExecutionKey },
    /// How many clients other than `caller` want the execution.
    Besides { execution: ExecutionKey, caller: Invocation },
}

/// A question and the gateway that asks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    gateway: uuid::Uuid,
    #[serde(flatten)]
    question: Question,
}

bus::message!(Asked, Answer);

/// Gateways to all gateways.
impl Plain for Asked {
    const NAME: &'static str = "a question of a gateway";
    type To = ();
    type Answer = Answer;

    fn subject((): &()) -> Subject {
        Subject::ExecutionWaiters
    }
}

/// The answer of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    gateway: uuid::Uuid,
    /// The interest of its clients, if it follows the execution.
    standing: Option<ClientCounts>,
}

/// Ends `key`, which no client waits for here, unless a client waits at another gateway. Retries while
/// the bus is unavailable.
pub(super) async fn end_if_abandoned(waiters: &Waiters, key: &ExecutionKey, known: &Known) {
    if known.is_over() {
        return;
    }
    // Usually the last record is known. If it is no longer the last one, the write fails.
    let mut last = known.last.clone().map(|(sequence, record)| (sequence, (*record).clone()));
    for _ in 0..TRIES {
        match end_unless_wanted(waiters, key, known, last.take()).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                debug!(execution = %key, error = telemetry::error_chain(&error), "not ended yet");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = waiters.shared.stop.cancelled() => return,
                }
            }
        }
    }
    warn!(execution = %key, "an abandoned execution could not be cancelled: it runs to completion");
}

/// Returns true once it is decided: the execution has ended or a client waits. False if its record
/// changed in the meantime.
async fn end_unless_wanted(
    waiters: &Waiters,
    key: &ExecutionKey,
    known: &Known,
    last: Option<(Sequence, ExecutionRecord)>,
) -> Result<bool, BusError> {
    let bus = &waiters.shared.bus;
    let last = if last.is_some() { last } else { bus.records().latest(key).await? };
    let Some((sequence, record)) = last else { return Ok(true) };
    if record.outcome().is_some() || any_client_waits(waiters, key).await? {
        return Ok(true);
    }
    let ended = cancelled(&record, sequence, "cancelled: all clients disconnected", bus.now());
    if let Written::Lost(_) = bus.transition(&ended, sequence, PATIENCE).await? {
        return Ok(false);
    }
    service::trace_execution_ended(bus, &ended);
    info!(execution = %key, "cancelled: all clients disconnected");
    send_cancellation(bus, key, known.executors()).await;
    Ok(true)
}

async fn any_client_waits(waiters: &Waiters, key: &ExecutionKey) -> Result<bool, BusError> {
    let question = Question::Anybody { execution: key.clone() };
    ask_gateways(waiters, question, ANSWER_TIMEOUT, |_, _| true).await
}

/// Asks all gateways, including this one, until `is_enough` accepts an answer or the time is over, and returns
/// whether one was accepted. `is_enough` receives whether the answer is from another gateway, and its client counts.
/// Fails if not even this gateway received the question.
pub(super) async fn ask_gateways(
    waiters: &Waiters,
    question: Question,
    timeout: Duration,
    mut is_enough: impl FnMut(bool, ClientCounts) -> bool,
) -> Result<bool, BusError> {
    let until = Instant::now() + timeout;
    let own = waiters.shared.id;
    let mut answers = waiters.shared.bus.answers_to(&(), &Asked { gateway: own, question }).await?;
    let mut is_heard = false;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await {
        is_heard |= answer.gateway == own;
        if answer.standing.is_some_and(|standing| is_enough(answer.gateway != own, standing)) {
            return Ok(true);
        }
    }
    if is_heard {
        Ok(false)
    } else {
        Err(BusError::Timeout { what: "asking the gateways for waiting clients".into() })
    }
}

/// Answers the questions of all gateways, including this one.
pub(crate) async fn answer(bus: Bus, waiters: Waiters, stop: CancellationToken) {
    let asked = async {
        loop {
            let mut questions = match bus.listen::<Asked>(&()).await {
                Ok(questions) => questions,
                Err(error) => {
                    debug!(error = telemetry::error_chain(&error), "the connection to the bus is closed");
                    return;
                }
            };
            while let Some(message) = questions.next().await {
                let (asked, answering) = message.split();
                if let Some(answer) = answer_of(&waiters, &asked) {
                    answering.send(&answer).await;
                }
            }
        }
    };
    tokio::select! {
        () = asked => {}
        () = stop.cancelled() => {}
    }
}

fn answer_of(waiters: &Waiters, asked: &Asked) -> Option<Answer> {
    let standing = match &asked.question {
        Question::Anybody { execution } => waiters.has_client(execution).then(ClientCounts::default),
        Question::Besides { execution, caller } => waiters.client_counts(execution, caller),
    };
    let own = waiters.shared.id;
    let speaks = standing.is_some() || asked.gateway == own;
    speaks.then_some(Answer { gateway: own, standing })
}

/// Prevents the end of the execution of `waiter` by a gateway that saw no waiting client a moment ago. Called for
/// every new waiter of an unfinished execution, once its record is known. If the end was written first, the
/// execution is over afterwards.
pub(super) async fn keep_running(waiters: &Waiters, waiter: &mut Waiter) -> Result<(), BusError> {
    if !waiter.is_at_risk() {
        return Ok(());
    }
    for _ in 0..TRIES {
        let known = waiter.known();
        let Some((sequence, record)) = known.last.filter(|(_, record)| record.outcome().is_none()) else {
            return Ok(());
        };
        let kept = record.raised(sequence, record.urgency(), waiters.shared.bus.now());
        match waiters.shared.bus.transition(&kept, sequence, PATIENCE).await? {
            Written::Won(sequence) => {
                waiter.learn(sequence, kept);
                waiters.clear_risk(waiter.key());
                return Ok(());
            }
            Written::Lost(Some(now)) => waiter.learn(now.0, now.1),
            Written::Lost(None) => return Ok(()),
        }
    }
    Err(BusError::Timeout { what: format!("keeping {}", waiter.key()) })
}

/// The record that ends an execution as cancelled, without a result.
pub(super) fn cancelled(
    record: &ExecutionRecord,
    sequence: Sequence,
    why: &str,
    now: Millis,
) -> ExecutionRecord {
    let outcome = ExecutionOutcome::without_run(Code::Cancelled.into(), why.to_owned());
    record.finished(sequence, outcome, now)
}

/// Sends the cancellation to the known executors. The scheduler sends it too, but later.
pub(super) async fn send_cancellation(
    bus: &Bus,
    key: &ExecutionKey,
    executors: impl Iterator<Item = &ExecutorId>,
) {
    let order = ExecutorControl::Cancel { execution: key.clone() };
    for executor in executors {
        if let Err(error) = bus.send(executor, &order).await {
            let error = telemetry::error_chain(&error);
            warn!(execution = %key, %executor, error, "the cancellation was not sent to the executor");
        }
    }
}
