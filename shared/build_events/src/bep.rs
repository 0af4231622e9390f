//! The parts of the Build Event Protocol (`build_event_stream.proto` of Bazel) that Forebay reads. Times of Bazel before 5
//! are in fields of their own, in milliseconds.

use prost::{Message, Oneof};
use prost_types::{Duration, Timestamp};

/// An event of the Build Event Protocol.
#[derive(Clone, PartialEq, Message)]
pub struct BuildEvent {
    #[prost(message, optional, tag = "1")]
    pub id: Option<Id>,
    #[prost(bool, tag = "20")]
    pub last_message: bool,
    #[prost(oneof = "Payload", tags = "3, 4, 5, 6, 8, 9, 10, 13, 14, 16, 18, 24, 26")]
    pub payload: Option<Payload>,
}

/// What an event is about.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Id {
    #[prost(oneof = "About", tags = "2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 22, 24, 26")]
    pub about: Option<About>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum About {
    #[prost(message, tag = "2")]
    Progress(Nothing),
    #[prost(message, tag = "3")]
    Started(Nothing),
    #[prost(message, tag = "4")]
    Pattern(Patterns),
    #[prost(message, tag = "5")]
    TargetCompleted(TargetId),
    #[prost(message, tag = "6")]
    ActionCompleted(Nothing),
    #[prost(message, tag = "7")]
    TestSummary(SummaryId),
    #[prost(message, tag = "8")]
    TestResult(TestId),
    #[prost(message, tag = "9")]
    Finished(Nothing),
    #[prost(message, tag = "12")]
    OptionsParsed(Nothing),
    #[prost(message, tag = "13")]
    NamedSet(Nothing),
    #[prost(message, tag = "14")]
    WorkspaceStatus(Nothing),
    #[prost(message, tag = "15")]
    Configuration(Nothing),
    #[prost(message, tag = "16")]
    TargetConfigured(TargetId),
    #[prost(message, tag = "22")]
    BuildMetrics(Nothing),
    #[prost(message, tag = "24")]
    BuildMetadata(Nothing),
    #[prost(message, tag = "26")]
    TargetSummary(SummaryId),
}

/// A message whose fields are not read.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Patterns {
    #[prost(string, repeated, tag = "1")]
    pub pattern: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigurationId {
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Id of a configured or completed target.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetId {
    #[prost(string, tag = "1")]
    pub label: String,
    #[prost(string, tag = "2")]
    pub aspect: String,
    #[prost(message, optional, tag = "3")]
    pub configuration: Option<ConfigurationId>,
}

/// Id of the summary of a test or target.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SummaryId {
    #[prost(string, tag = "1")]
    pub label: String,
    #[prost(message, optional, tag = "2")]
    pub configuration: Option<ConfigurationId>,
}

/// Id of one attempt of a test.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TestId {
    #[prost(string, tag = "1")]
    pub label: String,
    #[prost(int32, tag = "2")]
    pub run: i32,
    #[prost(int32, tag = "3")]
    pub shard: i32,
    #[prost(int32, tag = "4")]
    pub attempt: i32,
    #[prost(message, optional, tag = "5")]
    pub configuration: Option<ConfigurationId>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    #[prost(message, tag = "3")]
    Progress(Progress),
    #[prost(message, tag = "4")]
    Aborted(Aborted),
    #[prost(message, tag = "5")]
    Started(Started),
    #[prost(message, tag = "6")]
    Expanded(Nothing),
    #[prost(message, tag = "8")]
    Completed(TargetComplete),
    #[prost(message, tag = "9")]
    TestSummary(TestSummary),
    #[prost(message, tag = "10")]
    TestResult(TestResult),
    #[prost(message, tag = "13")]
    OptionsParsed(Nothing),
    #[prost(message, tag = "14")]
    Finished(Finished),
    #[prost(message, tag = "16")]
    WorkspaceStatus(WorkspaceStatus),
    #[prost(message, tag = "18")]
    Configured(TargetConfigured),
    #[prost(message, tag = "24")]
    BuildMetrics(Nothing),
    #[prost(message, tag = "26")]
    BuildMetadata(Nothing),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Progress {
    #[prost(string, tag = "1")]
    pub stdout: String,
    #[prost(string, tag = "2")]
    pub stderr: String,
}

/// Stands in for an announced event that does not come.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Aborted {
    #[prost(int32, tag = "1")]
    pub reason: i32,
    #[prost(string, tag = "2")]
    pub description: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Started {
    #[prost(string, tag = "1")]
    pub uuid: String,
    #[prost(int64, tag = "2")]
    pub start_time_millis: i64,
    #[prost(message, optional, tag = "9")]
    pub start_time: Option<Timestamp>,
    #[prost(string, tag = "3")]
    pub build_tool_version: String,
    #[prost(string, tag = "5")]
    pub command: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkspaceStatus {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Item {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetConfigured {
    #[prost(string, tag = "1")]
    pub target_kind: String,
    /// 1: small, 2: medium, 3: large, 4: enormous.
    #[prost(int32, tag = "2")]
    pub test_size: i32,
    #[prost(string, repeated, tag = "3")]
    pub tag: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetComplete {
    #[prost(bool, tag = "1")]
    pub success: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct TestResult {
    #[prost(int32, tag = "5")]
    pub status: i32,
    #[prost(bool, tag = "4")]
    pub cached_locally: bool,
    #[prost(int64, tag = "6")]
    pub start_millis: i64,
    #[prost(message, optional, tag = "10")]
    pub start: Option<Timestamp>,
    #[prost(int64, tag = "3")]
    pub duration_millis: i64,
    #[prost(message, optional, tag = "11")]
    pub duration: Option<Duration>,
    #[prost(message, repeated, tag = "2")]
    pub outputs: Vec<File>,
    #[prost(message, optional, tag = "8")]
    pub execution: Option<ExecutionInfo>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExecutionInfo {
    #[prost(string, tag = "2")]
    pub strategy: String,
    #[prost(bool, tag = "6")]
    pub cached_remotely: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct File {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uri: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TestSummary {
    #[prost(int32, tag = "5")]
    pub overall_status: i32,
    #[prost(int32, tag = "1")]
    pub total_run_count: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Finished {
    #[prost(message, optional, tag = "3")]
    pub exit_code: Option<ExitCode>,
    #[prost(int64, tag = "2")]
    pub finish_time_millis: i64,
    #[prost(message, optional, tag = "5")]
    pub finish_time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExitCode {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "2")]
    pub code: i32,
}
