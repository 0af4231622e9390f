//! The processes of a pool, from their heartbeats.

use bus::{Message, millis};
use index::{Index, IndexError, actions::Actions};
use model::{
    ExecutorHeartbeat, ExecutorStatus, Heartbeat, Millis, PoolName, ScaleObservation, WorkerStatus,
    WorkspaceState,
};
use policy::counted_slots;
use tracing::debug;

use crate::work::Work;

/// A live process of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    name: String,
    /// Whether it stays; otherwise it drains.
    ready: bool,
    busy: bool,
    slots: u64,
}

/// The live workers of the farm.
pub(crate) async fn workers(index: &Index, now: Millis) -> Result<Vec<Process>, IndexError> {
    let read = |heartbeat: Heartbeat| Process {
        name: heartbeat.worker.to_string(),
        ready: match heartbeat.status {
            // A full worker accepts work again later.
            WorkerStatus::Ready | WorkerStatus::Full => true,
            WorkerStatus::Draining | WorkerStatus::Gone => false,
        },
        busy: heartbeat.workspaces.iter().any(|state| matches!(state, WorkspaceState::Busy { .. })),
        slots: workspaces(&heartbeat),
    };
    Ok(decode(&index.workers(now).await?).map(read).collect())
}

/// Workspaces of a worker that builds can use, as far as its sensors allow.
fn workspaces(heartbeat: &Heartbeat) -> u64 {
    let usable = heartbeat.workspaces.iter().filter(|state| !matches!(state, WorkspaceState::Broken)).count();
    counted_slots(&heartbeat.window, u16::try_from(usable).unwrap_or(u16::MAX))
}

/// The live executors of a pool.
pub(crate) async fn executors(
    actions: &Actions,
    pool: &PoolName,
    now: Millis,
) -> Result<Vec<Process>, IndexError> {
    let read = |heartbeat: ExecutorHeartbeat| Process {
        name: heartbeat.executor.to_string(),
        ready: match heartbeat.status {
            ExecutorStatus::Ready | ExecutorStatus::Closed => true,
            ExecutorStatus::Draining | ExecutorStatus::Gone => false,
        },
        busy: !heartbeat.running.is_empty(),
        slots: counted_slots(&heartbeat.window, heartbeat.slots),
    };
    let all = actions.executors(now).await?;
    Ok(decode::<ExecutorHeartbeat>(&all).filter(|heartbeat| heartbeat.pool == *pool).map(read).collect())
}

fn decode<T: Message>(all: &[Vec<u8>]) -> impl Iterator<Item = T> {
    all.iter().filter_map(|text| {
        // A heartbeat of another version; ignored until the process is replaced.
        let read = T::from_json(text);
        read.inspect_err(|error| debug!(%error, "ignoring an unreadable heartbeat")).ok()
    })
}

/// The observation of a pool whose target size was `desired` until now; `slots` is the number of slots of each process
/// if no process reports it.
///
/// Assumes that the plan is being carried out: missing processes are starting, surplus ones are draining.
pub(crate) fn observe(
    work: &Work,
    processes: &[Process],
    desired: Option<u64>,
    slots: u64,
) -> ScaleObservation {
    let ready = || processes.iter().filter(|process| process.ready);
    let count = ready().count() as u64;
    // Before the first decision, the target is what there is.
    let desired = desired.unwrap_or(count);
    let alive = count.min(desired);
    let busy = ready().filter(|process| process.busy || work.busy.contains(&process.name)).count() as u64;
    let all_slots: u64 = ready().map(|process| process.slots).sum();
    ScaleObservation {
        waiting: work.waiting,
        held_back: work.held_back,
        running: work.running,
        queued_ms: millis(work.queued),
        oldest_wait_ms: millis(work.oldest_wait),
        arrived: work.arrived,
        service_ms: millis(work.service),
        slots: all_slots.checked_div(count).unwrap_or(slots).max(1),
        alive,
        busy: busy.min(alive),
        starting: desired - alive,
        draining: processes.len() as u64 - alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, ready: bool, busy: bool) -> Process {
        Process { name: name.to_owned(), ready, busy, slots: 2 }
    }

    fn seen(processes: &[Process], desired: Option<u64>) -> (u64, u64, u64, u64) {
        let seen = observe(&Work::default(), processes, desired, 5);
        (seen.alive, seen.busy, seen.starting, seen.draining)
    }

    #[test]
    fn what_the_plan_wants_and_is_not_there_is_starting() {
        let one = [process("a", true, true)];
        assert_eq!(seen(&one, Some(3)), (1, 1, 2, 0));
        assert_eq!(seen(&[], Some(0)), (0, 0, 0, 0));
    }

    #[test]
    fn what_the_plan_wants_no_more_is_on_its_way_out() {
        let three = [process("a", true, true), process("b", true, false), process("c", false, true)];
        assert_eq!(seen(&three, Some(1)), (1, 1, 0, 2));
        assert_eq!(seen(&three, Some(2)), (2, 1, 0, 1));
        assert_eq!(seen(&three, None), (2, 1, 0, 1), "the first observation uses the current size");
    }

    #[test]
    fn a_process_is_busy_by_the_log_or_by_its_own_word() {
        let two = [process("a", true, false), process("b", true, false)];
        let work = Work { busy: ["b".to_owned()].into(), ..Work::default() };
        assert_eq!(observe(&work, &two, None, 5).busy, 1);
    }

    #[test]
    fn slots_are_those_of_the_processes_there_are() {
        assert_eq!(observe(&Work::default(), &[process("a", true, false)], None, 5).slots, 2);
        assert_eq!(observe(&Work::default(), &[process("a", false, false)], None, 5).slots, 5);
        assert_eq!(observe(&Work::default(), &[], None, 0).slots, 1);
    }
}
