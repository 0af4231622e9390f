//! Heartbeats of executors, and the handling of lost executors.

use std::time::Duration;

use model::{
    Demand, ExecutionKey, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Millis, RequirementsId, Sequence,
};
use redis::cmd;

use crate::{
    IndexError,
    actions::{
        Actions,
        dispatch::read_ids,
        script::{META, key},
    },
};

/// Result of applying a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Whether the index is ready.
    pub ready: bool,
    /// Ids of the requirements of the executions that were requeued because of it.
    pub again: Vec<RequirementsId>,
    /// Executions that the executor holds and the index does not know: they have ended.
    pub dead: Vec<ExecutionKey>,
    /// Executions that the executor holds and that were not known, after a rebuild: no further copy is due for them.
    pub found: Vec<(ExecutionKey, Demand)>,
}

/// Actions that can be due for an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The execution expires: it has waited too long.
    Expiry,
    /// Another copy of the execution starts.
    Hedge,
}

/// An execution that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveExecution {
    pub key: ExecutionKey,
    /// Position of its last record.
    pub sequence: Sequence,
    /// Its last record, as it is stored.
    pub record: Vec<u8>,
}

/// State left behind by a lost executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Name of its machine, if known.
    pub host: Option<String>,
    /// Executions that it held.
    pub executions: Vec<LiveExecution>,
}

impl Actions {
    /// Applies an executor's heartbeat; `encoded` is the heartbeat as it was sent.
    ///
    /// An execution that the executor should hold but does not name is requeued if it stays unnamed for `grace`.
    pub async fn announce(
        &self,
        heartbeat: &ExecutorHeartbeat,
        encoded: &[u8],
        now: Millis,
        grace: Duration,
    ) -> Result<Heard, IndexError> {
        let what = "action_announce";
        let gone = u8::from(heartbeat.status == ExecutorStatus::Gone);
        let mut invocation = self.0.action_scripts.announce.prepare_invoke();
        invocation.key(META).arg(heartbeat.executor.as_str()).arg(now.0);
        invocation.arg(now.0.saturating_add(heartbeat.ttl_ms)).arg(gone).arg(heartbeat.pool.as_str());
        invocation.arg(&heartbeat.host);
        invocation.arg(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)).arg(encoded);
        for execution in &heartbeat.running {
            invocation.arg(execution.to_string());
        }
        let (ready, again, dead, found): (u8, Vec<String>, Vec<String>, Vec<String>) =
            self.invoke(what, &mut invocation).await?;
        let parse_keys = |keys: Vec<String>| {
            let keys: Option<Vec<ExecutionKey>> = keys.iter().map(|key| key.parse().ok()).collect();
            keys.ok_or(IndexError::Answer { what })
        };
        let read_found = |pair: &[String]| match pair {
            [key, demand] => Some((key.parse().ok()?, serde_json::from_str(demand).ok()?)),
            _ => None,
        };
        let found =
            found.chunks(2).map(read_found).collect::<Option<_>>().ok_or(IndexError::Answer { what })?;
        let again = read_ids(&again).ok_or(IndexError::Answer { what })?;
        Ok(Heard { ready: ready == 1, again, dead: parse_keys(dead)?, found })
    }

    /// Schedules another copy of each execution at its time, unless one is scheduled already.
    pub async fn hedge_at(&self, due: &[(ExecutionKey, Millis)]) -> Result<(), IndexError> {
        if due.is_empty() {
            return Ok(());
        }
        let mut add = cmd("ZADD");
        add.arg(key("hedges")).arg("NX");
        for (execution, at) in due {
            add.arg(at.0).arg(execution.to_string());
        }
        self.0.query::<u64>("hedge_at", &add).await.map(drop)
    }

    /// Removes a lost executor and returns the executions that it held. Its claims stay until the events
    /// that follow are applied.
    pub async fn lost(&self, executor: &ExecutorId) -> Result<Lost, IndexError> {
        let what = "action_lost";
        let mut invocation = self.0.action_scripts.lost.prepare_invoke();
        invocation.key(META).arg(executor.as_str());
        let found: Vec<Vec<u8>> = self.invoke(what, &mut invocation).await?;
        let (host, rest) = found.split_first().ok_or(IndexError::Answer { what })?;
        let host = String::from_utf8_lossy(host).into_owned();
        Ok(Lost { host: (!host.is_empty()).then_some(host), executions: read_live(rest, what)? })
    }

    /// Up to `max` executions with an action due at `now`. They are returned again at `again` if it is still due.
    pub async fn due(
        &self,
        due: Due,
        now: Millis,
        again: Millis,
        max: usize,
    ) -> Result<Vec<LiveExecution>, IndexError> {
        let what = "action_due";
        let set = match due {
            Due::Expiry => "expires",
            Due::Hedge => "hedges",
        };
        let mut invocation = self.0.action_scripts.due.prepare_invoke();
        invocation.key(META).arg(set).arg(now.0).arg(again.0).arg(max);
        let found: Vec<Vec<u8>> = self.invoke(what, &mut invocation).await?;
        read_live(&found, what)
    }

    /// The executors that hold at least one execution.
    pub async fn holders(&self) -> Result<Vec<ExecutorId>, IndexError> {
        let found: Vec<String> = self.0.query("action_holders", cmd("HVALS").arg(key("claims"))).await?;
        let distinct: std::collections::BTreeSet<ExecutorId> = found
            .iter()
            .flat_map(|all| all.split_whitespace())
            .filter_map(|holder| holder.split_once('@')?.0.parse().ok())
            .collect();
        Ok(distinct.into_iter().collect())
    }
}

fn read_live(flat: &[Vec<u8>], what: &'static str) -> Result<Vec<LiveExecution>, IndexError> {
    let read = |parts: &[Vec<u8>]| {
        let [key, sequence, record] = parts else { return None };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(LiveExecution {
            key: text(key)?.parse().ok()?,
            sequence: Sequence(text(sequence)?.parse().ok()?),
            record: record.clone(),
        })
    };
    flat.chunks(3).map(read).collect::<Option<_>>().ok_or(IndexError::Answer { what })
}
