//! Queries of gateways, `top` and `doctor`.

use model::{ExecutionKey, ExecutorId, Group, Millis, PoolName, Sequence};
use redis::cmd;

use crate::{
    Health, IndexError,
    actions::{
        Actions,
        script::{META, key},
    },
};

/// The queue of a pool, and an execution's place in it or its executor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// Whether the index is ready and the other fields are reliable.
    pub ready: bool,
    /// Number of live executors of the pool.
    pub executors: u64,
    /// Number of executions waiting for the pool.
    pub waiting: u64,
    /// Number of executions that the pool's executors hold.
    pub running: u64,
    /// Number of executions ahead of this one; `None` if it does not wait.
    pub place: Option<u64>,
    /// The executor that holds it, if any.
    pub executor: Option<ExecutorId>,
}

impl Actions {
    /// The queue of `pool` and the place of `execution` in it. One call, whatever the length of the queue.
    pub async fn queue(
        &self,
        pool: &PoolName,
        execution: Option<&ExecutionKey>,
        now: Millis,
    ) -> Result<Queue, IndexError> {
        let mut invocation = self.0.action_scripts.queue.prepare_invoke();
        invocation.key(META).arg(now.0).arg(pool.as_str());
        invocation.arg(execution.map(ToString::to_string).unwrap_or_default());
        let (ready, executors, waiting, running, place, executor): (u8, u64, u64, u64, i64, String) =
            self.invoke("action_queue", &mut invocation).await?;
        Ok(Queue {
            ready: ready == 1,
            executors,
            waiting,
            running,
            place: u64::try_from(place).ok(),
            executor: executor.parse().ok(),
        })
    }

    /// Number of executions of each group that wait for `pool`. Takes several calls: an execution that changes state between
    /// the calls may be missing.
    pub async fn waiting_by_group(&self, pool: &PoolName) -> Result<Vec<(Group, u64)>, IndexError> {
        let what = "action_waiting_by_group";
        let names: Vec<String> =
            self.0.query(what, cmd("SMEMBERS").arg(key(&format!("groups:{pool}")))).await?;
        let mut waiting = Vec::with_capacity(names.len());
        for name in names {
            let queue = key(&format!("waiting:{pool} {name}"));
            let count: u64 = self.0.query(what, cmd("ZCARD").arg(queue)).await?;
            let group = name.parse().map_err(|_| IndexError::Answer { what })?;
            waiting.push((group, count));
        }
        Ok(waiting)
    }

    /// State of the index; `None` if there is no index.
    pub async fn health(&self) -> Result<Option<Health>, IndexError> {
        let fields = ["ready", "watermark", "epoch"];
        let found: (Option<u8>, Option<u64>, Option<String>) =
            self.0.query("action_health", cmd("HMGET").arg(META).arg(&fields)).await?;
        Ok(found.0.map(|ready| Health {
            ready: ready == 1,
            // The end of a rebuild sets these two fields.
            watermark: Sequence(found.1.unwrap_or_default()),
            epoch: found.2.unwrap_or_default(),
        }))
    }

    /// The last heartbeat of every executor that is live at `now`, as it was sent.
    pub async fn executors(&self, now: Millis) -> Result<Vec<Vec<u8>>, IndexError> {
        let what = "action_executors";
        let later = format!("({}", now.0);
        let mut live = cmd("ZRANGEBYSCORE");
        live.arg(key("executors")).arg(later).arg("+inf");
        let live: Vec<String> = self.0.query(what, &live).await?;
        let mut found = Vec::with_capacity(live.len());
        for executor in live {
            let name = key(&format!("executor:{executor}"));
            let one: Option<Vec<u8>> = self.0.query(what, cmd("HGET").arg(name).arg("heartbeat")).await?;
            found.extend(one);
        }
        Ok(found)
    }
}
