//! The scheduler's calls: committing grants and returning claims.

use std::collections::BTreeSet;

use invariant::Present as _;
use model::{ExecutionKey, ExecutorId, GrantNotice, Grants, Millis, PoolName, RequirementsId, Sequence};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// An execution granted to an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub key: ExecutionKey,
    pub executor: ExecutorId,
    /// Pool of the executor, whose use by the group it is.
    pub pool: PoolName,
    /// Number of the last grant to the executor that the caller knows of.
    pub after: u64,
    /// When a further copy is due, if any.
    pub hedge_at: Option<Millis>,
    /// Maximum number of executions that the executor holds.
    pub claims_max: u32,
    /// Resources that it holds there, in thousandths of ESU.
    pub cost: u64,
    /// Describes the grant for other schedulers that miss it; `None` if there are none.
    pub notice: Option<GrantNotice>,
}

impl Grant {
    /// Appends the eight arguments that the scripts expect for each grant.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        invocation.arg(self.key.to_string()).arg(self.executor.as_str());
        invocation.arg(self.hedge_at.map_or(0, |at| at.0)).arg(self.cost).arg(self.after);
        let notice = self.notice.as_ref();
        let notice =
            notice.map(|notice| serde_json::to_string(notice).present("a notice of a grant as JSON"));
        invocation.arg(self.pool.as_str()).arg(notice.unwrap_or_default()).arg(self.claims_max);
    }
}

/// The result of a grant, in the order of the caller's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// The executor has claimed the execution.
    Granted {
        /// Number of the grant, one more than that of the last grant to the executor.
        number: u64,
        /// Position of the execution's last record.
        sequence: Sequence,
        /// The execution's last record, as it is stored.
        record: String,
    },
    /// The execution does not wait, or nothing may be granted now.
    NotGranted,
    /// The executor holds as many executions as it may, whatever room it reports.
    Full,
    /// Another scheduler granted something to the executor: the room that the caller knows is outdated.
    Outdated {
        /// Number of the last grant to the executor.
        number: u64,
        /// The grants that the caller did not know, in order; empty if the index does not have all of them.
        missed: Vec<GrantNotice>,
    },
}

impl Actions {
    /// Commits `grants`; returns the result of each.
    pub async fn commit(&self, grants: &[Grant], now: Millis) -> Result<Vec<Committed>, IndexError> {
        let mut invocation = self.0.action_scripts.commit.prepare_invoke();
        invocation.key(META).arg(now.0).arg(now.after(Grants::IN_FLIGHT_MAX).0).arg(grants.len());
        for grant in grants {
            grant.write(&mut invocation);
        }
        let done: Vec<(u64, i64, String, Vec<String>)> =
            self.invoke("action_commit", &mut invocation).await?;
        let answers = grants.iter().zip(done);
        Ok(answers
            .map(|(grant, (sequence, number, record, missed))| {
                read_committed(grant, (sequence, number, missed), || record)
            })
            .collect())
    }

    /// Returns `executions`, which `executor` claimed and did not start, to their queues; returns the ids of the
    /// requirements of those that wait again.
    pub async fn give_back(
        &self,
        executor: &ExecutorId,
        executions: &[ExecutionKey],
        now: Millis,
    ) -> Result<Vec<RequirementsId>, IndexError> {
        let what = "action_give_back";
        let mut invocation = self.0.action_scripts.give_back.prepare_invoke();
        invocation.key(META).arg(executor.as_str()).arg(now.0);
        for key in executions {
            invocation.arg(key.to_string());
        }
        let again: Vec<String> = self.invoke(what, &mut invocation).await?;
        read_ids(&again).ok_or(IndexError::Answer { what })
    }
}

/// The ids of requirements, without duplicates.
pub(super) fn read_ids(ids: &[String]) -> Option<Vec<RequirementsId>> {
    let distinct: BTreeSet<&String> = ids.iter().collect();
    distinct.into_iter().map(|id| id.parse().ok()).collect()
}

/// Reads the result of `grant`, whose record is `record`.
pub(super) fn read_committed(
    grant: &Grant,
    (sequence, number, missed): (u64, i64, Vec<String>),
    record: impl FnOnce() -> String,
) -> Committed {
    let Ok(number) = u64::try_from(number) else { return Committed::Full };
    match (sequence, number) {
        (0, 0) => Committed::NotGranted,
        (0, number) => {
            let read = |(at, text): (u64, &String)| {
                let notice: GrantNotice = serde_json::from_str(text).ok()?;
                Some(GrantNotice { number: at, ..notice })
            };
            let missed: Option<Vec<GrantNotice>> = (grant.after + 1..).zip(&missed).map(read).collect();
            Committed::Outdated { number, missed: missed.unwrap_or_default() }
        }
        (sequence, number) => Committed::Granted { number, sequence: Sequence(sequence), record: record() },
    }
}
