//! The state of an execution, as the log keeps it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, BlobDigest, Execution, ExecutorHome, ExecutorId, Measured, Millis, Sequence};

/// The state of an execution: the last message on its subject. Written by gateways (accepted, cancelled), schedulers
/// (queued again, lost, expired) and executors (finished); the first ACTION_FINISHED wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionRecord {
    /// What was accepted.
    pub execution: Execution,
    /// Which run; 1 is the first.
    pub attempt: Attempt,
    /// Position of ACTION_ACCEPTED: its place in the queue, kept when it is queued again. 0 in ACTION_ACCEPTED itself.
    pub place: Sequence,
    /// When this was written.
    pub at_ms: Millis,
    /// What happened to it so far.
    #[serde(default, skip_serializing_if = "SoFar::is_nothing")]
    pub so_far: SoFar,
    /// Where it stands.
    #[serde(flatten)]
    pub phase: ExecutionPhase,
}

/// Where an execution stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum ExecutionPhase {
    /// It waits for an executor, or one has it.
    #[serde(rename = "ACTION_ACCEPTED")]
    Accepted,
    /// No run of it is left, and none ended it; it waits again.
    #[serde(rename = "ACTION_REQUEUED")]
    Requeued {
        /// What became of the run before.
        reason: String,
        /// Who had it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        executor: Option<ExecutorId>,
    },
    /// It takes long: one copy more of it waits, while the others run on.
    #[serde(rename = "ACTION_HEDGED")]
    Hedged,
    /// One of several copies ended without a success; the others run on.
    #[serde(rename = "ACTION_COPY_ENDED")]
    CopyEnded {
        /// What became of it.
        reason: String,
        /// Who had it.
        executor: ExecutorId,
    },
    /// Someone waits for it to whom it is more urgent.
    #[serde(rename = "ACTION_RAISED")]
    Raised,
    /// It has its result.
    #[serde(rename = "ACTION_FINISHED")]
    Finished(ExecutionOutcome),
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOutcome {
    /// Who ran it, if anyone did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorId>,
    /// The folder in which it ran: what it left warm is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<ExecutorHome>,
    /// `google.rpc.Code` of the execution: 0 when the command ran to its end, whatever its exit code.
    pub code: i32,
    /// What happened, when `code` is not 0; else what the client may show.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Inputs that are not in the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<BlobDigest>,
    /// The command's exit code, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The `ActionResult`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<StoredResult>,
    /// Logs for people, by name: kept in the store when the command was killed, say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_logs: Vec<(String, BlobDigest)>,
    /// What its command used, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

impl ExecutionOutcome {
    /// An end without a run: `code` is a `google.rpc.Code`.
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
        }
    }

    /// Whether the command ran to its end and exited with 0.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.exit_code == Some(0)
    }
}

/// What happened to an execution so far, beyond its attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SoFar {
    /// When it was queued again last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeued_at_ms: Option<Millis>,
    /// Its priority, raised by those who joined it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Bytes of memory it is to have, since it ran out of less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Copies of this attempt that were started beside the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub hedges: u16,
    /// Copies of this attempt, the first among them, that ended without a success.
    #[serde(skip_serializing_if = "is_zero")]
    pub ended: u16,
    /// How one of them ended: what the execution ends with if no copy succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<ExecutionOutcome>>,
    /// Executors that failed it: others are better.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<ExecutorId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &u16) -> bool {
    *count == 0
}

impl SoFar {
    /// Whether nothing happened.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// An encoded `build.bazel.remote.execution.v2.ActionResult`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoredResult {
    /// The message itself, in base64.
    Inline(String),
    /// In the store, because it is large.
    Blob(BlobDigest),
}

impl ExecutionRecord {
    /// The first record of `execution`.
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

    /// Whether it has its result.
    pub fn outcome(&self) -> Option<&ExecutionOutcome> {
        match &self.phase {
            ExecutionPhase::Finished(outcome) => Some(outcome),
            ExecutionPhase::Accepted
            | ExecutionPhase::Requeued { .. }
            | ExecutionPhase::Hedged
            | ExecutionPhase::CopyEnded { .. }
            | ExecutionPhase::Raised => None,
        }
    }

    /// Since when it waits, unless an executor has it.
    pub fn waits_since(&self) -> Millis {
        self.so_far.requeued_at_ms.unwrap_or(self.execution.accepted_at_ms)
    }

    /// Its place in the queue, given the position of this very message.
    pub fn place_at(&self, sequence: Sequence) -> Sequence {
        if self.place == Sequence(0) { sequence } else { self.place }
    }

    /// Lower is sooner: its own, or that of the most urgent who waits for it.
    pub fn priority(&self) -> i32 {
        self.so_far.priority.unwrap_or(self.execution.priority)
    }

    /// Copies of it that wait or run, at most.
    pub fn copies(&self) -> u16 {
        self.so_far.hedges.saturating_add(1).saturating_sub(self.so_far.ended)
    }

    /// The next record, written behind the one at `sequence`: it ended.
    #[must_use]
    pub fn finished(&self, sequence: Sequence, outcome: ExecutionOutcome, now: Millis) -> Self {
        let so_far = SoFar { failure: None, ..self.so_far.clone() };
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::Finished(outcome), now)
    }

    /// The next record: no copy is left, it waits for another executor. What `executor` had counts as an attempt if `counts`.
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
        let mut so_far =
            SoFar { requeued_at_ms: Some(now), hedges: 0, ended: 0, failure: None, ..self.so_far.clone() };
        if counts {
            so_far.shun(executor.as_ref());
        }
        self.followed(sequence, attempt, so_far, ExecutionPhase::Requeued { reason, executor }, now)
    }

    /// The next record: one copy more waits.
    #[must_use]
    pub fn hedged(&self, sequence: Sequence, now: Millis) -> Self {
        let so_far = SoFar { hedges: self.so_far.hedges.saturating_add(1), ..self.so_far.clone() };
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::Hedged, now)
    }

    /// The next record: the copy that `executor` had ended without a success, with `failure` where its command ran.
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
        so_far.shun(Some(&executor));
        if let Some(failure) = failure {
            so_far.failure = Some(Box::new(failure));
        }
        self.followed(sequence, self.attempt, so_far, ExecutionPhase::CopyEnded { reason, executor }, now)
    }

    /// The next record: it is more urgent to someone.
    #[must_use]
    pub fn raised(&self, sequence: Sequence, priority: i32, now: Millis) -> Self {
        let so_far = SoFar { priority: Some(priority), ..self.so_far.clone() };
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

/// Executors that an execution avoids at most: the last ones.
const AVOIDED_MAX: usize = 8;

impl SoFar {
    fn shun(&mut self, executor: Option<&ExecutorId>) {
        let Some(executor) = executor.filter(|executor| !self.avoid.contains(executor)) else { return };
        if self.avoid.len() >= AVOIDED_MAX {
            self.avoid.remove(0);
        }
        self.avoid.push(executor.clone());
    }
}
