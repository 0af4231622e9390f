//! Requests and replies of the request/reply API, HTTP and `--json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BuildId, BuildRecord, Group, Millis, Outcome, Sequence, State, brief};

/// Reply to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreateReply {
    /// The build's id.
    pub id: BuildId,
    /// Its group.
    pub group: Group,
    /// Position of its BUILD_ENQUEUED: watch from here.
    pub sequence: Sequence,
    /// Whether the same build had been accepted before.
    pub duplicate: bool,
}

/// Request of get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetRequest {
    /// Which build.
    pub id: BuildId,
}

/// Reply to get: a build's record and where it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildView {
    /// The state.
    pub state: State,
    /// Position of the last lifecycle message.
    pub sequence: Sequence,
    /// The record.
    #[serde(flatten)]
    pub record: BuildRecord,
}

impl BuildView {
    /// The view of `record`, read at `sequence`.
    pub fn new(sequence: Sequence, record: BuildRecord) -> Self {
        Self { state: record.state(), sequence, record }
    }
}

/// Request of cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Which build.
    pub id: BuildId,
    /// Shown in the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Reply to cancel: the build as it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CancelReply {
    /// False when it had ended before.
    pub cancelled: bool,
    /// The build.
    pub build: BuildView,
}

/// Request of list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// Only builds in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only builds that ended so. With any of the filters, the last 1,000 builds of the group are looked through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Only builds that have all these labels, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Only builds whose id begins so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// At most this many, newest first. Default 50, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reply to list, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListReply {
    /// The builds.
    pub builds: Vec<BuildView>,
    /// Whether there were more, which did not fit one message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Reply to groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupsReply {
    /// Every group that had a build lately.
    pub groups: Vec<Group>,
}

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is not valid; the same request will never be.
    InvalidRequest,
    /// The id is taken by another build.
    Conflict,
    /// There is no such build.
    NotFound,
    /// The service cannot answer now; ask again.
    Unavailable,
}

impl ErrorCode {
    /// The public name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Unavailable => "unavailable",
        }
    }

    /// The HTTP status, also sent as `Nats-Service-Error-Code`.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Conflict => 409,
            Self::NotFound => 404,
            Self::Unavailable => 503,
        }
    }
}

/// Reply of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// For programs.
    pub error: ErrorCode,
    /// For people.
    pub message: String,
}

impl ApiError {
    /// An error of kind `error`.
    pub fn new(error: ErrorCode, message: impl Into<String>) -> Self {
        Self { error, message: brief(message.into()) }
    }
}

/// A plain publish that was refused. Written by the enqueuer to `forebay.build.rejected.<group>` and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// The build's id, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BuildId>,
    /// The `Nats-Msg-Id` of the refused message, as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The subject's group.
    pub group: Group,
    /// The subject it was published to.
    pub subject: String,
    /// For programs.
    pub error: ErrorCode,
    /// For people.
    pub message: String,
    /// Length of the refused message.
    pub size_bytes: u64,
    /// When.
    pub at_ms: Millis,
}
