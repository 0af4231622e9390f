//! The record of a build: its complete state, carried by every lifecycle event.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use invariant::Present as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, BlobDigest, BuildId, BuildKey, BuildLimits, BuildRequirements, BuildResult, Context, Digest,
    ExecutorType, Group, InvocationId, Millis, Occupancy, OutputFile, Priority, Reason, SecretRequest,
    Sequence, ServiceRequest, ToolCall, ToolHints, WorkerId, WorkspaceKind, WorkspaceUse,
};

/// An accepted build: the request with defaults filled in. Never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Id of the build, unique inside its group.
    pub id: BuildId,
    /// Quota group that the build is queued for.
    pub group: Group,
    /// Priority of the build.
    pub priority: Priority,
    /// Program and arguments; empty for a job.
    pub command: Vec<String>,
    /// Job to run; absent for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<BuildJob>,
    /// Environment variables of the command.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Content of the workspace when the command starts.
    #[serde(default, skip_serializing_if = "Context::is_empty")]
    pub context: Context,
    /// Maximum run time in seconds, preparation included.
    pub timeout_seconds: u64,
    /// Maximum wait in the queue in seconds.
    pub queue_timeout_seconds: u64,
    /// Seconds after which the lease of an attempt expires unless it is renewed.
    pub lease_ttl_seconds: u64,
    /// Maximum number of attempts if workers are lost.
    pub max_attempts: Attempt,
    /// Globs, relative to the workspace, of the output files to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Whether the build fails if an output glob matches no kept file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_outputs: bool,
    /// Free-form labels by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Build tool call given in the request; absent: derived from the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolCall>,
    /// What is known of the tool in addition to the request, most of it from earlier builds of the same sources; absent
    /// if nothing is known.
    #[serde(default, skip_serializing_if = "ToolHints::is_empty")]
    pub tool_hints: ToolHints,
    /// Whether the build starts in an empty or a warm workspace.
    #[serde(default, skip_serializing_if = "WorkspaceUse::is_fresh")]
    pub workspace: WorkspaceUse,
    /// Properties that its worker must offer, by name.
    #[serde(default, skip_serializing_if = "BuildRequirements::is_empty")]
    pub requirements: BuildRequirements,
    /// Secrets of its command, by name: no record contains their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRequest>,
    /// Services of its command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRequest>,
    /// Limits on its resources, in addition to those of its worker.
    #[serde(default, skip_serializing_if = "BuildLimits::is_empty")]
    pub limits: BuildLimits,
    /// Expected ESU for each executor type that the build uses.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub occupancy: Occupancy,
    /// Version of the occupancy model that made the estimate; absent if it is the publisher's or the default of 1 ESU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_by: Option<u64>,
    /// Whether the build is expected to run actions on executors; absent if not, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sends_actions: bool,
    /// Submitter given in the request; absent if none was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// Expected run time in milliseconds; absent without an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// Time when the enqueuer accepted the build.
    pub submitted_at_ms: Millis,
    /// Digest of the request. A request with the same id and another digest is a different build and is rejected.
    pub request_digest: Digest,
    /// W3C trace context of the submission; absent if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Job of a build, stored in the farm's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildJob {
    /// Digest of the job's JSON.
    pub digest: Digest,
    /// Size of the job's JSON in bytes; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Number of tasks in the job.
    pub tasks: u64,
}

impl Build {
    pub fn key(&self) -> BuildKey {
        BuildKey { group: self.group.clone(), id: self.id }
    }

    /// The build tool call of the request, else that of the command line, completed with what is known of the tool.
    pub fn tool_call(&self) -> Cow<'_, ToolCall> {
        let mut call = match &self.tool {
            Some(tool) => Cow::Borrowed(tool),
            None => Cow::Owned(ToolCall::of_command(&self.command)),
        };
        if !self.tool_hints.is_empty() {
            self.tool_hints.complete(call.to_mut());
        }
        call
    }

    /// Number of targets that the call of the build tool names; of a job, its tasks.
    pub fn target_count(&self) -> u64 {
        self.job.as_ref().map_or_else(|| self.tool_call().targets.len() as u64, |job| job.tasks)
    }

    /// The digest of everything in the request, without submission time and trace; computed
    /// before anything is estimated.
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
        let mut content = serde_json::to_vec(&asked).present("the content of a request as JSON");
        if self.require_outputs {
            // Appended only if set, so that requests without it keep the digests of earlier versions.
            content.extend_from_slice(b"require_outputs");
        }
        if !self.requirements.is_empty() {
            content.extend(serde_json::to_vec(&self.requirements).present("requirements as JSON"));
        }
        if !self.limits.is_empty() {
            content.extend_from_slice(b"limits");
            content.extend(serde_json::to_vec(&self.limits).present("limits as JSON"));
        }
        if !self.services.is_empty() {
            content.extend_from_slice(b"services");
            content.extend(serde_json::to_vec(&self.services).present("services as JSON"));
        }
        if !self.secrets.is_empty() {
            content.extend_from_slice(b"secrets");
            content.extend(serde_json::to_vec(&self.secrets).present("secrets as JSON"));
        }
        Digest::of(&content)
    }
}

