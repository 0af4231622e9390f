//! Accepts an execution into the log, or joins one of the same action that waits or runs.

use std::time::Duration;

use bus::Written;
use index::actions::Joined;
use model::{Execution, ExecutionKey, ExecutionRecord, Sequence, Urgency};
use reapi::{execution::ActionResult, status};
use telemetry::metrics::{Counter, count};
use tonic::{Code, Status};
use trace::Answer;
use tracing::debug;

use super::{
    Core, RETRY, abandoned, cached, faults,
    interest::Role,
    merging::MergeHandle,
    names::OperationName,
    waiters::{LocalJoin, Waiter},
};

/// How long an acceptance is retried while the bus is unavailable. A client that waits longer gives up on its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of candidates for joining that turn out to have ended.
const TRIES: u32 = 8;

/// An execution that a client waits for.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The operation name sent to the client.
    pub(crate) name: OperationName,
    pub(crate) waiter: Waiter,
    /// Whether another request started it.
    pub(crate) joined: bool,
    /// Held so that later requests for the action find this execution; `None` if it is not shared.
    pub(crate) merge: Option<MergeHandle>,
}

/// A request that starts or joins an execution, one at a time for each action.
struct MergeRequest<'a> {
    core: &'a Core,
    execution: &'a Execution,
    role: &'a Role,
    merge: &'a MergeHandle,
}

impl Accepted {
    /// How the call that requested it is answered.
    pub(crate) fn answer(&mut self) -> Answer {
        let key = self.name.key.clone();
        if !self.joined {
            return Answer::Started(key);
        }
        let known = self.waiter.known();
        let of_first =
            known.record().and_then(|record| record.execution.traceparent.as_deref()?.parse().ok());
        Answer::Merged(key, of_first)
    }
}

enum JoinAttempt {
    Started(Waiter),
    Joined(Waiter),
    /// The execution that was found has ended.
    Ended(ExecutionKey),
}

/// The result of a call to [`accept_or_join`].
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The execution, or the one that it joined, is in the log.
    Accepted(Box<Accepted>),
    /// The action has a cached result by now.
    Cached(Box<ActionResult>),
}

/// Accepts `execution`, or joins one of the same action that waits or runs. The execution that was found may have
/// ended since the cache lookup, so if `may_be_cached` the result is looked up again.
pub(crate) async fn accept_or_join(
    core: &Core,
    execution: Execution,
    role: &Role,
    may_be_cached: bool,
) -> Result<Outcome, Status> {
    let name = |key| OperationName { instance: execution.instance.clone(), key };
    let Some(merge) = core.merging.handle(&execution) else {
        let waiter = write(core, execution.clone(), role).await?;
        let name = name(execution.key());
        return Ok(Outcome::Accepted(Box::new(Accepted { name, waiter, joined: false, merge: None })));
    };
    let request = MergeRequest { core, execution: &execution, role, merge: &merge };
    let busy = |_| status::retry(Code::Unavailable, "timed out behind another request for the action", RETRY);
    let mut current = tokio::time::timeout(PATIENCE, merge.lock()).await.map_err(busy)?;
    let mut ended = Vec::new();
    for _ in 0..TRIES {
        let (waiter, joined) = match request.attempt(current.as_ref(), &ended).await? {
            JoinAttempt::Started(waiter) => (waiter, false),
            JoinAttempt::Joined(waiter) => (waiter, true),
            JoinAttempt::Ended(key) => {
                let (instance, action) = (&execution.instance, &execution.action);
                if may_be_cached && let Some(result) = cached::look_up(core, instance, action).await? {
                    return Ok(Outcome::Cached(Box::new(result)));
                }
                ended.push(key);
                continue;
            }
        };
        *current = Some(waiter.key().clone());
        drop(current);
        if joined {
            debug!(execution = %waiter.key(), "joined");
            count(Counter::ExecutionsMerged, &[], 1);
        }
        let name = name(waiter.key().clone());
        return Ok(Outcome::Accepted(Box::new(Accepted { name, waiter, joined, merge: Some(merge) })));
    }
    let text = "every execution that could be joined had just ended";
    Err(status::retry(Code::Unavailable, text, RETRY))
}

