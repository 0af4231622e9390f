//! The state of an execution as stored in the event stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, BlobDigest, Execution, ExecutorHome, ExecutorId, Interference, Measured, Millis, Priority,
    Sequence, Urgency,
};

/// State of an execution: the last message on its subject. Written by gateways (accepted, cancelled), schedulers
/// (requeued, lost, expired) and executors (finished); the first ACTION_FINISHED wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionRecord {
    /// The execution as it was accepted.
    pub execution: Execution,
    /// Number of the current attempt; the first is 1.
    pub attempt: Attempt,
    /// Position of ACTION_ACCEPTED, which is the execution's place in the queue and is kept on requeue.
    /// 0 in ACTION_ACCEPTED itself.
    pub place: Sequence,
    /// Time when this record was written.
    pub at_ms: Millis,
    /// History of the execution beyond its attempt number.
    #[serde(default, skip_serializing_if = "SoFar::is_nothing")]
    pub so_far: SoFar,
    /// Phase that this record starts.
    #[serde(flatten)]
    pub phase: ExecutionPhase,
}

/// Phase of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum ExecutionPhase {
    /// It waits for an executor or is claimed by one.
    #[serde(rename = "ACTION_ACCEPTED")]
    Accepted,
    /// The attempt was lost without a result; the execution waits again.
    #[serde(rename = "ACTION_REQUEUED")]
    Requeued {
        /// Why the attempt was lost.
        reason: String,
        /// Executor that had claimed it; absent if it is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        executor: Option<ExecutorId>,
    },
    /// It runs long: an additional copy waits while the others keep running.
    #[serde(rename = "ACTION_HEDGED")]
    Hedged,
    /// One of several copies ended without success; the others keep running.
    #[serde(rename = "ACTION_COPY_ENDED")]
    CopyEnded {
        /// Why the copy ended without success.
        reason: String,
        /// Executor that ran the copy.
        executor: ExecutorId,
    },
    /// A client joined it that is more urgent, by its band or its priority.
    #[serde(rename = "ACTION_RAISED")]
    Raised,
    /// It has a result.
    #[serde(rename = "ACTION_FINISHED")]
    Finished(Box<ExecutionOutcome>),
}

/// Final result of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOutcome {
    /// Executor that ran it; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorId>,
    /// Folder of the executor that ran it, where warm state of the action may remain; absent if none ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<ExecutorHome>,
    /// `google.rpc.Code` of the execution: 0 if the command ran to its end, whatever its exit code.
    pub code: i32,
    /// Error description if `code` is not 0, else an optional message for the client; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Digests of inputs that are missing from the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<BlobDigest>,
    /// Exit code of the command; absent if it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The `ActionResult`; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<StoredResult>,
    /// Server logs by name, stored as blobs, for example when the command was killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_logs: Vec<(String, BlobDigest)>,
    /// Resources that the command used; absent if it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What else happened on the processors of the command; only for executions that ask to be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<Box<Interference>>,
}

impl ExecutionOutcome {
    /// Creates a result without a run; `code` is a `google.rpc.Code`.
    pub fn without_run(code: i32, message: String) -> Self {
        Self {
            executor: None,
            home: None,
            code,
            message,
            missing: Vec::new(),
            exit_code: None,
            result: None,
            server_logs: Vec::new(),
            measured: None,
            interference: None,
        }
    }

    /// Whether the command ran to its end and exited with 0.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.exit_code == Some(0)
    }
}

/// History of an execution beyond its attempt number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SoFar {
    /// Time of the last requeue; absent if it was never requeued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeued_at_ms: Option<Millis>,
    /// Number of times that it was requeued.
    #[serde(skip_serializing_if = "is_zero")]
    pub requeues: u16,
    /// Band raised by joining clients; absent if never raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Priority>,
    /// Priority inside that band, set by joining clients, lower runs sooner; absent if never raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Bytes of memory to grant, since it ran out of a smaller amount; absent if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of copies of this attempt that were started in addition to the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub hedges: u16,
    /// Number of copies of this attempt, including the first, that ended without success.
    #[serde(skip_serializing_if = "is_zero")]
    pub ended: u16,
    /// Failure of one copy, which becomes the result if no copy succeeds; absent if no command failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<ExecutionOutcome>>,
    /// Executors on which it failed and which it avoids; at most the last 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<ExecutorId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &u16) -> bool {
    *count == 0
}

impl SoFar {
    /// Whether the history is empty.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// An encoded `build.bazel.remote.execution.v2.ActionResult` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoredResult {
    /// The encoded message in base64.
    Inline(String),
    /// Digest of the encoded message in the store, for large messages.
    Blob(BlobDigest),
}

