//! The scheduler's calls: reading heads, committing grants and returning claims.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use invariant::Present as _;
use model::{
    Demand, ExecutionKey, ExecutorId, GrantNotice, Grants, Group, Millis, PoolName, RequirementsId, Sequence,
};
use redis::{FromRedisValue, Value};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// State of the index that a scheduling decision needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Heads {
    /// Whether the index exists and is complete.
    pub ready: bool,
    /// Number of waiting executions.
    pub waiting: u64,
    /// Number of executions held by executors.
    pub claimed: u64,
    /// When to check unconfirmed claims again.
    pub next_doubt: Option<Millis>,
    /// When the next execution expires in its queue.
    pub next_overdue: Option<Millis>,
    /// When the next further copy of an execution is due.
    pub next_hedge: Option<Millis>,
    /// Time until which nothing may be granted, after a rebuild.
    pub hold: Option<Millis>,
    /// Number of executors that must be asked for a heartbeat.
    pub silent: u64,
    /// Ids of the requirements of executions that were requeued by this call.
    pub again: Vec<RequirementsId>,
    /// The queues of the requirements that were requested.
    pub queues: Vec<QueueHead>,
    /// Use of each pool that was requested by the groups that have executions in `queues`.
    pub uses: HashMap<PoolName, Vec<GroupUse>>,
}

/// The waiting executions with the same requirements.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueHead {
    /// Id of the requirements.
    pub requirements: RequirementsId,
    /// Number of executions that wait.
    pub waiting: u64,
    /// The first waiting executions of each group, in their order.
    pub groups: Vec<(Group, Vec<Waiting>)>,
}

/// A group's use of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupUse {
    pub group: Group,
    /// ESU-seconds used, with exponential decay over time.
    pub used: f64,
    /// ESU that the group currently holds.
    pub held: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub key: ExecutionKey,
    /// Place among all waiting executions of its group, with any requirements: lower runs sooner.
    pub score: u64,
    /// Requirements on an executor.
    pub demand: Demand,
    /// Executors that hold a copy of it.
    pub holders: Vec<ExecutorId>,
}

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
    /// Resources that it holds there, in thousandths of ESU.
    pub cost: u64,
    /// Describes the grant for other schedulers that miss it; `None` if there are none.
    pub notice: Option<GrantNotice>,
}

impl Grant {
    /// Appends the seven arguments that the scripts expect for each grant.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        invocation.arg(self.key.to_string()).arg(self.executor.as_str());
        invocation.arg(self.hedge_at.map_or(0, |at| at.0)).arg(self.cost).arg(self.after);
        let notice = self.notice.as_ref();
        let notice =
            notice.map(|notice| serde_json::to_string(notice).present("a notice of a grant as JSON"));
        invocation.arg(self.pool.as_str()).arg(notice.unwrap_or_default());
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
    /// Another scheduler granted something to the executor: the room that the caller knows is outdated.
    Outdated {
        /// Number of the last grant to the executor.
        number: u64,
        /// The grants that the caller did not know, in order; empty if the index does not have all of them.
        missed: Vec<GrantNotice>,
    },
}

type RawHeads = (u8, u64, u64, u64, u64, u64, u64, u64, Vec<Value>, Vec<Value>, Vec<String>);