impl MergeRequest<'_> {
    /// Tries to join the execution stored in the entry, then the one in the index, and otherwise starts a new one.
    async fn attempt(
        &self,
        current: Option<&ExecutionKey>,
        ended: &[ExecutionKey],
    ) -> Result<JoinAttempt, Status> {
        if let Some(key) = current.filter(|key| !ended.contains(key)) {
            match self.core.waiters.join(key, self.role) {
                LocalJoin::Joined(waiter) => return self.confirm_join(waiter).await,
                LocalJoin::Ended => return Ok(JoinAttempt::Ended(key.clone())),
                LocalJoin::NotFollowed => {}
            }
        }
        match self.merge.join_in_index(&self.execution.key(), ended).await {
            Joined::First => {
                write(self.core, self.execution.clone(), self.role).await.map(JoinAttempt::Started)
            }
            Joined::Other(key) => {
                // The gateway that claimed it may have died before writing it, so it is written here
                // if it is missing.
                let same = Execution { id: key.id, ..self.execution.clone() };
                self.confirm_join(write(self.core, same, self.role).await?).await
            }
        }
    }

    /// Ensures that the joined execution continues and is at least as urgent as this request.
    async fn confirm_join(&self, mut waiter: Waiter) -> Result<JoinAttempt, Status> {
        if waiter.known().is_over() {
            return Ok(JoinAttempt::Ended(waiter.key().clone()));
        }
        abandoned::keep_running(&self.core.waiters, &mut waiter).await.map_err(faults::bus)?;
        if let Err(error) = raise(self.core, &mut waiter, self.execution.urgency()).await {
            debug!(execution = %waiter.key(), error = telemetry::error_chain(&error), "urgency not raised");
        }
        // A result that arrived in the meantime is a valid answer, unless the execution was cancelled for
        // lack of waiting clients.
        let known = waiter.known();
        let outcome = known.record().and_then(ExecutionRecord::outcome);
        if known.lost || outcome.is_some_and(|outcome| outcome.code == i32::from(Code::Cancelled)) {
            return Ok(JoinAttempt::Ended(waiter.key().clone()));
        }
        Ok(JoinAttempt::Joined(waiter))
    }
}

/// Writes the first record of `execution` unless it exists.
async fn write(core: &Core, execution: Execution, role: &Role) -> Result<Waiter, Status> {
    let key = execution.key();
    // Subscribe before writing: no event is missed, and the execution ends if its client disconnects in the meantime.
    let waiter = core.waiters.wait(&key, role).await.map_err(faults::bus)?;
    let record = ExecutionRecord::accepted(execution);
    match core.bus.transition(&record, Sequence(0), PATIENCE).await.map_err(faults::bus)? {
        Written::Won(sequence) => waiter.learn(sequence, record),
        Written::Lost(Some(found)) => waiter.learn(found.0, found.1),
        Written::Lost(None) => {
            return Err(status::retry(Code::Unavailable, "the execution could not be accepted", RETRY));
        }
    }
    debug!(execution = %key, "accepted");
    Ok(waiter)
}

/// Raises an execution to `urgency` if it is less urgent.
async fn raise(core: &Core, waiter: &mut Waiter, urgency: Urgency) -> Result<(), bus::BusError> {
    for _ in 0..TRIES {
        let known = waiter.known();
        let Some((sequence, record)) = known.last.filter(|(_, record)| record.outcome().is_none()) else {
            return Ok(());
        };
        if record.urgency() <= urgency {
            return Ok(());
        }
        let raised = record.raised(sequence, urgency, core.bus.now());
        match core.bus.transition(&raised, sequence, PATIENCE).await? {
            Written::Won(sequence) => {
                waiter.learn(sequence, raised);
                count(Counter::ExecutionsRaised, &[], 1);
                return Ok(());
            }
            Written::Lost(Some(now)) => waiter.learn(now.0, now.1),
            Written::Lost(None) => return Ok(()),
        }
    }
    Ok(())
}
