//! Replies to executors that asked for work.

use std::collections::HashSet;

use index::actions::{Committed, Heads};
use model::{ClaimNotice, ClaimRequest, ClaimedAt, Demand};
use policy::actions::Grant;
use serde_json::value::RawValue;
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::{
    Shared,
    claim_messages::{Claimed, Pending, Reply},
    reserve,
};

/// A decision of a pass, before it is committed.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Index of the request in the list of open requests.
    pub(crate) ask: usize,
    pub(crate) demand: Demand,
    pub(crate) grant: Grant,
}

/// Sends each executor in `open` its claims. If another scheduler committed first and an executor got nothing for that
/// reason, its request stays in `open` for the next round, unless this is the `last` one.
pub(crate) async fn answer(
    shared: &Shared,
    open: &mut Vec<Pending>,
    granted: &[Granted],
    committed: Vec<Committed>,
    heads: &Heads,
    last: bool,
) {
    let held: HashSet<usize> = committed.iter().map(|it| it.grant).collect();
    let mut left = Vec::new();
    for (at, pending) in open.drain(..).enumerate() {
        let own: Vec<(&Granted, &Committed)> = committed
            .iter()
            .filter_map(|it| Some((granted.get(it.grant)?, it)))
            .filter(|(granted, _)| granted.ask == at)
            .collect();
        let overtaken = granted.iter().enumerate().any(|(index, it)| it.ask == at && !held.contains(&index));
        if own.is_empty() && overtaken && !last {
            left.push(pending);
            continue;
        }
        reply(shared, pending, &own, heads).await;
    }
    crash_point(Step::ActionClaimsAnswered);
    *open = left;
}

/// Replies to all of `open` that they get nothing now.
pub(crate) async fn nothing(shared: &Shared, open: Vec<Pending>, heads: &Heads) {
    for pending in open {
        reply(shared, pending, &[], heads).await;
    }
}

/// Replies that nothing waits, without a read of the index.
pub(crate) async fn empty(pending: Pending) {
    count(Counter::ExecutionClaims, &[(Label::Verdict, "quiet")], 1);
    let Pending { request, answering, .. } = pending;
    answering.send(&Reply { trim: request.reserved, ..Reply::default() }).await;
}

async fn reply(shared: &Shared, pending: Pending, own: &[(&Granted, &Committed)], heads: &Heads) {
    let Pending { request, answering, .. } = pending;
    let claimed: Vec<Claimed> = own
        .iter()
        .filter_map(|(granted, committed)| {
            let record = record(committed)?;
            Some(Claimed { record, sequence: committed.sequence, size: granted.grant.size.clone() })
        })
        .collect();
    let pool = heads.pools.iter().find(|head| head.pool == request.pool);
    let waiting = pool.map_or(0, |head| head.waiting).saturating_sub(claimed.len() as u64);
    let trim = request.reserved.iter().filter(|key| heads.ended.contains(key)).cloned().collect();
    let verdict = if claimed.is_empty() { "nothing" } else { "claimed" };
    count(Counter::ExecutionClaims, &[(Label::Verdict, verdict)], 1.max(claimed.len() as u64));
    // If the answer is lost, the executor reports its executions and asks again.
    answering.send(&Reply { claimed, trim, waiting }).await;
    note(shared, &request, own).await;
}

/// Records how full the executor is now, and notifies the other schedulers that serve the pool's executors.
async fn note(shared: &Shared, request: &ClaimRequest, own: &[(&Granted, &Committed)]) {
    let mut free = request.free.clone();
    let mut starts = request.starts;
    for (granted, _) in own.iter().filter(|(granted, _)| !granted.grant.ahead) {
        free.take(&granted.grant.size);
        starts = starts.saturating_sub(1);
    }
    let claimed_at = |(granted, committed): &(&Granted, &Committed)| ClaimedAt {
        execution: granted.grant.key.clone(),
        sequence: committed.sequence,
    };
    let claimed = own.iter().map(claimed_at).collect();
    let notice = ClaimNotice { executor: request.executor.clone(), free, starts, claimed };
    let trim = shared.view.note_answer(&notice);
    reserve::trim(shared, trim).await;
    if shared.view.members(&request.pool).len() > 1
        && let Err(error) = shared.context.bus.send(&(), &notice).await
    {
        debug!(error = telemetry::error_chain(&error), "cannot notify other schedulers of an answer");
    }
}

/// The record as JSON; `None` if it is not valid JSON, which only a fault of Redis can cause.
fn record(committed: &Committed) -> Option<Box<RawValue>> {
    let read = RawValue::from_string(committed.record.clone());
    read.inspect_err(|error| warn!(%error, "cannot read a record in Redis; the execution is not claimed"))
        .ok()
}
