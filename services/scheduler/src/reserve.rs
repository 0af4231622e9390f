//! Notifies executors of waiting executions: a few executors at once, those where it is warm first. A reservation gives
//! no right; an executor with room has to ask for the execution.

use std::{collections::HashMap, time::Duration};

use index::actions::Open;
use invariant::{Present as _, impossible};
use model::{ActionKeys, ExecutionKey, ExecutorId, Reservation, Reservations, Sequence};
use policy::{Random, actions::route};
use tracing::debug;

use crate::{Shared, learned::turn};

/// An execution that has just started to wait.
pub(crate) struct NewlyWaiting<'a> {
    pub(crate) key: &'a ExecutionKey,
    pub(crate) place: Sequence,
    /// Position of its last record.
    pub(crate) sequence: Sequence,
    pub(crate) keys: &'a ActionKeys,
    pub(crate) open: &'a Open,
}

/// Messages to send, by executor.
type MessagesByExecutor = HashMap<ExecutorId, Reservations>;

/// Notifies executors of the executions in `fresh`.
pub(crate) async fn reserve(shared: &Shared, fresh: &[NewlyWaiting<'_>]) {
    let mut messages = MessagesByExecutor::new();
    for execution in fresh {
        choose(shared, execution, &mut messages);
    }
    send(shared, messages).await;
}

fn choose(shared: &Shared, fresh: &NewlyWaiting<'_>, messages: &mut MessagesByExecutor) {
    let candidates = shared.view.candidates(&fresh.open.pool);
    let demand = &fresh.open.demand;
    let warm = if shared.routing.affinity { shared.learned.homes(fresh.keys) } else { Vec::new() };
    let mut random = Random::new(shared.next_seed());
    let chosen = route(demand.asked(), &warm, &demand.avoid, &candidates, shared.routing, &mut random);
    let delay = shared.probe_delay_ms;
    let mut notified = Vec::with_capacity(chosen.len());
    let mut at_warm = 0;
    for (rank, index) in chosen.into_iter().enumerate() {
        let Some(candidate) = candidates.get(index) else {
            impossible!("the chosen executor {index} is not among {} candidates", candidates.len());
            continue;
        };
        let reservation = Reservation {
            execution: fresh.key.clone(),
            turn: turn(demand.priority, fresh.place),
            after_ms: delay.saturating_mul(rank as u64),
        };
        messages.entry(candidate.executor.clone()).or_default().reserve.push(reservation);
        notified.push(candidate.executor.clone());
        at_warm += usize::from(warm.contains(&candidate.home));
    }
    // The first ones are those where it is warm, unless chance chose one of them again.
    shared.view.note_notified(fresh.key, fresh.sequence, notified, at_warm);
}

/// Notifies executors of executions that they can forget.
pub(crate) async fn trim(shared: &Shared, trim: HashMap<ExecutorId, Vec<ExecutionKey>>) {
    let trimming = |keys| Reservations { trim: keys, ..Reservations::default() };
    send(shared, trim.into_iter().map(|(executor, keys)| (executor, trimming(keys))).collect()).await;
}

/// Wakes at most `most` of these executors that have room, because something waits that they may not know of. The
/// choice is random, so that executors that cannot run it do not block the others permanently.
pub(crate) async fn wake_executors(shared: &Shared, mut executors: Vec<ExecutorId>, most: usize) {
    let mut random = Random::new(shared.next_seed());
    while executors.len() > most {
        let at = random.below(executors.len() as u64);
        executors.swap_remove(usize::try_from(at).present("an index of a list"));
    }
    send(shared, executors.into_iter().map(|executor| (executor, Reservations::default())).collect()).await;
}

async fn send(shared: &Shared, messages: MessagesByExecutor) {
    for (executor, message) in messages {
        if let Err(error) = shared.context.bus.send(&executor, &message).await {
            let error = telemetry::error_chain(&error);
            debug!(error, "cannot notify an executor of waiting executions; retrying later");
        }
    }
}

/// Delay after a reservation until the dispatcher checks whether the execution still waits.
pub(crate) const CHECK: Duration = Duration::from_millis(25);
