//! A record of an execution, as the index sees it.

use model::{Demand, ExecutionKey, ExecutorId, Millis, PoolName, Sequence};

use crate::actions::join::MergeKey;

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
    /// The execution goes on.
    Open(Move, Box<Open>),
    /// The execution has its result.
    Finished {
        /// Who ran it, if anyone did.
        executor: Option<ExecutorId>,
        /// By what it was joined.
        merge: Option<MergeKey>,
        /// Its invocation.
        invocation: String,
        /// What it cost its invocation beyond what it was thought to cost: thousandths of ESU times seconds.
        beyond: i64,
    },
}

/// How an unfinished execution goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// It waits, for the first time or again; nobody has it.
    Waits,
    /// As before.
    Stays,
    /// One copy more of it waits.
    Hedged,
    /// The copy of this executor ended.
    CopyEnded(ExecutorId),
}

/// An unfinished execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The pool that it is for.
    pub pool: PoolName,
    /// When it has waited too long.
    pub until: Millis,
    /// What it wants of an executor.
    pub demand: Demand,
    /// What it holds: thousandths of ESU.
    pub cost: u64,
    /// What it is thought to cost its invocation: thousandths of ESU times seconds.
    pub length: u64,
    /// Its invocation: those of a group take turns.
    pub invocation: String,
    /// By what it can be joined, if it may be.
    pub merge: Option<MergeKey>,
    /// The record as it is stored.
    pub record: Vec<u8>,
}

/// Half of the 15 bits above the start tags (38 bits) that fit the 53 bits which a sorted set's double keeps exactly.
const PRIORITIES: i32 = 1 << 14;

/// A priority from 0 on, as the script wants it.
fn rank(priority: i32) -> i32 {
    priority.clamp(-PRIORITIES, PRIORITIES - 1) + PRIORITIES
}

impl Event {
    /// The fourteen arguments of the script.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        let key = self.key.to_string();
        let merged = |merge: &Option<MergeKey>| merge.as_ref().map(ToString::to_string).unwrap_or_default();
        match &self.change {
            Change::Open(step, open) => {
                let (op, executor) = match step {
                    Move::Waits => ("W", ""),
                    Move::Stays => ("U", ""),
                    Move::Hedged => ("H", ""),
                    Move::CopyEnded(executor) => ("C", executor.as_str()),
                };
                invocation.arg(op).arg(self.sequence.0).arg(key).arg(open.pool.as_str());
                invocation.arg(rank(open.demand.priority)).arg(open.until.0).arg(open.cost).arg(open.length);
                invocation.arg(&open.invocation).arg(merged(&open.merge)).arg(executor).arg(&open.record);
                invocation.arg(serde_json::to_string(&open.demand).unwrap_or_default()).arg(0);
            }
            Change::Finished { executor, merge, invocation: of, beyond } => {
                invocation.arg("F").arg(self.sequence.0).arg(key).arg("").arg(0).arg(0).arg(0).arg(0);
                invocation.arg(of).arg(merged(merge));
                invocation.arg(executor.as_ref().map(ExecutorId::as_str).unwrap_or_default());
                invocation.arg("").arg("").arg(*beyond);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the round trip is the point"
    )]
    fn scores_are_exact_as_doubles() {
        let tags = 2_u64.pow(38);
        let last = u64::try_from(rank(i32::MAX)).unwrap() * tags + tags - 1;
        assert_eq!(last as f64 as u64, last);
        assert_eq!(last, (1 << 53) - 1);
        assert_eq!(rank(i32::MIN), 0);
        assert!(rank(-1) < rank(0));
    }
}
