//! A build's record: the whole of what is known, carried by every lifecycle message.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, BuildId, BuildKey, BuildResult, Context, Digest, ExecutorType, Group, Millis, Occupancy,
    Priority, Reason, Sequence, ToolCall, WorkerId, WorkspaceKind, WorkspaceUse,
};

/// An accepted build: what was asked, with defaults filled in. Never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Its id.
    pub id: BuildId,
    /// Its quota group.
    pub group: Group,
    /// Its priority.
    pub priority: Priority,
    /// The program and its arguments; empty where it is a job.
    pub command: Vec<String>,
    /// The job that it is, in the place of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<BuildJob>,
    /// Environment variables of the command.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What the workspace holds when the command starts.
    #[serde(default, skip_serializing_if = "Context::is_empty")]
    pub context: Context,
    /// Seconds it may run.
    pub timeout_seconds: u64,
    /// Seconds it may wait.
    pub queue_timeout_seconds: u64,
    /// Seconds that the lease of a run lives without renewal.
    pub lease_ttl_seconds: u64,
    /// Attempts at most.
    pub max_attempts: Attempt,
    /// Globs of the files to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Whether a glob that no kept file matches fails it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_outputs: bool,
    /// Free labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it asks its tool to do, where the request said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolCall>,
    /// Whether it starts in an empty workspace.
    #[serde(default, skip_serializing_if = "WorkspaceUse::is_fresh")]
    pub workspace: WorkspaceUse,
    /// The ESU that it is expected to occupy, for each executor type that it uses.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub occupancy: Occupancy,
    /// The version of the occupancy model that said so; absent: the publisher, or the default of 1 ESU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_by: Option<u64>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// Milliseconds that its run is expected to take; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// When it was accepted.
    pub submitted_at_ms: Millis,
    /// Digest of what was asked: the same id with another digest is another build, and refused.
    pub request_digest: Digest,
    /// W3C trace context of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The job of a build, in the farm's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildJob {
    /// Of its JSON.
    pub digest: Digest,
    /// How many tasks it has.
    pub tasks: u64,
}

impl Build {
    /// The full name.
    pub fn key(&self) -> BuildKey {
        BuildKey { group: self.group.clone(), id: self.id }
    }

    /// What it asks its tool to do.
    pub fn tool_call(&self) -> Cow<'_, ToolCall> {
        match &self.tool {
            Some(tool) => Cow::Borrowed(tool),
            None => Cow::Owned(ToolCall::of_command(&self.command)),
        }
    }

    /// The digest of everything that was asked for, without when and by which trace; before anything is estimated.
    pub(crate) fn content_digest(&self, executor_types: &BTreeSet<ExecutorType>) -> Digest {
        let job = self.job.as_ref().map(|job| &job.digest);
        let asked = (
            (&self.id, &self.group, self.priority, &self.command, job, &self.env, &self.context),
            (
                self.timeout_seconds,
                self.queue_timeout_seconds,
                self.max_attempts,
                &self.outputs,
                &self.labels,
                &self.submitter,
            ),
            (self.lease_ttl_seconds, &self.tool, self.workspace, &self.occupancy, executor_types),
        );
        // Maps of text and numbers always encode.
        let mut content = serde_json::to_vec(&asked).unwrap_or_default();
        if self.require_outputs {
            // Behind the rest: the digests of requests without it are those of earlier versions.
            content.extend_from_slice(b"require_outputs");
        }
        Digest::of(&content)
    }
}

/// The states of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Waits for a workspace.
    Enqueued,
    /// A worker runs it.
    InProgress,
    /// It has its result.
    Finished,
}

impl State {
    /// The public name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enqueued => "ENQUEUED",
            Self::InProgress => "IN_PROGRESS",
            Self::Finished => "FINISHED",
        }
    }
}

/// A build's record. The last lifecycle message of a build *is* its state. Written by the enqueuer,
/// worker, reaper and API by compare-and-set; read by everyone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildRecord {
    /// What was asked.
    #[serde(flatten)]
    pub build: Build,
    /// Which run this speaks of; while enqueued, the coming one.
    pub attempt: Attempt,
    /// When this transition was written.
    pub at_ms: Millis,
    /// How it waits or waited.
    pub queue: Queued,
    /// What happened.
    #[serde(flatten)]
    pub phase: Phase,
}

