//! What the scheduler reads and commits.

use std::time::Duration;

use model::{ExecutionKey, ExecutorId, Millis, PoolName, Sequence};
use redis::{FromRedisValue, Value};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// What a decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heads {
    /// Whether there is an index.
    pub ready: bool,
    /// The position of the stream that it stands at.
    pub watermark: Sequence,
    /// Executions that wait.
    pub waiting: u64,
    /// Executions that are offered, without an answer yet.
    pub offered: u64,
    /// Executions that an executor has, the offered ones among them.
    pub claimed: u64,
    /// When the next offer runs out.
    pub next_offer: Option<Millis>,
    /// When the next execution has waited too long.
    pub next_overdue: Option<Millis>,
    /// Until when nothing may be offered.
    pub hold: Option<Millis>,
    /// Executors that let offers run out.
    pub silent: u64,
    /// Pools with waiting executions and free executors.
    pub pools: Vec<PoolHead>,
}

/// A pool's free executors and as many of its first waiting executions as they have room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolHead {
    /// The pool.
    pub pool: PoolName,
    /// Executors with free slots, and how many.
    pub free: Vec<(ExecutorId, u32)>,
    /// In the order in which they must start.
    pub waiting: Vec<ExecutionKey>,
}

/// An execution picked for an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// The execution.
    pub key: ExecutionKey,
    /// The executor.
    pub executor: ExecutorId,
}

/// A pick that held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The pick.
    pub pick: Pick,
    /// Position of the execution's last record.
    pub sequence: Sequence,
    /// That record, as it is stored.
    pub record: String,
}

/// How an offer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The executor has it.
    Taken,
    /// The executor has no room.
    Busy,
    /// The executor is not there.
    Gone,
}

/// An offer and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was offered, and to whom.
    pub pick: Pick,
    /// The position that was offered.
    pub sequence: Sequence,
    /// How it ended.
    pub verdict: Verdict,
}

type RawHeads = (u8, u64, u64, u64, u64, u64, u64, u64, u64, Vec<Value>);

impl Actions {
    /// Settles `answers` and the offers that ran out; then reads at most `max` waiting executions of each pool.
    ///
    /// An executor that let an offer run out is offered nothing until it is heard of again; unless it then names the
    /// execution, or when it says nothing for `grace`, the execution waits again.
    pub async fn heads(
        &self,
        now: Millis,
        max: usize,
        grace: Duration,
        answers: &[Answer],
    ) -> Result<Heads, IndexError> {
        let what = "action_heads";
        let mut invocation = self.0.action_scripts.heads.prepare_invoke();
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        invocation.key(META).arg(now.0).arg(max).arg(grace).arg(answers.len());
        for Answer { pick, sequence, verdict } in answers {
            let verdict = match verdict {
                Verdict::Taken => "taken",
                Verdict::Busy => "busy",
                Verdict::Gone => "gone",
            };
            invocation.arg(pick.key.to_string()).arg(sequence.0).arg(pick.executor.as_str()).arg(verdict);
        }
        let raw: RawHeads = self.invoke(what, &invocation).await?;
        let (ready, watermark, waiting, offered, claimed, offer, overdue, hold, silent, pools) = raw;
        let pools: Option<Vec<PoolHead>> = pools.chunks(3).map(read_pool).collect();
        let at = |millis: u64| (millis > 0).then_some(Millis(millis));
        Ok(Heads {
            ready: ready == 1,
            watermark: Sequence(watermark),
            waiting,
            offered,
            claimed,
            next_offer: at(offer),
            next_overdue: at(overdue),
            hold: at(hold),
            silent,
            pools: pools.ok_or(IndexError::Answer { what })?,
        })
    }

    /// Commits `picks`, offered until `deadline`; returns those that still held.
    pub async fn commit(
        &self,
        picks: Vec<Pick>,
        now: Millis,
        deadline: Millis,
    ) -> Result<Vec<Committed>, IndexError> {
        let mut invocation = self.0.action_scripts.commit.prepare_invoke();
        invocation.key(META).arg(now.0).arg(deadline.0).arg(picks.len());
        for pick in &picks {
            invocation.arg(pick.key.to_string()).arg(pick.executor.as_str());
        }
        let done: Vec<(u64, String)> = self.invoke("action_commit", &invocation).await?;
        let held = picks.into_iter().zip(done).filter(|(_, (sequence, _))| *sequence > 0);
        Ok(held
            .map(|(pick, (sequence, record))| Committed { pick, sequence: Sequence(sequence), record })
            .collect())
    }
}

fn read_pool(parts: &[Value]) -> Option<PoolHead> {
    let [pool, free, waiting] = parts else { return None };
    let free = Vec::<String>::from_redis_value_ref(free).ok()?;
    let waiting = Vec::<String>::from_redis_value_ref(waiting).ok()?;
    let one = |pair: &[String]| {
        let [executor, slots] = pair else { return None };
        Some((executor.parse().ok()?, slots.parse().ok()?))
    };
    Some(PoolHead {
        pool: String::from_redis_value_ref(pool).ok()?.parse().ok()?,
        free: free.chunks(2).map(one).collect::<Option<_>>()?,
        waiting: waiting.iter().map(|key| key.parse().ok()).collect::<Option<_>>()?,
    })
}
