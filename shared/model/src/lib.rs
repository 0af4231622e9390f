//! The nouns of Forebay: ids, requests, records, results and the messages made of them. No I/O.
//!
//! A message type is defined here, once; `bus` gives it a subject and an encoding.

mod api;
mod blob;
mod digest;
mod endpoints;
mod execution;
mod executor;
mod ids;
mod record;
mod request;
mod result;
mod validate;
mod worker;

pub use api::{
    ApiError, BuildView, CancelReply, CancelRequest, CreateReply, ErrorCode, GetRequest, GroupsReply,
    ListReply, ListRequest, Rejection,
};
pub use blob::{BlobDigest, BlobHasher, DigestFunction, ParseBlobDigestError};
pub use digest::{Digest, ParseDigestError};
pub use endpoints::Endpoints;
pub use execution::{
    ClientTool, Execution, ExecutionId, ExecutionKey, ExecutionOutcome, ExecutionPhase, ExecutionRecord,
    StoredResult,
};
pub use executor::{
    ExecutionOffer, ExecutionOfferReply, ExecutionOffers, ExecutionProgress, ExecutionStage,
    ExecutionVerdict, ExecutorControl, ExecutorHeartbeat, ExecutorStatus, LiveOutputReply, LiveOutputRequest,
    Pool,
};
pub use ids::{
    Attempt, BuildId, BuildKey, ExecutorId, Group, Millis, ParseIdError, PoolName, Priority, Sequence,
    WorkerId, Workspace,
};
pub use record::{Build, BuildRecord, Invocation, Phase, Queued, Retry, State};
pub use request::{BuildRequest, Context, RequestLimits};
pub use result::{BuildResult, LogSummary, Outcome, OutputFile, OutputStream, Reason, ReasonCode, brief};
pub use validate::InvalidRequest;
pub use worker::{
    Control, Heartbeat, Offer, OfferReply, OfferVerdict, Offers, ToolEvent, WorkerStatus, WorkerView,
    WorkspaceState,
};
