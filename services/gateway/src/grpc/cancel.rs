//! Cancelling an operation: a client no longer wants its result.
//!
//! Several clients may share one execution and its operation name. It ends at once if no other client of any gateway
//! wants it. Otherwise it continues until the last client leaves (see [`super::abandoned`]). Clients are distinguished
//! by their invocation id. A client without an id is the only one if no other request ever asked for the execution.
//! Otherwise it may be any of the waiting clients, so the execution continues.

use std::time::Duration;

use bus::{BusError, Written};
use model::ExecutionKey;
use tracing::debug;

use super::{
    Core,
    abandoned::{self, PATIENCE, Question},
    interest::Invocation,
};

/// Time for the other gateways to answer that a client wants it. A cancellation reaches the process in under 200 ms.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
const TRIES: u32 = 20;

/// The result of a cancellation request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// This call ended the execution.
    Now,
    /// The execution already had its result.
    Over,
    /// The execution continues for other clients.
    Wanted,
    /// The execution does not exist.
    Unknown,
}

/// Ends `key` as cancelled, unless it has a result or clients other than `caller` want it.
///
/// As in [`super::abandoned`], the end is written only if the record that was read before asking the other gateways is
/// still the last one, so a client that arrives in the meantime keeps the execution running.
pub(crate) async fn cancel(
    core: &Core,
    key: &ExecutionKey,
    caller: &Invocation,
) -> Result<Cancelled, BusError> {
    for _ in 0..TRIES {
        let Some((sequence, record)) = core.bus.records().latest(key).await? else {
            return Ok(Cancelled::Unknown);
        };
        if record.outcome().is_some() {
            return Ok(Cancelled::Over);
        }
        let shared = core.merging.is_enabled() && !record.execution.do_not_cache;
        if shared && is_wanted(core, key, caller).await? {
            debug!(execution = %key, "not cancelled: other clients want it");
            return Ok(Cancelled::Wanted);
        }
        let ended = abandoned::cancelled(&record, sequence, "cancelled by a client", core.bus.now());
        if let Written::Won(_) = core.bus.transition(&ended, sequence, PATIENCE).await? {
            service::trace_execution_ended(&core.bus, &ended);
            let known = core.waiters.known(key).unwrap_or_default();
            abandoned::send_cancellation(&core.bus, key, known.executors()).await;
            return Ok(Cancelled::Now);
        }
    }
    Err(BusError::Timeout { what: format!("ending {key}") })
}

/// Whether clients other than `caller` want it. All gateways are asked at once; those that do not follow the
/// execution do not answer.
async fn is_wanted(core: &Core, key: &ExecutionKey, caller: &Invocation) -> Result<bool, BusError> {
    let mut counts = core.waiters.client_counts(key, caller).unwrap_or_default();
    if counts.is_wanted() {
        return Ok(true);
    }
    let question = Question::Besides { execution: key.clone(), caller: caller.clone() };
    abandoned::ask_gateways(&core.waiters, question, ANSWER_TIMEOUT, |is_another, there| {
        if is_another {
            counts = counts.and(there);
        }
        counts.is_wanted()
    })
    .await
}
