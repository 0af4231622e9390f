//! What an event of the Build Event Protocol says, in the form in which Forebay keeps it.

use prost::Message as _;
use prost_types::{Duration, Timestamp};

use crate::{
    EventName,
    bep::{About, BuildEvent, ConfigurationId, Payload, TestResult},
    service::OrderedBuildEvent,
};

/// A fact about a call of a build tool. Times are in milliseconds since 1970 by the clock of the tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The tool was called.
    Started { command: String, version: String, at_ms: Option<i64> },
    /// The targets that the call named, with wildcards.
    Patterns(Vec<String>),
    /// User and machine of the call.
    Workspace { user: Option<String>, host: Option<String> },
    /// A target has a kind, and tags.
    Configured { target: Target, kind: String, test_size: Option<&'static str>, tags: Vec<String> },
    /// A target was built, or failed to build.
    Completed { target: Target, success: bool },
    /// A target was not built, for this reason.
    Aborted { target: Target, reason: &'static str },
    /// One attempt of a test ended.
    Test(TestRun),
    /// All attempts of a test ended.
    TestSummary { target: Target, status: &'static str },
    /// The call of the tool ended.
    Finished { exit_name: String, exit_code: i32, at_ms: Option<i64> },
}

impl Fact {
    /// How the target, test or call that it is about ended.
    pub fn status(&self) -> Option<String> {
        match self {
            Self::Completed { success, .. } => Some(built(*success).to_owned()),
            Self::Aborted { reason, .. } => Some((*reason).to_owned()),
            Self::Test(TestRun { status, .. }) | Self::TestSummary { status, .. } => {
                Some((*status).to_owned())
            }
            Self::Finished { exit_name, .. } => Some(exit_name.clone()),
            Self::Started { .. } | Self::Patterns(_) | Self::Workspace { .. } | Self::Configured { .. } => {
                None
            }
        }
    }
}

/// Status of a target that was completed.
fn built(success: bool) -> &'static str {
    if success { "built" } else { "failed" }
}

/// A target in one configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub label: String,
    /// Id of the configuration; empty if the event does not state it.
    pub configuration: String,
    /// Name of the aspect; empty for the target itself.
    pub aspect: String,
}

/// One attempt of one shard of one run of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    pub target: Target,
    pub run: i32,
    pub shard: i32,
    pub attempt: i32,
    pub status: &'static str,
    pub started_ms: Option<i64>,
    pub duration_ms: Option<i64>,
    /// Whether the result is of an earlier run.
    pub cached: bool,
    /// How it ran, for example `remote` or `linux-sandbox`; empty if the event does not state it.
    pub strategy: String,
    /// Address of its log; empty if there is none.
    pub log: String,
}

/// The fact that `event` states; `None` if it states none that is kept, or is unreadable.
pub fn fact(event: &OrderedBuildEvent) -> Option<Fact> {
    let event = BuildEvent::decode(event.bazel_event()?.value.clone()).ok()?;
    fact_of(event.id?.about?, event.payload?)
}

fn fact_of(about: About, payload: Payload) -> Option<Fact> {
    Some(match (about, payload) {
        (_, Payload::Started(it)) => Fact::Started {
            at_ms: at(it.start_time, it.start_time_millis),
            command: it.command,
            version: it.build_tool_version,
        },
        (About::Pattern(it), Payload::Expanded(_) | Payload::Aborted(_)) => Fact::Patterns(it.pattern),
        (_, Payload::WorkspaceStatus(it)) => {
            let item = |key: &str| it.item.iter().find(|item| item.key == key).map(|item| item.value.clone());
            Fact::Workspace { user: item("BUILD_USER"), host: item("BUILD_HOST") }
        }
        (About::TargetConfigured(id), Payload::Configured(it)) => Fact::Configured {
            target: Target::new(id.label, None, id.aspect),
            kind: it.target_kind,
            test_size: test_size(it.test_size),
            tags: it.tag,
        },
        (About::TargetCompleted(id), Payload::Completed(it)) => Fact::Completed {
            target: Target::new(id.label, id.configuration, id.aspect),
            success: it.success,
        },
        (About::TargetCompleted(id), Payload::Aborted(it)) => Fact::Aborted {
            target: Target::new(id.label, id.configuration, id.aspect),
            reason: abort_reason(it.reason),
        },
        (About::TestResult(id), Payload::TestResult(it)) => Fact::Test(test_run(id, it)),
        (About::TestSummary(id), Payload::TestSummary(it)) => Fact::TestSummary {
            target: Target::new(id.label, id.configuration, String::new()),
            status: test_status(it.overall_status),
        },
        (_, Payload::Finished(it)) => Fact::Finished {
            at_ms: at(it.finish_time, it.finish_time_millis),
            exit_code: it.exit_code.as_ref().map_or(0, |exit| exit.code),
            exit_name: it.exit_code.map(|exit| exit.name).unwrap_or_default(),
        },
        _ => return None,
    })
}

