//! What gateways, `top` and `doctor` ask.

use model::{ExecutionKey, ExecutorId, Millis, PoolName, Sequence};
use redis::cmd;

use crate::{
    Health, IndexError,
    actions::{
        Actions,
        script::{META, key},
    },
};

/// Why an execution waits, or who has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// Whether the rest can be relied on.
    pub ready: bool,
    /// Executors of the pool that live.
    pub executors: u64,
    /// Executions that wait for them.
    pub waiting: u64,
    /// Executions that they have in hand.
    pub running: u64,
    /// How many come before the execution; `None` when it does not wait.
    pub place: Option<u64>,
    /// Who has it.
    pub executor: Option<ExecutorId>,
}

impl Actions {
    /// What the queue of `pool` looks like, and where `execution` stands in it. One call, whatever its depth.
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
            self.invoke("action_queue", &invocation).await?;
        Ok(Queue {
            ready: ready == 1,
            executors,
            waiting,
            running,
            place: u64::try_from(place).ok(),
            executor: executor.parse().ok(),
        })
    }

    /// Whether the index can be used; `None` when there is none.
    pub async fn health(&self) -> Result<Option<Health>, IndexError> {
        let fields = ["ready", "watermark", "epoch"];
        let found: (Option<u8>, Option<u64>, Option<String>) =
            self.0.ask("action_health", cmd("HMGET").arg(META).arg(&fields)).await?;
        Ok(found.0.map(|ready| Health {
            ready: ready == 1,
            watermark: Sequence(found.1.unwrap_or_default()),
            epoch: found.2.unwrap_or_default(),
        }))
    }

    /// The last heartbeat of every executor that is not gone at `now`, as it was sent.
    pub async fn executors(&self, now: Millis) -> Result<Vec<Vec<u8>>, IndexError> {
        let what = "action_executors";
        let later = format!("({}", now.0);
        let mut live = cmd("ZRANGEBYSCORE");
        live.arg(key("executors")).arg(later).arg("+inf");
        let live: Vec<String> = self.0.ask(what, &live).await?;
        let mut found = Vec::with_capacity(live.len());
        for executor in live {
            let name = key(&format!("executor:{executor}"));
            let one: Option<Vec<u8>> = self.0.ask(what, cmd("HGET").arg(name).arg("heartbeat")).await?;
            found.extend(one);
        }
        Ok(found)
    }
}
