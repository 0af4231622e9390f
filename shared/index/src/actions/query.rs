//! Queries of gateways, `top` and `doctor`.

use std::time::Duration;

use model::{
    Demand, ExecutionKey, ExecutorId, Group, Millis, PoolName, Requirements, RequirementsId, Sequence,
};
use redis::cmd;

use crate::{
    Health, IndexError,
    actions::{
        Actions,
        script::{META, key},
    },
};

/// The queue of executions with the same requirements, and an execution's place in it or its executor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// Whether the index is ready and the other fields are reliable.
    pub ready: bool,
    /// Number of live executors of the pools.
    pub executors: u64,
    /// Number of executions that wait with these requirements.
    pub waiting: u64,
    /// Number of executions that the executors of the pools hold.
    pub running: u64,
    /// Number of executions of its group ahead of this one; `None` if it does not wait.
    pub place: Option<u64>,
    /// Number of executions of other groups that come before it if groups take turns.
    pub others: u64,
    /// Expected run time of the executions before it, on average.
    pub mean: Duration,
    /// The executor that holds it, if any.
    pub executor: Option<ExecutorId>,
}

type RawQueue = (u8, u64, u64, u64, i64, String, u64, Vec<String>);

/// Waiting executions with the same requirements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// What they require of their executor.
    pub requirements: Requirements,
    /// Number of them by group.
    pub groups: Vec<(Group, u64)>,
}

impl Actions {
    /// The queue of executions with these requirements, which the executors of `pools` meet, and the place of `execution`
    /// in it. One call for a queue of any length.
    pub async fn queue<'a>(
        &self,
        requirements: &RequirementsId,
        pools: impl IntoIterator<Item = &'a PoolName>,
        execution: Option<&ExecutionKey>,
        now: Millis,
    ) -> Result<Queue, IndexError> {
        let mut invocation = self.0.action_scripts.queue.prepare_invoke();
        invocation.key(META).arg(now.0).arg(requirements.as_str());
        invocation.arg(execution.map(ToString::to_string).unwrap_or_default());
        for pool in pools {
            invocation.arg(pool.as_str());
        }
        let answer: RawQueue = self.invoke("action_queue", &mut invocation).await?;
        let (ready, executors, waiting, running, place, executor, others, sample) = answer;
        let expected = sample.iter().filter_map(|demand| serde_json::from_str::<Demand>(demand).ok());
        let expected: Vec<u64> = expected.map(|demand| demand.expected_ms).collect();
        let sum: u64 = expected.iter().fold(0, |sum, each| sum.saturating_add(*each));
        Ok(Queue {
            ready: ready == 1,
            executors,
            waiting,
            running,
            place: u64::try_from(place).ok(),
            others,
            mean: Duration::from_millis(sum / expected.len().max(1) as u64),
            executor: executor.parse().ok(),
        })
    }

    /// The requirements of all waiting executions, with the number that wait of each group.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, IndexError> {
        let what = "action_backlog";
        let mut invocation = self.0.action_scripts.backlog.prepare_invoke();
        invocation.key(META);
        let found: Vec<(String, Vec<String>)> = self.invoke(what, &mut invocation).await?;
        let read = |(demand, groups): &(String, Vec<String>)| {
            let demand: Demand = serde_json::from_str(demand).ok()?;
            let count = |pair: &[String]| match pair {
                [group, count] => Some((group.parse().ok()?, count.parse().ok()?)),
                _ => None,
            };
            let groups = groups.chunks(2).map(count).collect::<Option<_>>()?;
            Some(Backlog { requirements: demand.requirements, groups })
        };
        found.iter().map(read).collect::<Option<_>>().ok_or(IndexError::Answer { what })
    }

    /// Number of waiting executions.
    pub async fn waiting(&self) -> Result<u64, IndexError> {
        let by_requirements: Vec<u64> =
            self.0.query("action_waiting", cmd("HVALS").arg(key("waiting"))).await?;
        Ok(by_requirements.iter().sum())
    }

    /// Number of executions that the executors of a pool hold.
    pub async fn running(&self, pool: &PoolName) -> Result<u64, IndexError> {
        let running: Option<u64> =
            self.0.query("action_running", cmd("HGET").arg(key("running")).arg(pool.as_str())).await?;
        Ok(running.unwrap_or_default())
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