fn test_run(id: crate::bep::TestId, it: TestResult) -> TestRun {
    let log = it.outputs.iter().find(|file| file.name == "test.log").map(|file| file.uri.clone());
    let execution = it.execution.unwrap_or_default();
    TestRun {
        target: Target::new(id.label, id.configuration, String::new()),
        run: id.run,
        shard: id.shard,
        attempt: id.attempt,
        status: test_status(it.status),
        started_ms: at(it.start, it.start_millis),
        duration_ms: lasted(it.duration, it.duration_millis),
        cached: it.cached_locally || execution.cached_remotely,
        strategy: execution.strategy,
        log: log.unwrap_or_default(),
    }
}

impl Target {
    fn new(label: String, configuration: Option<ConfigurationId>, aspect: String) -> Self {
        Self { label, configuration: configuration.map(|it| it.id).unwrap_or_default(), aspect }
    }
}

/// A time in the field of newer tools, or in that of older ones.
fn at(new: Option<Timestamp>, old_ms: i64) -> Option<i64> {
    match new {
        Some(time) => time.seconds.checked_mul(1000)?.checked_add(i64::from(time.nanos) / 1_000_000),
        None => (old_ms > 0).then_some(old_ms),
    }
}

fn lasted(new: Option<Duration>, old_ms: i64) -> Option<i64> {
    match new {
        Some(time) => time.seconds.checked_mul(1000)?.checked_add(i64::from(time.nanos) / 1_000_000),
        None => (old_ms > 0).then_some(old_ms),
    }
}

fn test_size(size: i32) -> Option<&'static str> {
    ["small", "medium", "large", "enormous"].get(usize::try_from(size).ok()?.checked_sub(1)?).copied()
}

/// The names that `build_event_stream.TestStatus` has.
fn test_status(status: i32) -> &'static str {
    match status {
        1 => "passed",
        2 => "flaky",
        3 => "timeout",
        4 => "failed",
        5 => "incomplete",
        6 => "remote_failure",
        7 => "failed_to_build",
        8 => "tool_halted_before_testing",
        _ => "no_status",
    }
}

/// The names that `build_event_stream.Aborted.AbortReason` has.
fn abort_reason(reason: i32) -> &'static str {
    match reason {
        1 => "user_interrupted",
        2 => "time_out",
        3 => "remote_environment_failure",
        4 => "internal",
        5 => "loading_failure",
        6 => "analysis_failure",
        7 => "skipped",
        8 => "no_analyze",
        9 => "no_build",
        10 => "incomplete",
        11 => "out_of_memory",
        _ => "unknown",
    }
}

/// What an event is about, and its label if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub name: EventName,
    pub label: Option<String>,
}

impl Summary {
    /// The summary of `event`; of an unreadable one only that it is one.
    pub fn of(event: &OrderedBuildEvent) -> Self {
        use crate::service::Event;
        let name = match event.event.as_ref().and_then(|event| event.event.as_ref()) {
            Some(Event::BazelEvent(any)) => {
                let about = BuildEvent::decode(any.value.clone()).ok().and_then(|event| event.id?.about);
                return about.map_or(Self { name: EventName::Other, label: None }, Self::about);
            }
            Some(Event::ComponentStreamFinished(_)) => EventName::StreamFinished,
            Some(Event::InvocationAttemptStarted(_)) => EventName::InvocationAttemptStarted,
            Some(Event::InvocationAttemptFinished(_)) => EventName::InvocationAttemptFinished,
            Some(Event::BuildEnqueued(_)) => EventName::BuildEnqueued,
            Some(Event::BuildFinished(_)) => EventName::BuildFinished,
            Some(Event::ConsoleOutput(_)) => EventName::ConsoleOutput,
            Some(Event::BuckEvent(_)) => EventName::BuckEvent,
            Some(Event::BuildExecutionEvent(_) | Event::SourceFetchEvent(_)) | None => EventName::Other,
        };
        Self { name, label: None }
    }

    fn about(about: About) -> Self {
        let (name, label) = match about {
            About::Progress(_) => (EventName::Progress, None),
            About::Started(_) => (EventName::Started, None),
            About::Pattern(_) => (EventName::Pattern, None),
            About::TargetCompleted(id) => (EventName::TargetCompleted, Some(id.label)),
            About::ActionCompleted(_) => (EventName::ActionCompleted, None),
            About::TestSummary(id) => (EventName::TestSummary, Some(id.label)),
            About::TestResult(id) => (EventName::TestResult, Some(id.label)),
            About::Finished(_) => (EventName::BuildFinished, None),
            About::OptionsParsed(_) => (EventName::OptionsParsed, None),
            About::NamedSet(_) => (EventName::NamedSet, None),
            About::WorkspaceStatus(_) => (EventName::WorkspaceStatus, None),
            About::Configuration(_) => (EventName::Configuration, None),
            About::TargetConfigured(id) => (EventName::TargetConfigured, Some(id.label)),
            About::BuildMetrics(_) => (EventName::BuildMetrics, None),
            About::BuildMetadata(_) => (EventName::BuildMetadata, None),
            About::TargetSummary(id) => (EventName::TargetSummary, Some(id.label)),
        };
        Self { name, label }
    }
}
