//! Cancelling an operation: a client says that it wants it no more.
//!
//! An execution may be for several clients, which all have the same operation name for it. It is ended at once if no other
//! client wants it, at any gateway; else it goes on, and ends with the last of them (see [`super::nobody`]). The
//! clients are told apart by the invocation that they name. One that names none is the only one if nobody else ever asked
//! for the execution; otherwise it may be any of those who wait, and they are spared.

use std::time::Duration;

use bus::{BusError, Written};
use model::ExecutionKey;
use tracing::debug;

use super::{
    Core,
    interest::Invocation,
    nobody::{self, PATIENCE, Question},
};

/// How long the other gateways have to say that others want it. A cancellation reaches the process in under 200 ms.
const SILENCE: Duration = Duration::from_millis(100);
const TRIES: u32 = 20;

/// What became of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// It is ended.
    Now,
    /// It had its result before.
    Over,
    /// It goes on for others.
    Wanted,
    /// There is no such execution.
    Unknown,
}

/// Ends `key` as cancelled, unless it has its result or others than `caller` want it.
///
/// As in [`super::nobody`] the end is written only behind the record that was read before the others were asked, so that
/// whoever comes in the meantime is spared.
pub(crate) async fn cancel(
    core: &Core,
    key: &ExecutionKey,
    caller: &Invocation,
) -> Result<Cancelled, BusError> {
    for _ in 0..TRIES {
        let Some((sequence, record)) = core.bus.latest_execution(key).await? else {
            return Ok(Cancelled::Unknown);
        };
        if record.outcome().is_some() {
            return Ok(Cancelled::Over);
        }
        let shared = core.merging.is_enabled() && !record.execution.do_not_cache;
        if shared && is_wanted(core, key, caller).await? {
            debug!(execution = %key, "not cancelled: others want it");
            return Ok(Cancelled::Wanted);
        }
        let ended = nobody::cancelled(&record, sequence, "a client cancelled it", core.bus.now());
        if let Written::Won(_) = core.bus.transition(&ended, sequence, PATIENCE).await? {
            let known = core.waiters.known(key).unwrap_or_default();
            nobody::tell(&core.bus, key, known.executors()).await;
            return Ok(Cancelled::Now);
        }
    }
    Err(BusError::Timeout { what: format!("ending {key}") })
}

/// Whether others than `caller` want it. All gateways are asked at once; those that have nothing to do with it are silent.
async fn is_wanted(core: &Core, key: &ExecutionKey, caller: &Invocation) -> Result<bool, BusError> {
    let mut standing = core.waiters.standing(key, caller).unwrap_or_default();
    if standing.is_wanted() {
        return Ok(true);
    }
    let question = Question::Besides { execution: key.clone(), caller: caller.clone() };
    nobody::ask(&core.waiters, question, SILENCE, |is_another, there| {
        if is_another {
            standing = standing.and(there);
        }
        standing.is_wanted()
    })
    .await
}