impl ExecutionRecord {
    /// Creates the first record of `execution`.
    pub fn accepted(execution: Execution) -> Self {
        let at_ms = execution.accepted_at_ms;
        Self {
            execution,
            attempt: Attempt::FIRST,
            place: Sequence(0),
            at_ms,
            so_far: SoFar::default(),
            phase: ExecutionPhase::Accepted,
        }
    }

    /// The result; absent while the execution waits or runs.
    pub fn outcome(&self) -> Option<&ExecutionOutcome> {
        match &self.phase {
            ExecutionPhase::Finished(outcome) => Some(outcome.as_ref()),
            ExecutionPhase::Accepted
            | ExecutionPhase::Requeued { .. }
            | ExecutionPhase::Hedged
            | ExecutionPhase::CopyEnded { .. }
            | ExecutionPhase::Raised => None,
        }
    }

    /// Start of the current wait: the last requeue, else the acceptance.
    pub fn waits_since(&self) -> Millis {
        self.so_far.requeued_at_ms.unwrap_or(self.execution.accepted_at_ms)
    }

    /// Its place in the queue, given the `sequence` of this record.
    pub fn place_at(&self, sequence: Sequence) -> Sequence {
        if self.place == Sequence(0) { sequence } else { self.place }
    }

    /// Effective order inside its group: its own or that of the most urgent client.
    pub fn urgency(&self) -> Urgency {
        let own = self.execution.urgency();
        Urgency {
            band: self.so_far.band.unwrap_or(own.band),
            priority: self.so_far.priority.unwrap_or(own.priority),
        }
    }

    /// Maximum number of its copies that wait or run.
    pub fn copies(&self) -> u16 {
        self.so_far.hedges.saturating_add(1).saturating_sub(self.so_far.ended)
    }

    /// The record that follows the one at `sequence`: it finished with `outcome`.
    #[must_use]
    pub fn finished(&self, sequence: Sequence, outcome: ExecutionOutcome, now: Millis) -> Self {
        let so_far = SoFar { failure: None, ..self.so_far.clone() };
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::Finished(Box::new(outcome)), now)
    }

    /// The next record after the last copy was lost: the execution waits for another executor. The claim of `executor`
    /// counts as an attempt if `counts` is set.
    #[must_use]
    pub fn requeued(
        &self,
        sequence: Sequence,
        reason: String,
        executor: Option<ExecutorId>,
        counts: bool,
        now: Millis,
    ) -> Self {
        let attempt = if counts { self.attempt.next() } else { self.attempt };
        let mut so_far = SoFar {
            requeued_at_ms: Some(now),
            requeues: self.so_far.requeues.saturating_add(1),
            hedges: 0,
            ended: 0,
            failure: None,
            ..self.so_far.clone()
        };
        if counts {
            so_far.add_avoided(executor.as_ref());
        }
        self.followed(sequence, attempt, so_far, ExecutionPhase::Requeued { reason, executor }, now)
    }

    /// The next record: one additional copy waits.
    #[must_use]
    pub fn hedged(&self, sequence: Sequence, now: Millis) -> Self {
        let so_far = SoFar { hedges: self.so_far.hedges.saturating_add(1), ..self.so_far.clone() };
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::Hedged, now)
    }

    /// The next record: the copy on `executor` ended without success; `failure` is set if its command ran.
    #[must_use]
    pub fn copy_ended(
        &self,
        sequence: Sequence,
        reason: String,
        executor: ExecutorId,
        failure: Option<ExecutionOutcome>,
        now: Millis,
    ) -> Self {
        let mut so_far = SoFar { ended: self.so_far.ended.saturating_add(1), ..self.so_far.clone() };
        so_far.add_avoided(Some(&executor));
        if let Some(failure) = failure {
            so_far.failure = Some(Box::new(failure));
        }
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::CopyEnded { reason, executor }, now)
    }

    /// The next record: a client raised it to `urgency`.
    #[must_use]
    pub fn raised(&self, sequence: Sequence, urgency: Urgency, now: Millis) -> Self {
        let Urgency { band, priority } = urgency;
        let so_far = SoFar { band: Some(band), priority: Some(priority), ..self.so_far.clone() };
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::Raised, now)
    }

    fn followed(
        &self,
        sequence: Sequence,
        attempt: Attempt,
        so_far: SoFar,
        phase: ExecutionPhase,
        now: Millis,
    ) -> Self {
        let (execution, place) = (self.execution.clone(), self.place_at(sequence));
        Self { execution, attempt, place, at_ms: now, so_far, phase }
    }
}

/// Maximum number of executors that an execution avoids; the most recent are kept.
const AVOIDED_MAX: usize = 8;

impl SoFar {
    fn add_avoided(&mut self, executor: Option<&ExecutorId>) {
        let Some(executor) = executor.filter(|executor| !self.avoid.contains(executor)) else { return };
        if self.avoid.len() >= AVOIDED_MAX {
            self.avoid.remove(0);
        }
        self.avoid.push(executor.clone());
    }
}
