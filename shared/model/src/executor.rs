//! What schedulers, executors and gateways say to each other.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ExecutionKey, ExecutionRecord, ExecutorId, Millis, PoolName, Sequence};

/// What the executors of a pool offer. In the settings bucket under `pool.<name>`, written by each executor at its
/// start: what stands there is known, even when no executor lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Platform properties that an action may ask for, with the values on offer.
    pub properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is the action's `/`.
    #[serde(default)]
    pub root_is_input: bool,
}

/// An executor says that it lives, what runs and what is free. Plain message to any scheduler; also the content of its
/// lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorHeartbeat {
    /// Who; a restarted executor has a new id.
    pub executor: ExecutorId,
    /// Its pool.
    pub pool: PoolName,
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Since when it runs.
    pub started_at_ms: Millis,
    /// Whether it takes offers.
    pub status: ExecutorStatus,
    /// Actions it runs at a time.
    pub slots: u16,
    /// What it has in hand.
    pub running: Vec<ExecutionKey>,
    /// Milliseconds after which it counts as gone.
    pub ttl_ms: u64,
}

/// Whether an executor takes offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorStatus {
    /// It does.
    Ready,
    /// It finishes what runs and takes nothing new.
    Draining,
    /// It goes away now; what it had in hand is free.
    Gone,
}

/// Executions handed to one executor in one message. Request, scheduler to executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOffers {
    /// The executions.
    pub offers: Vec<ExecutionOffer>,
}

/// One execution handed to one executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOffer {
    /// Its last record.
    pub record: ExecutionRecord,
    /// The position of that record.
    pub sequence: Sequence,
    /// When the offer is void.
    pub deadline_ms: Millis,
}

/// Reply to [`ExecutionOffers`], in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOfferReply {
    /// One verdict an offer.
    pub verdicts: Vec<ExecutionVerdict>,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionVerdict {
    /// The executor has it in hand.
    Taken,
    /// No slot is free, or the executor drains: elsewhere.
    Busy,
}

/// An order to one executor. Plain message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum ExecutorControl {
    /// The execution ended without this executor: kill its processes.
    Cancel {
        /// Which.
        execution: ExecutionKey,
    },
    /// Take nothing new.
    Drain,
    /// Take executions again.
    Resume,
}

/// What an executor is doing with an execution. Plain message on the execution's live subject, told apart from the
/// stored ones by a header; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionProgress {
    /// Who.
    pub executor: ExecutorId,
    /// What.
    pub stage: ExecutionStage,
    /// Since when.
    pub at_ms: Millis,
}

/// What an executor is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStage {
    /// It fetches the inputs.
    Fetching,
    /// The command runs.
    Running,
    /// It keeps the outputs.
    Uploading,
}

/// Asks an executor for live output of an execution. Request to the executor; the reply waits until there is some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputRequest {
    /// Which.
    pub execution: ExecutionKey,
    /// `stdout` or `stderr`.
    pub stream: crate::OutputStream,
    /// From which byte on.
    pub offset: u64,
}

/// Reply to [`LiveOutputRequest`]; the bytes follow as the message's payload in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputReply {
    /// Bytes from the offset on, in base64; empty when nothing came for a while.
    pub data: String,
    /// Whether the command has ended and these are the last.
    pub complete: bool,
}
