//! Request and reply of the archive about console output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, BlobDigest, BuildId, Group, InvocationId, OutputStream, Sequence};

/// Request of `forebay.archive.console`: a page of the console output of runs of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleRequest {
    /// The runs whose output is wanted.
    pub of: ConsoleOf,
    /// Number of the piece after which the page starts; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// Runs of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleOf {
    /// Runs of a build, by its id.
    Build(ConsoleOfBuild),
    /// The run with this id.
    Invocation(InvocationId),
}

/// One run or all runs of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleOfBuild {
    /// Quota group of the build.
    pub group: Group,
    /// Id of the build.
    pub id: BuildId,
    /// Number of the attempt; absent: all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
}

/// Reply to `forebay.archive.console`, in the order in which the worker wrote the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleReply {
    /// The pieces, with at most 512 KiB of output.
    pub pieces: Vec<ConsolePiece>,
    /// Number of the last piece if more follow: the `after` of the next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A piece of console output: a message of the event stream, or part of a long one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsolePiece {
    /// Number of the piece; it grows within a build, with gaps.
    pub number: u64,
    /// Position of its message in the event stream.
    pub position: Sequence,
    /// Number of the attempt that wrote it.
    pub attempt: Attempt,
    /// Id of the invocation that wrote it; absent in builds of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<InvocationId>,
    /// Offset of its start in bytes: in its output stream, and of a frame in the whole console output.
    pub offset: u64,
    /// Number of bytes of output that it has.
    pub bytes: u64,
    /// Number of line ends.
    pub lines: u64,
    /// The output, or where it is.
    pub content: ConsoleContent,
}

/// Content of a piece of console output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleContent {
    /// Output of one stream.
    Output {
        /// Output stream that wrote it: `stdout` or `stderr`.
        stream: OutputStream,
        /// The output in base64.
        base64: String,
    },
    /// A frame of the output, which is in the store.
    Frame {
        /// Blob of the store that has the output.
        blob: BlobDigest,
    },
    /// Output that was discarded.
    Dropped {
        /// Output stream that wrote it: `stdout` or `stderr`.
        stream: OutputStream,
        /// Number of bytes; 0 if it was not known.
        bytes: u64,
    },
}