impl Actions {
    /// Handles unconfirmed claims, then reads up to `max` waiting executions of each of `requirements`, and the use of
    /// `pools` by their groups.
    ///
    /// An executor that does not name an execution which it should hold is asked for a heartbeat; the execution is
    /// requeued if the heartbeat does not name it either, or does not arrive within `grace`.
    pub async fn heads(
        &self,
        now: Millis,
        max: usize,
        grace: Duration,
        requirements: &[RequirementsId],
        pools: &[PoolName],
    ) -> Result<Heads, IndexError> {
        let what = "action_heads";
        let mut invocation = self.0.action_scripts.heads.prepare_invoke();
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        invocation.key(META).arg(now.0).arg(max).arg(grace).arg(pools.len());
        for pool in pools {
            invocation.arg(pool.as_str());
        }
        for id in requirements {
            invocation.arg(id.as_str());
        }
        let raw: RawHeads = self.invoke(what, &mut invocation).await?;
        let (ready, waiting, claimed, doubt, overdue, hedge, hold, silent, queues, uses, again) = raw;
        let queues: Option<Vec<QueueHead>> = queues.chunks(3).map(read_queue).collect();
        let uses: Option<HashMap<PoolName, Vec<GroupUse>>> = uses.chunks(2).map(read_uses).collect();
        let at = |millis: u64| (millis > 0).then_some(Millis(millis));
        Ok(Heads {
            ready: ready == 1,
            waiting,
            claimed,
            next_doubt: at(doubt),
            next_overdue: at(overdue),
            next_hedge: at(hedge),
            hold: at(hold),
            silent,
            again: read_ids(&again).ok_or(IndexError::Answer { what })?,
            queues: queues.ok_or(IndexError::Answer { what })?,
            uses: uses.ok_or(IndexError::Answer { what })?,
        })
    }

    /// Commits `grants`; returns the result of each.
    pub async fn commit(&self, grants: &[Grant], now: Millis) -> Result<Vec<Committed>, IndexError> {
        let mut invocation = self.0.action_scripts.commit.prepare_invoke();
        invocation.key(META).arg(now.0).arg(now.after(Grants::IN_FLIGHT_MAX).0).arg(grants.len());
        for grant in grants {
            grant.write(&mut invocation);
        }
        let done: Vec<(u64, u64, String, Vec<String>)> =
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
    (sequence, number, missed): (u64, u64, Vec<String>),
    record: impl FnOnce() -> String,
) -> Committed {
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

fn read_queue(parts: &[Value]) -> Option<QueueHead> {
    let [requirements, waiting, groups] = parts else { return None };
    let groups = Vec::<Value>::from_redis_value_ref(groups).ok()?;
    Some(QueueHead {
        requirements: String::from_redis_value_ref(requirements).ok()?.parse().ok()?,
        waiting: u64::from_redis_value_ref(waiting).ok()?,
        groups: groups.chunks(2).map(read_group).collect::<Option<_>>()?,
    })
}

fn read_group(parts: &[Value]) -> Option<(Group, Vec<Waiting>)> {
    let [group, waiting] = parts else { return None };
    let waiting = Vec::<String>::from_redis_value_ref(waiting).ok()?;
    let waiting = waiting.chunks(4).map(read_waiting).collect::<Option<_>>()?;
    Some((String::from_redis_value_ref(group).ok()?.parse().ok()?, waiting))
}

fn read_waiting(parts: &[String]) -> Option<Waiting> {
    let [key, score, demand, holders] = parts else { return None };
    let holder = |text: &str| text.split_once('@')?.0.parse().ok();
    Some(Waiting {
        key: key.parse().ok()?,
        score: score.parse().ok()?,
        demand: serde_json::from_str(demand).ok()?,
        holders: holders.split_whitespace().map(holder).collect::<Option<_>>()?,
    })
}

fn read_uses(parts: &[Value]) -> Option<(PoolName, Vec<GroupUse>)> {
    let [pool, groups] = parts else { return None };
    let groups = Vec::<String>::from_redis_value_ref(groups).ok()?;
    let thousandths = |text: &String| Some(text.parse::<f64>().ok()? / 1000.0);
    let read = |parts: &[String]| {
        let [group, used, held] = parts else { return None };
        Some(GroupUse { group: group.parse().ok()?, used: thousandths(used)?, held: thousandths(held)? })
    };
    let groups = groups.chunks(3).map(read).collect::<Option<_>>()?;
    Some((String::from_redis_value_ref(pool).ok()?.parse().ok()?, groups))
}
