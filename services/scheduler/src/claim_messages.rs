//! Requests of executors for work and their answers, with records as they are stored.

use bus::{Answering, Plain, Subject};
use model::{ClaimRequest, ExecutionKey, Resources, Sequence};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

/// A request as it is sent, answered with records as they are stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Asked(pub(crate) ClaimRequest);

impl Plain for Asked {
    const NAME: &'static str = <ClaimRequest as Plain>::NAME;
    type To = ();
    type Answer = Reply;

    fn subject(to: &()) -> Subject {
        <ClaimRequest as Plain>::subject(to)
    }
}

bus::message!(Asked, Reply);

/// A request that has not been answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: ClaimRequest,
    pub(crate) answering: Answering<Asked>,
    pub(crate) came: Instant,
}

impl Pending {
    /// Whether the executor has stopped waiting for the answer.
    pub(crate) fn is_late(&self) -> bool {
        self.came.elapsed() > ClaimRequest::PATIENCE
    }
}

/// Same as `model::ClaimReply`, with the records as they are stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) claimed: Vec<Claimed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) trim: Vec<ExecutionKey>,
    pub(crate) waiting: u64,
}

/// Same as `model::Claimed`, with the record as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claimed {
    pub(crate) record: Box<RawValue>,
    pub(crate) sequence: Sequence,
    pub(crate) size: Resources,
}
