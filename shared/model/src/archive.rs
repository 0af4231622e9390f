//! Requests and replies of the archive, which keeps builds longer than the bus.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, BuildId, BuildView, ExecutionId, Group, InvocationId, ListRequest, Millis, Outcome, Sequence,
    ToolInvocation, WorkerId,
};

/// Request of `forebay.archive.get`: one build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchivedBuildRequest {
    /// Quota group of the build.
    pub group: Group,
    /// Id of the build inside its group.
    pub id: BuildId,
}

/// Request of `forebay.archive.find`: the builds that an id means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindRequest {
    /// Id of a build, or of one of its invocations.
    pub id: BuildId,
}

/// Reply to `forebay.archive.find`, empty if the archive has no build with this id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FindReply {
    /// The builds with this id, at most one in each group, or the build of the invocation with this id.
    pub builds: Vec<ArchivedBuildRequest>,
}

/// Request of `forebay.archive.list`: builds of one group or of all, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchivedBuildsRequest {
    /// Only builds of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// What the builds must match, where the page starts and how long it is.
    #[serde(default)]
    pub list: ListRequest,
}

/// Request of `forebay.archive.invocation`: one run of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvocationRequest {
    /// Id of the invocation, which the worker generated.
    pub id: InvocationId,
}

/// Reply to `forebay.archive.invocation`: a run of a build, and the build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationReply {
    /// The run that was asked for.
    pub invocation: InvocationView,
    /// The build in its last archived state.
    pub build: BuildView,
}

/// Reply to `forebay.archive.invocations`: all runs of a build, the first one first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationsReply {
    /// The runs of the build by attempt.
    pub invocations: Vec<InvocationView>,
}

/// One run of a build, lost ones included. A field is absent if it is not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationView {
    /// Quota group of the build.
    pub group: Group,
    /// Id of the build.
    pub build: BuildId,
    /// Number of the attempt.
    pub attempt: Attempt,
    /// Id of the invocation; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<InvocationId>,
    /// Worker that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Number of the workspace on that worker, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<u64>,
    /// Fencing number: the revision of its lease at the creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_revision: Option<u64>,
    /// Start of the wait in the queue for this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_at_ms: Option<Millis>,
    /// Time when the worker claimed the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Millis>,
    /// Time when its workspace was ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_at_ms: Option<Millis>,
    /// How it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<InvocationEnd>,
    /// Where its console output is in the event stream, by `stdout` and `stderr`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub console: BTreeMap<String, ConsoleExtent>,
}

/// How a run of a build ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InvocationEnd {
    /// Time of the end.
    pub at_ms: Millis,
    /// Outcome of the build, which ended with it; absent if the build was requeued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Code of the reason; absent if the build succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for people; absent if the build succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Exit code of the command; absent if it did not exit on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
}

/// Where an output of a run is in the event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleExtent {
    /// Position of its first message.
    pub first: Sequence,
    /// Position of its last message.
    pub last: Sequence,
    /// Length of the output on the bus in bytes.
    pub bytes: u64,
}

/// Request of `forebay.archive.actions`: executions of actions that a build sent, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionsRequest {
    /// Only executions of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Build that sent the actions; this, `tool_invocation` or `action` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// Digest of the action, as `HASH/SIZE`: all of its executions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Only actions of this attempt of the build; absent: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Id that the tool gave its call, for example Bazel's `--invocation_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_invocation: Option<String>,
    /// The `next` of an earlier reply; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of executions: 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reply to `forebay.archive.actions`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionsReply {
    /// The executions, the one accepted last first.
    pub actions: Vec<ActionView>,
    /// Cursor of the next page; absent if this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An archived execution of an action. A field is absent if it is not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionView {
    /// Quota group of the execution.
    pub group: Group,
    /// Id of the execution.
    pub id: ExecutionId,
    /// Digest of the action, as `HASH/SIZE`.
    pub action: String,
    /// Target that the action belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Kind of the action, for example `CppCompile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnemonic: Option<String>,
    /// Executor that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Number of the last attempt.
    pub attempt: Attempt,
    /// Number of copies of the last attempt.
    pub copies: u64,
    /// `google.rpc.Code` of the execution; absent until it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// Exit code of its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Time when it was accepted.
    pub accepted_at_ms: Millis,
    /// Time when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at_ms: Option<Millis>,
    /// Time in the queue in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<u64>,
    /// Time to fetch its inputs in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_ms: Option<u64>,
    /// Run time of its command in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ms: Option<u64>,
    /// Time to store its outputs in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_ms: Option<u64>,
}

