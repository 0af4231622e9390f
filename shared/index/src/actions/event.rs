//! A record of an execution, as the index sees it.

use model::{ExecutionKey, ExecutorId, Millis, PoolName, Sequence};

/// One stored record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The execution.
    pub key: ExecutionKey,
    /// The record's position.
    pub sequence: Sequence,
    /// What it means here.
    pub change: Change,
}

/// What a record means to the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The execution waits, for the first time or again.
    Waits {
        /// For an executor of this pool.
        pool: PoolName,
        /// Lower is sooner.
        priority: i32,
        /// The position of its ACTION_ACCEPTED, which is its place in the queue.
        place: Sequence,
        /// When it has waited too long.
        until: Millis,
        /// The record as it is stored, for the offer.
        record: Vec<u8>,
    },
    /// The execution has its result.
    Finished {
        /// Who ran it, if anyone did.
        executor: Option<ExecutorId>,
    },
}

/// Room for places: at a million executions a second it lasts for three days, and then only those that wait across the
/// turn are out of order. With 15 bits of priority above, that fits the 53 bits that a sorted set's double keeps exactly.
const PLACES: u64 = 1 << 38;
/// Half of the 15 bits.
const PRIORITIES: i32 = 1 << 14;

/// The score of a waiting execution: strict priority, then age.
pub(crate) fn score(priority: i32, place: Sequence) -> u64 {
    let above = priority.clamp(-PRIORITIES, PRIORITIES - 1) + PRIORITIES;
    u64::try_from(above).unwrap_or_default() * PLACES + place.0 % PLACES
}

impl Event {
    /// The eight arguments of the script.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        let key = self.key.to_string();
        match &self.change {
            Change::Waits { pool, priority, place, until, record } => {
                invocation.arg("W").arg(self.sequence.0).arg(key).arg(pool.as_str());
                invocation.arg(score(*priority, *place)).arg(until.0).arg("").arg(record);
            }
            Change::Finished { executor } => {
                invocation.arg("F").arg(self.sequence.0).arg(key).arg("").arg(0).arg(0);
                invocation.arg(executor.as_ref().map(ExecutorId::as_str).unwrap_or_default()).arg("");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_more_urgent_execution_comes_first_however_young() {
        assert!(score(-1, Sequence(PLACES - 1)) < score(0, Sequence(1)));
        assert!(score(0, Sequence(PLACES - 1)) < score(1, Sequence(1)));
        assert!(score(7, Sequence(1)) < score(7, Sequence(2)));
        assert_eq!(score(i32::MIN, Sequence(3)), score(-PRIORITIES, Sequence(3)));
        assert_eq!(score(i32::MAX, Sequence(3)), score(PRIORITIES - 1, Sequence(3)));
    }

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the round trip is the point"
    )]
    fn scores_are_exact_as_doubles() {
        let last = score(i32::MAX, Sequence(PLACES - 1));
        assert_eq!(last as f64 as u64, last);
        assert_eq!(last, (1 << 53) - 1);
    }
}
