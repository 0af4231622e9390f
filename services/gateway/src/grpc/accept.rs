//! Putting an execution into the log, or joining one of the same action that waits or runs.

use std::time::Duration;

use bus::Written;
use index::actions::Joined;
use model::{Execution, ExecutionKey, ExecutionRecord, Sequence};
use reapi::{execution::ActionResult, status};
use telemetry::metrics::{Counter, count};
use tonic::{Code, Status};
use tracing::debug;

use super::{
    Core, RETRY, faults,
    interest::Role,
    merging::Door,
    names::OperationName,
    nobody, submit,
    waiting::{Here, Waiter},
};

/// How long an acceptance is tried while the bus is away; a client that waits longer gives up by itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often something to be joined may turn out to have ended.
const TRIES: u32 = 8;

/// An execution that a client waits for.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The name that the client is told.
    pub(crate) name: OperationName,
    pub(crate) waiter: Waiter,
    /// Whether another request began it.
    pub(crate) joined: bool,
    /// Held open for those who come after; none for what is not shared.
    pub(crate) door: Option<Door>,
}

/// A request on its way through a door.
struct Entering<'a> {
    core: &'a Core,
    execution: &'a Execution,
    role: &'a Role,
    door: &'a Door,
}

enum Step {
    Began(Waiter),
    Joined(Waiter),
    /// What was found has ended.
    Over(ExecutionKey),
}

/// What became of an execution that was to be accepted.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is in the log, or what it joined is.
    Accepted(Box<Accepted>),
    /// The action has a result by now.
    Cached(Box<ActionResult>),
}

/// Accepts `execution`, or joins one of the same action that waits or runs. What is found may have ended since a result was
/// looked for: if `may_be_cached`, it is looked for again then.
pub(crate) async fn accept_or_join(
    core: &Core,
    execution: Execution,
    role: &Role,
    may_be_cached: bool,
) -> Result<Outcome, Status> {
    let name = |key| OperationName { instance: execution.instance.clone(), key };
    let Some(door) = core.merging.door(&execution) else {
        let waiter = write(core, execution.clone(), role).await?;
        let name = name(execution.key());
        return Ok(Outcome::Accepted(Box::new(Accepted { name, waiter, joined: false, door: None })));
    };
    let entering = Entering { core, execution: &execution, role, door: &door };
    let busy = |_| status::retry(Code::Unavailable, "another request for the action got no answer", RETRY);
    let mut inside = tokio::time::timeout(PATIENCE, door.enter()).await.map_err(busy)?;
    let mut over = Vec::new();
    for _ in 0..TRIES {
        let (waiter, joined) = match entering.step(inside.as_ref(), &over).await? {
            Step::Began(waiter) => (waiter, false),
            Step::Joined(waiter) => (waiter, true),
            Step::Over(key) => {
                let (instance, action) = (&execution.instance, &execution.action);
                if may_be_cached && let Some(result) = submit::look_up(core, instance, action).await? {
                    return Ok(Outcome::Cached(Box::new(result)));
                }
                over.push(key);
                continue;
            }
        };
        *inside = Some(waiter.key().clone());
        drop(inside);
        if joined {
            debug!(execution = %waiter.key(), "joined");
            count(Counter::ExecutionsMerged, &[], 1);
        }
        let name = name(waiter.key().clone());
        return Ok(Outcome::Accepted(Box::new(Accepted { name, waiter, joined, door: Some(door) })));
    }
    let text = "all that was to be joined had just ended";
    Err(status::retry(Code::Unavailable, text, RETRY))
}

impl Entering<'_> {
    /// Tries to join what was found behind the door, else what the index knows, else begins.
    async fn step(&self, inside: Option<&ExecutionKey>, over: &[ExecutionKey]) -> Result<Step, Status> {
        if let Some(key) = inside.filter(|key| !over.contains(key)) {
            match self.core.waiters.join(key, self.role) {
                Here::Runs(waiter) => return self.settle(waiter).await,
                Here::Over => return Ok(Step::Over(key.clone())),
                Here::Unwatched => {}
            }
        }
        match self.door.ask(&self.execution.key(), over).await {
            Joined::First => write(self.core, self.execution.clone(), self.role).await.map(Step::Began),
            Joined::Other(key) => {
                // Whoever was to write it may never have come to that: no one waits for what is not there.
                let same = Execution { id: key.id, ..self.execution.clone() };
                self.settle(write(self.core, same, self.role).await?).await
            }
        }
    }

    /// Sees to it that what was joined goes on, and is as urgent as this request.
    async fn settle(&self, mut waiter: Waiter) -> Result<Step, Status> {
        if waiter.known().is_over() {
            return Ok(Step::Over(waiter.key().clone()));
        }
        nobody::keep(&self.core.waiters, &mut waiter).await.map_err(faults::bus)?;
        if let Err(error) = raise(self.core, &mut waiter, self.execution.priority).await {
            debug!(execution = %waiter.key(), error = telemetry::error_chain(&error), "not made more urgent");
        }
        // What ended in the meantime is as good an answer as any, unless it was ended because nobody was known to want it.
        let known = waiter.known();
        let outcome = known.record().and_then(ExecutionRecord::outcome);
        if known.lost || outcome.is_some_and(|outcome| outcome.code == i32::from(Code::Cancelled)) {
            return Ok(Step::Over(waiter.key().clone()));
        }
        Ok(Step::Joined(waiter))
    }
}

/// Writes the first record of `execution`, unless it is there.
async fn write(core: &Core, execution: Execution, role: &Role) -> Result<Waiter, Status> {
    let key = execution.key();
    // Before anything is written: from here on nothing is missed, and an execution whose client goes away in the
    // meantime is ended.
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

/// Makes an execution as urgent as `priority`, if it is less.
async fn raise(core: &Core, waiter: &mut Waiter, priority: i32) -> Result<(), bus::BusError> {
    for _ in 0..TRIES {
        let known = waiter.known();
        let Some((sequence, record)) = known.last.filter(|(_, record)| record.outcome().is_none()) else {
            return Ok(());
        };
        if record.priority() <= priority {
            return Ok(());
        }
        let raised = record.raised(sequence, priority, core.bus.now());
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