/// Request of `forebay.archive.tool_invocations`: calls of build tools that published their events, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolInvocationsRequest {
    /// Only calls of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Only calls in this build; absent: of all builds, and calls outside of builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// Only the call with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ToolInvocation>,
    /// The `next` of an earlier reply; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of calls: 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reply to `forebay.archive.tool_invocations`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolInvocationsReply {
    /// The calls, the one whose first event came last first.
    pub tool_invocations: Vec<ToolInvocationView>,
    /// Cursor of the next page; absent if this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A call of a build tool, as its events describe it. A field is absent if no event stated it. Times are of the tool's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolInvocationView {
    /// Quota group of the call.
    pub group: Group,
    /// Id that the tool gave the call, for example Bazel's `--invocation_id`.
    pub id: ToolInvocation,
    /// Build of the farm that made the call; absent for a call from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// Attempt of that build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Command of the tool, for example `test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Targets that the call named, with wildcards, separated by spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patterns: Option<String>,
    /// Version of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// User who called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Machine on which it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Time of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Millis>,
    /// Time of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at_ms: Option<Millis>,
    /// Name of its exit code, for example `SUCCESS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_name: Option<String>,
    /// Exit code of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Number of events that are archived.
    pub events: u64,
    /// Whether the tool completed its stream of events; otherwise it runs, or broke off.
    pub complete: bool,
}

/// Request of `forebay.archive.targets`: the targets of one call of a build tool, by label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetsRequest {
    /// Quota group of the call.
    pub group: Group,
    /// Id that the tool gave the call.
    pub id: ToolInvocation,
    /// Only targets with this status, for example `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// The `next` of an earlier reply; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of targets: 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reply to `forebay.archive.targets`, ordered by label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetsReply {
    /// The targets, each once for every configuration and aspect.
    pub targets: Vec<TargetView>,
    /// Cursor of the next page; absent if this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A target of a call of a build tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetView {
    /// Label of the target.
    pub label: String,
    /// Name of the aspect; absent for the target itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aspect: Option<String>,
    /// Kind of the target, for example `cc_library rule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Size of the test: small, medium, large or enormous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_size: Option<String>,
    /// Tags of the target, separated by spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// `built`, `failed`, or why it was not built, for example `skipped`; absent while it is being built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Result of all attempts of a test, for example `passed` or `flaky`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_status: Option<String>,
}

/// Request of `forebay.archive.tests`: the attempts of the tests of one call of a build tool, by label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestsRequest {
    /// Quota group of the call.
    pub group: Group,
    /// Id that the tool gave the call.
    pub id: ToolInvocation,
    /// Only attempts with this status, for example `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// The `next` of an earlier reply; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of attempts: 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reply to `forebay.archive.tests`, ordered by label, run, shard and attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestsReply {
    /// The attempts of tests.
    pub tests: Vec<TestView>,
    /// Cursor of the next page; absent if this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One attempt of one shard of one run of a test. Times are of the tool's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestView {
    /// Label of the test.
    pub label: String,
    /// Number of the run, from 1.
    pub run: i64,
    /// Number of the shard, from 1.
    pub shard: i64,
    /// Number of the attempt, from 1.
    pub attempt: i64,
    /// How it ended, for example `passed`.
    pub status: String,
    /// Whether the result is of an earlier run.
    pub cached: bool,
    /// Time of its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Millis>,
    /// How long it took in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How it ran, for example `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Address of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// Request of `forebay.archive.test_grid`: results of tests in the last calls of build tools that ran tests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestGridRequest {
    /// Only calls of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Only tests whose label contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Maximum number of calls: 1 to 100; default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<usize>,
}

