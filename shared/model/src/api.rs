//! Requests and replies of the request/reply API, HTTP and `--json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BuildId, BuildRecord, Group, Millis, Outcome, Priority, Sequence, State, brief};

/// Reply to `create`: the build as accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreateReply {
    /// Id of the build, unique inside its group.
    pub id: BuildId,
    /// Quota group of the build.
    pub group: Group,
    /// Position of the build's BUILD_ENQUEUED in the event stream; start watching here.
    pub sequence: Sequence,
    /// Whether a build with the same id and content was accepted before; this call then changed nothing.
    pub duplicate: bool,
}

/// Request of `get`: one build by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetRequest {
    /// Id of the build to read.
    pub id: BuildId,
}

/// Reply to `get`: the record of a build, its state and its position in the event stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildView {
    /// Current state of the build: `ENQUEUED`, `IN_PROGRESS` or `FINISHED`.
    pub state: State,
    /// Position of the build's last lifecycle event in the event stream.
    pub sequence: Sequence,
    /// Record carried by that last lifecycle event.
    #[serde(flatten)]
    pub record: BuildRecord,
}

impl BuildView {
    /// Creates the view of a `record` that was read at `sequence`.
    pub fn new(sequence: Sequence, record: BuildRecord) -> Self {
        Self { state: record.state(), sequence, record }
    }
}

/// Request of `cancel`: ends one build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Id of the build to cancel.
    pub id: BuildId,
    /// Reason shown in the build's result. Default: `cancelled on request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Optional body of the HTTP call that cancels a build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    /// Reason shown in the build's result.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Reply to `cancel`: the build in its final state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CancelReply {
    /// Whether this call cancelled the build; false if it had already finished.
    pub cancelled: bool,
    /// The build in its final state.
    pub build: BuildView,
}

/// Request of `list`: builds of one group, newest first. All filters that are given must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// Only builds in this state; absent: any state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only builds with this outcome; absent: any outcome. Without an archive, only the last 1,000 builds of
    /// the group are searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Only builds that have all these labels with these values; empty: any labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Only builds whose id starts with this text; absent: any id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Maximum number of builds to return, newest first: 1 to 1,000; default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only builds of this priority; absent: any priority. This and the following need an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Only builds of this submitter; absent: of any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// Only builds submitted at this time or later; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// Only builds submitted before this time; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<Millis>,
    /// Only builds that require all these properties with these values of their worker; empty: any requirements.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requirements: BTreeMap<String, String>,
    /// Only builds whose id, group, submitter, command or labels contain this text, in any case: 3 to 200
    /// characters; absent: any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The `next` of an earlier reply, for the builds that follow it; absent: the newest builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Reply to `list`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListReply {
    /// The matching builds, newest first.
    pub builds: Vec<BuildView>,
    /// Whether further matching builds were left out to which `next` does not lead: they do not fit into one message,
    /// there is no archive to ask, or the archive has not read them yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Cursor of the older builds that match; absent if there are none, or no archive to ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Reply to `groups`: the known quota groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupsReply {
    /// Every group with a build in the retained event stream.
    pub groups: Vec<Group>,
}

/// Kind of error of an API call, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is invalid; retrying the same request cannot succeed (HTTP 400).
    InvalidRequest,
    /// The id belongs to a build with different content (HTTP 409).
    Conflict,
    /// The build does not exist or is no longer retained (HTTP 404).
    NotFound,
    /// The credentials of the request are missing or not accepted (HTTP 401).
    Unauthenticated,
    /// The caller has no right to this (HTTP 403).
    PermissionDenied,
    /// A limit is reached; retry after the time that the error names (HTTP 429).
    LimitReached,
    /// The service cannot answer now; retry later (HTTP 503).
    Unavailable,
}

impl ErrorCode {
    /// Name in messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::LimitReached => "limit_reached",
            Self::Unavailable => "unavailable",
        }
    }

    /// HTTP status code, also sent as `Nats-Service-Error-Code`.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Conflict => 409,
            Self::NotFound => 404,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::LimitReached => 429,
            Self::Unavailable => 503,
        }
    }
}

/// Reply of an API call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the error, for programs.
    pub error: ErrorCode,
    /// Description of the error, for people.
    pub message: String,
    /// Seconds after which the same request may succeed, if a limit is reached; also in the header `Retry-After` of HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}

impl ApiError {
    pub fn new(error: ErrorCode, message: impl Into<String>) -> Self {
        Self { error, message: brief(message.into()), retry_after_seconds: None }
    }

    /// The error of a limit that is reached.
    pub fn limit_reached(message: impl Into<String>, retry_after_seconds: u64) -> Self {
        let retry_after_seconds = Some(retry_after_seconds);
        Self { retry_after_seconds, ..Self::new(ErrorCode::LimitReached, message) }
    }
}

/// A plain publish that was rejected. Written by the enqueuer to `forebay.build.rejected.<group>` and retained there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// Id of the build; absent if the message does not contain a readable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BuildId>,
    /// `Nats-Msg-Id` header of the rejected message, unchanged; absent if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Quota group named by the subject.
    pub group: Group,
    /// Subject that the message was published to.
    pub subject: String,
    /// Kind of the error, for programs.
    pub error: ErrorCode,
    /// Why the message was rejected, for people.
    pub message: String,
    /// Length of the rejected message in bytes.
    pub size_bytes: u64,
    /// Time of the rejection.
    pub at_ms: Millis,
}
