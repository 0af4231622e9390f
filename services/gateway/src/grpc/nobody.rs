//! Ending what nobody waits for any more. A client that gives up just drops its stream: this is how its actions stop.

use std::time::Duration;

use bus::{Bus, BusError, Encoding, Subject, Written, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutionOutcome, ExecutorControl, ExecutorId, Millis};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::{debug, info, warn};

use super::{state::Known, waiting::Waiters};

/// How long the other gateways have to say that somebody waits there.
const SILENCE: Duration = Duration::from_millis(500);
/// How long a write is tried while the bus is away.
const PATIENCE: Duration = Duration::from_secs(5);
const TRIES: u32 = 20;
const RETRY: Duration = Duration::from_secs(1);

/// What became of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// It is ended.
    Now,
    /// It had its result before.
    Over,
    /// There is no such execution.
    Unknown,
}

/// Nobody waits here for `key`: unless somebody does elsewhere, it ends. Tried until the bus is back, should it be away.
pub(super) async fn waits(waiters: &Waiters, key: &ExecutionKey, known: &Known) {
    let bus = &waiters.shared.bus;
    let executor = known.progress.as_ref().map(|progress| progress.executor.clone());
    if known.is_over() {
        return;
    }
    for _ in 0..TRIES {
        if somebody_waits(bus, key).await {
            return;
        }
        match cancel(bus, key, executor.clone(), "nobody waits for it any more").await {
            Ok(Cancelled::Now) => return info!(execution = %key, "ended: nobody waits for it any more"),
            Ok(Cancelled::Over | Cancelled::Unknown) => return,
            Err(error) => debug!(execution = %key, error = telemetry::error_chain(&error), "not ended yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = waiters.shared.stop.cancelled() => return,
        }
    }
    warn!(execution = %key, "nobody waits for it any more, and it could not be ended: it runs to its end");
}

async fn somebody_waits(bus: &Bus, key: &ExecutionKey) -> bool {
    let request = async_nats::Request::new().payload(encode(Encoding::Json, key)).timeout(Some(SILENCE));
    bus.client().send_request(Subject::ExecutionWaiters.to_string(), request).await.is_ok()
}

/// Says to other gateways for what somebody waits here; to what nobody waits for there is no answer.
pub(crate) async fn answer(bus: Bus, waiters: Waiters, stop: CancellationToken) {
    let asked = async {
        loop {
            let Ok(mut questions) = bus.client().subscribe(Subject::ExecutionWaiters.to_string()).await
            else {
                return;
            };
            while let Some(question) = questions.next().await {
                let Ok(key) = decode::<ExecutionKey>(Encoding::Json, &question.payload) else { continue };
                if let Some(reply) = question.reply.filter(|_| waiters.has(&key)) {
                    let _ = bus.client().publish(reply, Bytes::from_static(b"{}")).await;
                }
            }
        }
    };
    tokio::select! {
        () = asked => {}
        () = stop.cancelled() => {}
    }
}

/// Ends `key` as cancelled, unless it has its result.
pub(crate) async fn cancel(
    bus: &Bus,
    key: &ExecutionKey,
    executor: Option<ExecutorId>,
    why: &str,
) -> Result<Cancelled, BusError> {
    let mut last = bus.latest_execution(key).await?;
    for _ in 0..TRIES {
        let Some((sequence, record)) = last else { return Ok(Cancelled::Unknown) };
        if record.outcome().is_some() {
            return Ok(Cancelled::Over);
        }
        let outcome = ExecutionOutcome {
            executor: None,
            code: Code::Cancelled.into(),
            message: why.to_owned(),
            missing: Vec::new(),
            exit_code: None,
            result: None,
            server_logs: Vec::new(),
        };
        let ended = record.finished(sequence, outcome, Millis::now());
        last = match bus.transition(&ended, sequence, PATIENCE).await? {
            Written::Won(_) => {
                if let Some(executor) = &executor {
                    tell(bus, key, executor).await;
                }
                return Ok(Cancelled::Now);
            }
            Written::Lost(now) => now.map(|now| *now),
        };
    }
    Err(BusError::Timeout { what: format!("ending {key}") })
}

/// The scheduler tells the executor too; this is sooner where it is known who has it.
async fn tell(bus: &Bus, key: &ExecutionKey, executor: &ExecutorId) {
    let order = encode(Encoding::Json, &ExecutorControl::Cancel { execution: key.clone() });
    let subject = Subject::ExecutorControl(executor.clone()).to_string();
    if let Err(error) = bus.client().publish(subject, order).await {
        warn!(execution = %key, %error, "its executor was not told that it is cancelled");
    }
}
