//! Ending what nobody waits for any more. A client that gives up just drops its stream: this is how its actions stop.
//!
//! A gateway that nobody waits at asks the others. Whoever comes to wait while it is still asking must not be told that
//! nobody waits. So the end is written only behind the record that was read before the question, and whoever comes after
//! the question writes one more record ([`keep`]): one of the two writes is first, and the other fails.

use std::time::Duration;

use bus::{Bus, BusError, Encoding, Subject, Written, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutionOutcome, ExecutionRecord, ExecutorControl, ExecutorId, Millis, Sequence};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::{debug, info, warn};

use super::{
    interest::{Invocation, Standing},
    state::Known,
    waiting::{Waiter, Waiters},
};

/// How long the other gateways have to say that somebody waits there.
const SILENCE: Duration = Duration::from_millis(500);
/// How long a write is tried while the bus is away.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const TRIES: u32 = 20;
const RETRY: Duration = Duration::from_secs(1);

/// What gateways ask each other. Those that have nothing to say are silent, but for the one that asks: hearing itself it
/// knows that the bus carries, and that the silence of the others is their answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(super) enum Question {
    /// Whether anybody waits for it.
    Anybody { execution: ExecutionKey },
    /// How much it is wanted besides by a client that wants it no more.
    Besides { execution: ExecutionKey, caller: Invocation },
}

/// A question and who asks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    gateway: uuid::Uuid,
    #[serde(flatten)]
    question: Question,
}

/// What a gateway answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    /// Which gateway.
    gateway: uuid::Uuid,
    /// How it stands there, if it has to do with it.
    standing: Option<Standing>,
}

/// Nobody waits here for `key`: unless somebody does elsewhere, it ends. Tried until the bus is back, should it be away.
pub(super) async fn waits(waiters: &Waiters, key: &ExecutionKey, known: &Known) {
    if known.is_over() {
        return;
    }
    // Mostly the last record is known; if it is not the last any more, the write fails.
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
    warn!(execution = %key, "nobody waits for it any more, and it could not be ended: it runs to its end");
}

/// Whether it is decided: it has ended, or somebody waits. If not, it was written to in the meantime.
async fn end_unless_wanted(
    waiters: &Waiters,
    key: &ExecutionKey,
    known: &Known,
    last: Option<(Sequence, ExecutionRecord)>,
) -> Result<bool, BusError> {
    let bus = &waiters.shared.bus;
    let last = if last.is_some() { last } else { bus.latest_execution(key).await? };
    let Some((sequence, record)) = last else { return Ok(true) };
    if record.outcome().is_some() || somebody_waits(waiters, key).await? {
        return Ok(true);
    }
    let ended = cancelled(&record, sequence, "nobody waits for it any more", bus.now());
    if let Written::Lost(_) = bus.transition(&ended, sequence, PATIENCE).await? {
        return Ok(false);
    }
    info!(execution = %key, "ended: nobody waits for it any more");
    tell(bus, key, known.executors()).await;
    Ok(true)
}

async fn somebody_waits(waiters: &Waiters, key: &ExecutionKey) -> Result<bool, BusError> {
    let question = Question::Anybody { execution: key.clone() };
    ask(waiters, question, SILENCE, |_, _| true).await
}

/// Asks all gateways, this one too, until `is_enough` of an answer (from another gateway or not, and how it stands there) or
/// the time is over: whether it was enough. An error where the question was not even heard here.
pub(super) async fn ask(
    waiters: &Waiters,
    question: Question,
    silence: Duration,
    mut is_enough: impl FnMut(bool, Standing) -> bool,
) -> Result<bool, BusError> {
    let what = || "asking the gateways who waits".to_owned();
    let failed =
        |error: Box<dyn std::error::Error + Send + Sync>| BusError::Failed { what: what(), source: error };
    let until = Instant::now() + silence;
    let (client, own) = (waiters.shared.bus.client(), waiters.shared.id);
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| failed(error.into()))?;
    let asked = encode(Encoding::Json, &Asked { gateway: own, question });
    let sent = client.publish_with_reply(Subject::ExecutionWaiters.to_string(), inbox, asked).await;
    sent.map_err(|error| failed(error.into()))?;
    let mut is_heard = false;
    while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
        let Ok(answer) = decode::<Answer>(Encoding::Json, &message.payload) else { continue };
        is_heard |= answer.gateway == own;
        if answer.standing.is_some_and(|standing| is_enough(answer.gateway != own, standing)) {
            return Ok(true);
        }
    }
    if is_heard { Ok(false) } else { Err(BusError::Timeout { what: what() }) }
}