/// Reply to `forebay.archive.test_grid`: a row for each test, with its result in each of the calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestGridReply {
    /// The calls, the one whose first event came last first.
    pub calls: Vec<TestGridCall>,
    /// The tests by label.
    pub tests: Vec<TestGridRow>,
    /// Whether tests were left out, because a grid has at most 1,000 tests and is made of at most 50,000 attempts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// A call of a build tool that ran tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestGridCall {
    /// Quota group of the call.
    pub group: Group,
    /// Id that the tool gave the call.
    pub id: ToolInvocation,
    /// Build of the farm that made the call; absent for a call from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// Time of the call by the tool's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Millis>,
}

/// The results of one test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestGridRow {
    /// Label of the test.
    pub label: String,
    /// Its results, in the order of the calls; calls that did not run it are absent.
    pub results: Vec<TestGridResult>,
}

/// The result of a test in one call, of all its runs, shards and attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestGridResult {
    /// Number of the call in the list of calls, from 0.
    pub call: usize,
    /// How the test ended: `passed`, `flaky` if it failed before it passed, else the status of the attempt that failed.
    pub status: String,
    /// Whether all of it is the result of an earlier call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// How long its longest attempt took in milliseconds; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// Request of `forebay.archive.history`: past runs of similar builds, or of a task of jobs, by day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryRequest {
    /// Only runs of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// The runs that are compared.
    pub of: HistoryOf,
    /// Number of days back from today: 1 to 365; default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
}

/// Runs that a history compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HistoryOf {
    /// Builds with a label, written `NAME=VALUE`.
    Label(String),
    /// Builds with exactly this command line, its words joined by spaces.
    Command(String),
    /// Tasks of jobs with this id, for example a test.
    Task(String),
    /// Runs of the test with this label, as build tools report them; cached results do not count.
    Test(String),
}

/// Reply to `forebay.archive.history`: figures of past runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryReply {
    /// Figures of all days together.
    pub total: HistoryFigures,
    /// Figures by day in UTC, `YYYY-MM-DD`; days without a run are absent.
    pub days: BTreeMap<String, HistoryFigures>,
    /// Whether older runs were left out, because a history reads at most the last 5,000.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Figures of several runs. Cancelled and expired builds and skipped tasks do not count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct HistoryFigures {
    /// Number of runs that ended.
    pub runs: u64,
    /// Number of runs that succeeded.
    pub passed: u64,
    /// Share of the runs that succeeded, 0 to 1.
    pub pass_rate: f64,
    /// Share of the runs whose result differs from that of the run before it, 0 to 1: flaky ones change often.
    pub flip_rate: f64,
    /// Half of the runs took at most so many milliseconds.
    pub p50_ms: u64,
    /// 95 of 100 runs took at most so many milliseconds.
    pub p95_ms: u64,
}

/// Reply to `forebay.archive.status`: how far the archive has read, and what it lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchiveStatus {
    /// The streams that are archived, by name.
    pub streams: BTreeMap<String, ArchivedStream>,
    /// Ranges of positions that were gone from their stream before they could be archived.
    pub gaps: Vec<ArchiveGap>,
    /// The last messages that could not be archived, at most 100.
    pub set_aside: Vec<SetAsideMessage>,
}

/// How far a stream is archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivedStream {
    /// Position of the last archived message.
    pub position: Sequence,
    /// Time when that message was stored on the bus.
    pub at_ms: Millis,
}

/// Positions of a stream that are not in the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchiveGap {
    /// Name of the stream.
    pub stream: String,
    /// First position that is missing.
    pub first: Sequence,
    /// Last position that is missing.
    pub last: Sequence,
}

/// A message that could not be archived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetAsideMessage {
    /// Name of the stream.
    pub stream: String,
    /// Position of the message in that stream.
    pub position: Sequence,
    /// Subject of the message.
    pub subject: String,
    /// Why it could not be archived.
    pub reason: String,
}

impl ListRequest {
    /// Whether only the archive can answer: it asks for more than the index knows.
    pub fn is_for_archive(&self) -> bool {
        let more =
            [self.submitter.is_some(), self.text.is_some(), self.cursor.is_some(), self.priority.is_some()];
        more.contains(&true)
            || self.since_ms.is_some()
            || self.until_ms.is_some()
            || !self.requirements.is_empty()
    }
}
