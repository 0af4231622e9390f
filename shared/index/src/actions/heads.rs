//! Reading what waits, for a decision of a scheduler.

use std::{collections::HashMap, time::Duration};

use model::{Demand, ExecutionKey, ExecutorId, Group, Millis, PoolName, RequirementsId};
use policy::actions::accrue;
use redis::{FromRedisValue, Value};

use super::dispatch::read_ids;
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
    /// Executors that must be asked for a heartbeat.
    pub silent: Vec<ExecutorId>,
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
    /// The groups of these executions.
    pub groups: Vec<GroupHead>,
}

/// The waiting executions of a group with the same requirements.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupHead {
    /// The group that they belong to.
    pub group: Group,
    /// Score of the first of them.
    pub first: u64,
    /// Those that were read, in their order.
    pub waiting: Vec<Waiting>,
    /// Whether more of them wait behind those that were read.
    pub more: bool,
}

impl GroupHead {
    /// The lowest score that an execution may have that was not read; `None` if all were read.
    pub fn unread_from(&self) -> Option<u64> {
        self.more.then(|| self.waiting.last().map_or(self.first, |last| last.score))
    }
}

/// Executions of a group to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFirst {
    /// Id of their requirements.
    pub requirements: RequirementsId,
    /// The group that they belong to.
    pub group: Group,
    /// Maximum number of executions that are read.
    pub most: usize,
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

type RawHeads = (u8, u64, u64, u64, u64, u64, u64, Vec<String>, Vec<Value>, Vec<Value>, Vec<String>);

impl Actions {
    /// Handles unconfirmed claims, then reads up to `max` waiting executions of each of `requirements`, and the use of
    /// `pools` by their groups. If more than `max` executions of several groups wait, it reads none of them:
    /// [`Actions::first_of`] reads those of some groups.
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
        let silent: Option<Vec<ExecutorId>> = silent.iter().map(|id| id.parse().ok()).collect();
        let queues: Option<Vec<QueueHead>> = queues.chunks(3).map(read_queue).collect();
        let uses: Option<HashMap<PoolName, Vec<GroupUse>>> =
            uses.chunks(2).map(|parts| read_uses(parts, now)).collect();
        let at = |millis: u64| (millis > 0).then_some(Millis(millis));
        Ok(Heads {
            ready: ready == 1,
            waiting,
            claimed,
            next_doubt: at(doubt),
            next_overdue: at(overdue),
            next_hedge: at(hedge),
            hold: at(hold),
            silent: silent.ok_or(IndexError::Answer { what })?,
            again: read_ids(&again).ok_or(IndexError::Answer { what })?,
            queues: queues.ok_or(IndexError::Answer { what })?,
            uses: uses.ok_or(IndexError::Answer { what })?,
        })
    }

    /// Reads the first waiting executions of some groups, for each of `of` in turn.
    pub async fn first_of(&self, of: &[ReadFirst]) -> Result<Vec<Vec<Waiting>>, IndexError> {
        let what = "action_first";
        let mut invocation = self.0.action_scripts.first.prepare_invoke();
        invocation.key(META);
        for ReadFirst { requirements, group, most } in of {
            invocation.arg(requirements.as_str()).arg(group.as_str()).arg(*most);
        }
        let found: Vec<Vec<String>> = self.invoke(what, &mut invocation).await?;
        let found: Option<Vec<Vec<Waiting>>> = found.iter().map(|parts| read_all(parts)).collect();
        found.ok_or(IndexError::Answer { what })
    }
}

fn read_queue(parts: &[Value]) -> Option<QueueHead> {
    let [requirements, waiting, groups] = parts else { return None };
    let groups = Vec::<Value>::from_redis_value_ref(groups).ok()?;
    let mut queue = QueueHead {
        requirements: String::from_redis_value_ref(requirements).ok()?.parse().ok()?,
        waiting: u64::from_redis_value_ref(waiting).ok()?,
        groups: groups.chunks(3).map(read_group).collect::<Option<_>>()?,
    };
    let read: u64 = queue.groups.iter().map(|head| head.waiting.len() as u64).sum();
    // Either all groups were read to the end, or one to the limit, or none.
    queue.groups.iter_mut().for_each(|head| head.more = read < queue.waiting);
    Some(queue)
}

fn read_group(parts: &[Value]) -> Option<GroupHead> {
    let [group, first, waiting] = parts else { return None };
    let waiting = Vec::<String>::from_redis_value_ref(waiting).ok()?;
    Some(GroupHead {
        group: String::from_redis_value_ref(group).ok()?.parse().ok()?,
        first: u64::from_redis_value_ref(first).ok()?,
        waiting: read_all(&waiting)?,
        more: false,
    })
}

fn read_all(parts: &[String]) -> Option<Vec<Waiting>> {
    parts.chunks(4).map(read_waiting).collect()
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

fn read_uses(parts: &[Value], now: Millis) -> Option<(PoolName, Vec<GroupUse>)> {
    let [pool, groups] = parts else { return None };
    let groups = Vec::<String>::from_redis_value_ref(groups).ok()?;
    let read = |parts: &[String]| {
        let [group, text] = parts else { return None };
        read_use(text, group.parse().ok()?, now)
    };
    let groups = groups.chunks(2).map(read).collect::<Option<_>>()?;
    Some((String::from_redis_value_ref(pool).ok()?.parse().ok()?, groups))
}

/// Reads thousandths of ESU times seconds that a group has used, thousandths of ESU that it holds, and when that was.
fn read_use(text: &str, group: Group, now: Millis) -> Option<GroupUse> {
    let mut parts = text.split(' ');
    let mut next = || parts.next()?.parse::<f64>().ok();
    let (used, held) = (next()? / 1000.0, next()? / 1000.0);
    let at = Millis(parts.next()?.parse().ok()?);
    Some(GroupUse { group, used: accrue(used, held, now.since(at)), held })
}