/// State of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// The build waits for a workspace.
    Enqueued,
    /// A worker is running the build.
    InProgress,
    /// The build has its result, which is final.
    Finished,
}

impl State {
    /// Name in messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enqueued => "ENQUEUED",
            Self::InProgress => "IN_PROGRESS",
            Self::Finished => "FINISHED",
        }
    }
}

/// Record of a build. The last lifecycle event of a build *is* its state. Written by the enqueuer, worker, reaper and
/// API with compare-and-set; read by every service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildRecord {
    /// The build as it was accepted.
    #[serde(flatten)]
    pub build: Build,
    /// Number of the current attempt; while enqueued, of the next one.
    pub attempt: Attempt,
    /// Time when this event was written.
    pub at_ms: Millis,
    /// Wait in the queue for this attempt.
    pub queue: Queued,
    /// Phase that this event starts.
    #[serde(flatten)]
    pub phase: Phase,
}

/// Phase of a build, named by its lifecycle event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum Phase {
    /// The build waits in the queue.
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    /// A worker holds the lease and starts the build.
    #[serde(rename = "INVOCATION_STARTED")]
    InProgress {
        /// Worker, workspace and start of the attempt.
        invocation: Invocation,
    },
    /// The build has its result; no event follows.
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished {
        /// Attempt that ended the build; absent if none was running.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invocation: Option<Invocation>,
        /// Result of the build.
        result: Box<BuildResult>,
    },
}

/// Wait of a build in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queued {
    /// Position of the first BUILD_ENQUEUED, which keeps the build's place in the queue on requeue; absent
    /// in that first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sequence: Option<Sequence>,
    /// Time when the wait for this attempt started.
    pub enqueued_at_ms: Millis,
    /// Time after which the build expires in the queue.
    pub expires_at_ms: Millis,
    /// Reason for the last requeue; absent if the build was never requeued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// Why a build was requeued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retry {
    /// Reason why the previous attempt ended.
    pub reason: Reason,
    /// Worker that ran the previous attempt.
    pub worker: WorkerId,
    /// Id of the invocation that ended; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<InvocationId>,
}

/// One attempt of a build on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Invocation {
    /// Id of the invocation; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<InvocationId>,
    /// Worker that runs the attempt.
    pub worker: WorkerId,
    /// Number of the workspace on that worker, from 0.
    pub workspace: u16,
    /// Revision of the lease at its creation: the fencing number.
    pub lease_revision: u64,
    /// Time when the worker claimed the build.
    pub started_at_ms: Millis,
    /// Time when the dispatcher picked the build, in microseconds since the Unix epoch.
    pub dispatched_at_us: u64,
    /// Position in the event stream up to which the dispatcher had read when it picked the build.
    pub dispatched_at_sequence: Sequence,
    /// How the workspace was chosen; absent unless the build asked for a warm one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_kind: Option<WorkspaceKind>,
}

impl BuildRecord {
    /// The first record of a build, which waits.
    pub fn enqueued(build: Build) -> Self {
        let now = build.submitted_at_ms;
        let expires = now.after(std::time::Duration::from_secs(build.queue_timeout_seconds));
        let queue = Queued { first_sequence: None, enqueued_at_ms: now, expires_at_ms: expires, retry: None };
        Self { build, attempt: Attempt::FIRST, at_ms: now, queue, phase: Phase::Enqueued }
    }

    /// The state that corresponds to the phase.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Enqueued => State::Enqueued,
            Phase::InProgress { .. } => State::InProgress,
            Phase::Finished { .. } => State::Finished,
        }
    }

    /// The current or last attempt, if the build started.
    pub fn invocation(&self) -> Option<&Invocation> {
        match &self.phase {
            Phase::Enqueued => None,
            Phase::InProgress { invocation } => Some(invocation),
            Phase::Finished { invocation, .. } => invocation.as_ref(),
        }
    }

    /// The id of the current or last attempt, if the build started.
    pub fn invocation_id(&self) -> Option<InvocationId> {
        self.invocation()?.id
    }

    /// The result, if the build finished.
    pub fn result(&self) -> Option<&BuildResult> {
        match &self.phase {
            Phase::Enqueued | Phase::InProgress { .. } => None,
            Phase::Finished { result, .. } => Some(result),
        }
    }

    /// Blobs that the record names, without those of a folder that is its context ([`BuildRecord::tree`]).
    pub fn blobs(&self) -> Vec<BlobDigest> {
        let job = self.build.job.as_ref().and_then(|job| Some(job.digest.of_size(job.size_bytes?)));
        let result = self.result();
        let report = result.and_then(|result| result.job.as_ref()?.report.as_ref());
        let overflow = result.and_then(|result| result.log.overflow.as_ref());
        let outputs = result.into_iter().flat_map(|result| &result.outputs);
        let files = outputs.chain(overflow).chain(report).map(OutputFile::blob);
        job.into_iter().chain(files).collect()
    }

    /// The folder in the store that is the context of the build.
    pub fn tree(&self) -> Option<BlobDigest> {
        self.build.context.tree()
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

    /// The record, read at `position`, with its place in the queue filled in; used to end a waiting build.
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

    /// The record after an attempt was lost: the build waits again in its old place.
    ///
    /// `counts` is false if the attempt did not fail, for example on a worker that drained.
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