/// Answers other gateways, and this one, too.
pub(crate) async fn answer(bus: Bus, waiters: Waiters, stop: CancellationToken) {
    let asked = async {
        loop {
            let Ok(mut questions) = bus.client().subscribe(Subject::ExecutionWaiters.to_string()).await
            else {
                return;
            };
            while let Some(message) = questions.next().await {
                let Ok(asked) = decode::<Asked>(Encoding::Json, &message.payload) else { continue };
                if let (Some(reply), Some(answer)) = (message.reply, reply(&waiters, &asked)) {
                    let _ = bus.client().publish(reply, answer).await;
                }
            }
        }
    };
    tokio::select! {
        () = asked => {}
        () = stop.cancelled() => {}
    }
}

fn reply(waiters: &Waiters, asked: &Asked) -> Option<Bytes> {
    let standing = match &asked.question {
        Question::Anybody { execution } => waiters.has(execution).then(Standing::default),
        Question::Besides { execution, caller } => waiters.standing(execution, caller),
    };
    let own = waiters.shared.id;
    let speaks = standing.is_some() || asked.gateway == own;
    speaks.then(|| encode(Encoding::Json, &Answer { gateway: own, standing }))
}

/// Sees to it that the execution that `waiter` waits for is not ended because nobody waited a moment ago. Whoever begins to
/// wait for what is known to go on calls this, once it is known. It is over afterwards if the end was sooner.
pub(super) async fn keep(waiters: &Waiters, waiter: &mut Waiter) -> Result<(), BusError> {
    if !waiter.is_doubted() {
        return Ok(());
    }
    for _ in 0..TRIES {
        let known = waiter.known();
        let Some((sequence, record)) = known.last.filter(|(_, record)| record.outcome().is_none()) else {
            return Ok(());
        };
        let kept = record.raised(sequence, record.priority(), waiters.shared.bus.now());
        match waiters.shared.bus.transition(&kept, sequence, PATIENCE).await? {
            Written::Won(sequence) => {
                waiter.learn(sequence, kept);
                waiters.settle(waiter.key());
                return Ok(());
            }
            Written::Lost(Some(now)) => waiter.learn(now.0, now.1),
            Written::Lost(None) => return Ok(()),
        }
    }
    Err(BusError::Timeout { what: format!("keeping {}", waiter.key()) })
}

/// The record by which an execution ends without a result.
pub(super) fn cancelled(
    record: &ExecutionRecord,
    sequence: Sequence,
    why: &str,
    now: Millis,
) -> ExecutionRecord {
    let outcome = ExecutionOutcome::without_run(Code::Cancelled.into(), why.to_owned());
    record.finished(sequence, outcome, now)
}

/// The scheduler tells the executors too; this is sooner where it is known who has it.
pub(super) async fn tell(bus: &Bus, key: &ExecutionKey, executors: impl Iterator<Item = &ExecutorId>) {
    let order = encode(Encoding::Json, &ExecutorControl::Cancel { execution: key.clone() });
    for executor in executors {
        let subject = Subject::ExecutorControl(executor.clone()).to_string();
        if let Err(error) = bus.client().publish(subject, order.clone()).await {
            warn!(execution = %key, %executor, %error, "its executor was not told that it is cancelled");
        }
    }
}