/// What a lifecycle message says happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum Phase {
    /// The build waits.
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    /// A worker holds its lease and starts it.
    #[serde(rename = "INVOCATION_STARTED")]
    InProgress {
        /// By whom.
        invocation: Invocation,
    },
    /// The build has its result; nothing follows.
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished {
        /// The run that ended, when there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invocation: Option<Invocation>,
        /// How it ended.
        result: Box<BuildResult>,
    },
}

/// How a build waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queued {
    /// Position of the build's first BUILD_ENQUEUED, kept on requeue so that it keeps its place; absent in that
    /// first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sequence: Option<Sequence>,
    /// Since when it waits for this attempt.
    pub enqueued_at_ms: Millis,
    /// When it has waited too long.
    pub expires_at_ms: Millis,
    /// Why it is queued again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// Why a build is queued again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retry {
    /// What ended the last attempt.
    pub reason: Reason,
    /// Who ran it.
    pub worker: WorkerId,
}

/// One run of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Invocation {
    /// Who runs it.
    pub worker: WorkerId,
    /// In which of its workspaces.
    pub workspace: u16,
    /// Revision of the lease at its creation: the fencing number.
    pub lease_revision: u64,
    /// When the worker claimed it.
    pub started_at_ms: Millis,
    /// When the dispatcher picked it, in microseconds since the Unix epoch.
    pub dispatched_at_us: u64,
    /// The position of the event stream up to which the dispatcher had read when it picked it.
    pub dispatched_at_sequence: Sequence,
    /// How its workspace was chosen, when it asked for a warm one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_kind: Option<WorkspaceKind>,
}

impl BuildRecord {
    /// A fresh build that waits.
    pub fn enqueued(build: Build) -> Self {
        let now = build.submitted_at_ms;
        let expires = now.after(std::time::Duration::from_secs(build.queue_timeout_seconds));
        let queue = Queued { first_sequence: None, enqueued_at_ms: now, expires_at_ms: expires, retry: None };
        Self { build, attempt: Attempt::FIRST, at_ms: now, queue, phase: Phase::Enqueued }
    }

    /// The state that the last event leaves the build in.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Enqueued => State::Enqueued,
            Phase::InProgress { .. } => State::InProgress,
            Phase::Finished { .. } => State::Finished,
        }
    }

    /// The run, when one was started.
    pub fn invocation(&self) -> Option<&Invocation> {
        match &self.phase {
            Phase::Enqueued => None,
            Phase::InProgress { invocation } => Some(invocation),
            Phase::Finished { invocation, .. } => invocation.as_ref(),
        }
    }

    /// The result, when there is one.
    pub fn result(&self) -> Option<&BuildResult> {
        match &self.phase {
            Phase::Enqueued | Phase::InProgress { .. } => None,
            Phase::Finished { result, .. } => Some(result),
        }
    }

    /// The record after a worker claimed the build.
    #[must_use]
    pub fn started(&self, invocation: Invocation, position: Sequence) -> Self {
        let mut queue = self.queue.clone();
        queue.first_sequence.get_or_insert(position);
        Self {
            at_ms: invocation.started_at_ms,
            queue,
            phase: Phase::InProgress { invocation },
            ..self.clone()
        }
    }

    /// The record, read at `position`, with its place in the queue: for whoever ends a build that waits.
    #[must_use]
    pub fn placed(mut self, position: Sequence) -> Self {
        if self.phase == Phase::Enqueued {
            self.queue.first_sequence.get_or_insert(position);
        }
        self
    }

    /// The record after the build ended.
    #[must_use]
    pub fn finished(&self, mut result: BuildResult, now: Millis) -> Self {
        result.reason = result.reason.map(Reason::brief);
        let invocation = self.invocation().cloned();
        Self { at_ms: now, phase: Phase::Finished { invocation, result: Box::new(result) }, ..self.clone() }
    }

    /// The record after an attempt was lost and the build waits again, in its old place.
    ///
    /// `counts` is false where nothing went wrong (a worker that was told to drain).
    #[must_use]
    pub fn requeued(&self, retry: Retry, counts: bool, now: Millis) -> Self {
        let queue = Queued {
            first_sequence: self.queue.first_sequence,
            enqueued_at_ms: now,
            expires_at_ms: now.after(std::time::Duration::from_secs(self.build.queue_timeout_seconds)),
            retry: Some(Retry { reason: retry.reason.brief(), ..retry }),
        };
        let attempt = self.attempt.next();
        let mut next = Self { attempt, at_ms: now, queue, phase: Phase::Enqueued, ..self.clone() };
        if !counts {
            next.build.max_attempts = next.build.max_attempts.next();
        }
        next
    }
}
