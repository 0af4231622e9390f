//! Records of executions in the form that the index needs.

use invariant::Present as _;
use model::{Demand, ExecutionKey, ExecutorId, Millis, Sequence};
use policy::actions::{Place, rank};

use crate::actions::join::MergeKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub key: ExecutionKey,
    /// Position of the record.
    pub sequence: Sequence,
    /// Effect on the index.
    pub change: Change,
}

/// Effect of a record on the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The execution is unfinished.
    Open(Move, Box<Open>),
    /// The execution has its result.
    Finished {
        /// The executor that ran it, if any did.
        executor: Option<ExecutorId>,
        /// Key under which others could join it.
        merge: Option<MergeKey>,
        /// Flow that it was charged to, and actual minus estimated cost; `None` if nothing is corrected.
        beyond: Option<(String, i64)>,
    },
}

/// Change of an unfinished execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// It waits, initially or again; no executor holds it.
    Waits,
    /// Its state is unchanged.
    Stays,
    /// One more copy of it waits.
    Hedged,
    /// The copy on this executor has ended.
    CopyEnded(ExecutorId),
}

/// An execution that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// When its time in the queue expires.
    pub until: Millis,
    /// Requirements on an executor.
    pub demand: Demand,
    /// Resources of one running copy, in thousandths of ESU.
    pub cost: u64,
    /// Its place among the executions of its group and rank.
    pub place: Place,
    /// Key under which others may join it, if it is shareable.
    pub merge: Option<MergeKey>,
    /// The record as it is stored.
    pub record: Vec<u8>,
}

impl Event {
    /// Appends the fourteen arguments that the script expects for each event.
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
                invocation.arg(op).arg(self.sequence.0).arg(key);
                invocation.arg(open.demand.requirements.id().as_str());
                invocation.arg(rank(open.demand.urgency)).arg(open.until.0).arg(open.cost);
                match &open.place {
                    Place::Turn { flow, charge } => invocation.arg(charge).arg(flow),
                    Place::Fixed(number) => invocation.arg(format!("={number}")).arg(""),
                };
                invocation.arg(merged(&open.merge)).arg(executor).arg(&open.record);
                let demand =
                    serde_json::to_string(&open.demand).present("the requirements of an execution as JSON");
                invocation.arg(demand).arg(0);
            }
            Change::Finished { executor, merge, beyond } => {
                let (flow, beyond) =
                    beyond.as_ref().map_or(("", 0), |(flow, beyond)| (flow.as_str(), *beyond));
                invocation.arg("F").arg(self.sequence.0).arg(key).arg("").arg(0).arg(0).arg(0).arg(0);
                invocation.arg(flow).arg(merged(merge));
                invocation.arg(executor.as_ref().map(ExecutorId::as_str).unwrap_or_default());
                invocation.arg("").arg("").arg(beyond);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Priority, Urgency};

    use super::*;

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the round trip is the point"
    )]
    fn scores_are_exact_as_doubles() {
        let tags = 2_u64.pow(38);
        let least_urgent = Urgency { band: Priority::Batch, priority: i32::MAX };
        let last = u64::from(rank(least_urgent)) * tags + tags - 1;
        assert_eq!(last as f64 as u64, last);
        assert_eq!(last, (1 << 53) - 1);
    }
}
