//! What the scheduler reads and commits.

use std::time::Duration;

use model::{Demand, ExecutionKey, ExecutorId, Group, Millis, PoolName, Sequence};
use redis::{FromRedisValue, Value};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// What a decision needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Heads {
    /// Whether there is an index.
    pub ready: bool,
    /// Executions that wait.
    pub waiting: u64,
    /// Claims of which it is in doubt that their executor knows.
    pub doubtful: u64,
    /// Executions that an executor has.
    pub claimed: u64,
    /// When to look at those in doubt again.
    pub next_doubt: Option<Millis>,
    /// When the next execution has waited too long.
    pub next_overdue: Option<Millis>,
    /// When one copy more of an execution is due.
    pub next_hedge: Option<Millis>,
    /// Until when nothing may be granted.
    pub hold: Option<Millis>,
    /// Executors that are to say what they have.
    pub silent: u64,
    /// Those that were asked for and are unfinished no more.
    pub ended: Vec<ExecutionKey>,
    /// The pools that were asked for.
    pub pools: Vec<PoolHead>,
}

/// What waits in a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolHead {
    /// The pool.
    pub pool: PoolName,
    /// How many wait there.
    pub waiting: u64,
    /// The groups that wait.
    pub groups: Vec<GroupHead>,
}

/// What a group had of a pool, and its first waiting executions.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupHead {
    /// The group.
    pub group: Group,
    /// ESU-seconds that it used, those longer ago counting less.
    pub used: f64,
    /// ESU that it holds.
    pub held: f64,
    /// In their order.
    pub waiting: Vec<Waiting>,
}

/// An execution that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Which.
    pub key: ExecutionKey,
    /// What it wants.
    pub demand: Demand,
    /// Who has a copy of it.
    pub holders: Vec<ExecutorId>,
}

/// An execution that is granted to an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The execution.
    pub key: ExecutionKey,
    /// The executor.
    pub executor: ExecutorId,
    /// When one copy more of it is due.
    pub hedge_at: Option<Millis>,
    /// What it holds there: thousandths of ESU.
    pub cost: u64,
}

/// A grant that held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Index of the grant.
    pub grant: usize,
    /// Position of the execution's last record.
    pub sequence: Sequence,
    /// That record, as it is stored.
    pub record: String,
}

type RawHeads = (u8, u64, u64, u64, u64, u64, u64, u64, u64, Vec<String>, Vec<Value>);

impl Actions {
    /// Looks after claims in doubt; then reads at most `max` waiting executions of each of `pools`, and which of `reserved`
    /// are unfinished no more.
    ///
    /// An executor that does not name what it should have is asked; unless it then names it, or when it says nothing for
    /// `grace`, the execution waits again.
    pub async fn heads(
        &self,
        now: Millis,
        max: usize,
        grace: Duration,
        pools: &[PoolName],
        reserved: &[ExecutionKey],
    ) -> Result<Heads, IndexError> {
        let what = "action_heads";
        let mut invocation = self.0.action_scripts.heads.prepare_invoke();
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        invocation.key(META).arg(now.0).arg(max).arg(grace).arg(pools.len());
        for pool in pools {
            invocation.arg(pool.as_str());
        }
        for key in reserved {
            invocation.arg(key.to_string());
        }
        let raw: RawHeads = self.invoke(what, &invocation).await?;
        let (ready, waiting, doubtful, claimed, doubt, overdue, hedge, hold, silent, ended, pools) = raw;
        let unreadable = || IndexError::Answer { what };
        let pools: Option<Vec<PoolHead>> = pools.chunks(3).map(read_pool).collect();
        let ended: Option<Vec<ExecutionKey>> = ended.iter().map(|key| key.parse().ok()).collect();
        let at = |millis: u64| (millis > 0).then_some(Millis(millis));
        Ok(Heads {
            ready: ready == 1,
            waiting,
            doubtful,
            claimed,
            next_doubt: at(doubt),
            next_overdue: at(overdue),
            next_hedge: at(hedge),
            hold: at(hold),
            silent,
            ended: ended.ok_or_else(unreadable)?,
            pools: pools.ok_or_else(unreadable)?,
        })
    }

    /// Commits `grants`; returns those that still held.
    pub async fn commit(&self, grants: &[Grant], now: Millis) -> Result<Vec<Committed>, IndexError> {
        let mut invocation = self.0.action_scripts.commit.prepare_invoke();
        invocation.key(META).arg(now.0).arg(grants.len());
        for grant in grants {
            invocation.arg(grant.key.to_string()).arg(grant.executor.as_str());
            invocation.arg(grant.hedge_at.map_or(0, |at| at.0)).arg(grant.cost);
        }
        let done: Vec<(u64, String)> = self.invoke("action_commit", &invocation).await?;
        let held = done.into_iter().enumerate().filter(|(_, (sequence, _))| *sequence > 0);
        Ok(held
            .map(|(grant, (sequence, record))| Committed { grant, sequence: Sequence(sequence), record })
            .collect())
    }

    /// Takes `executions` back, which `executor` claimed and did not start; returns those that wait again.
    pub async fn give_back(
        &self,
        executor: &ExecutorId,
        executions: &[ExecutionKey],
        now: Millis,
    ) -> Result<Vec<ExecutionKey>, IndexError> {
        let what = "action_give_back";
        let mut invocation = self.0.action_scripts.give_back.prepare_invoke();
        invocation.key(META).arg(executor.as_str()).arg(now.0);
        for key in executions {
            invocation.arg(key.to_string());
        }
        let again: Vec<String> = self.invoke(what, &invocation).await?;
        let again: Option<Vec<ExecutionKey>> = again.iter().map(|key| key.parse().ok()).collect();
        again.ok_or(IndexError::Answer { what })
    }
}

fn read_pool(parts: &[Value]) -> Option<PoolHead> {
    let [pool, waiting, groups] = parts else { return None };
    let groups = Vec::<Value>::from_redis_value_ref(groups).ok()?;
    Some(PoolHead {
        pool: String::from_redis_value_ref(pool).ok()?.parse().ok()?,
        waiting: u64::from_redis_value_ref(waiting).ok()?,
        groups: groups.chunks(4).map(read_group).collect::<Option<_>>()?,
    })
}

fn read_group(parts: &[Value]) -> Option<GroupHead> {
    let [group, used, held, waiting] = parts else { return None };
    let thousandths = |value| Some(f64::from_redis_value_ref(value).ok()? / 1000.0);
    let waiting = Vec::<String>::from_redis_value_ref(waiting).ok()?;
    Some(GroupHead {
        group: String::from_redis_value_ref(group).ok()?.parse().ok()?,
        used: thousandths(used)?,
        held: thousandths(held)?,
        waiting: waiting.chunks(3).map(read_waiting).collect::<Option<_>>()?,
    })
}

fn read_waiting(parts: &[String]) -> Option<Waiting> {
    let [key, demand, holders] = parts else { return None };
    Some(Waiting {
        key: key.parse().ok()?,
        demand: serde_json::from_str(demand).ok()?,
        holders: holders.split_whitespace().map(|executor| executor.parse().ok()).collect::<Option<_>>()?,
    })
}
