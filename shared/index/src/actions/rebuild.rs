//! Applying the stream of executions, and rebuilding the index after Redis has lost it.

use model::{ExecutionKey, ExecutorId, Millis, Sequence};

use crate::{
    IndexError, RebuildToken,
    actions::{Actions, Event, script::META},
    rebuild::REBUILD_TTL_MS,
};

/// Outcome of applying a batch of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The events are in the index. The effects are empty if they had been applied before.
    Done(Effects),
    /// The index is at this earlier position: read again from there.
    Gap(Sequence),
    /// There is no index: rebuild it.
    Empty,
    /// Another projector is rebuilding it: retry soon.
    Rebuilding,
    /// Another projector took over this rebuild.
    Lost,
}

/// Effects of a batch of events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// Executors that still hold executions which another process ended.
    pub astray: Vec<StaleClaim>,
    /// Executions that wait since these events, and did not wait before.
    pub fresh: Vec<ExecutionKey>,
}

/// An executor that holds an execution which another process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleClaim {
    pub key: ExecutionKey,
    pub executor: ExecutorId,
}

impl Actions {
    /// Applies `events`, read after position `from` up to position `to`.
    pub async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        events: &[&Event],
        now: Millis,
    ) -> Result<Applied, IndexError> {
        self.apply_as("", from, to, events, now).await
    }

    /// Acquires the right to rebuild the index, and empties it; `None` if another projector has it.
    pub async fn begin_rebuild(&self) -> Result<Option<RebuildToken>, IndexError> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let mut invocation = self.0.action_scripts.begin_rebuild.prepare_invoke();
        invocation.key(META).arg(&token).arg(REBUILD_TTL_MS);
        let granted: u8 = self.invoke("action_begin_rebuild", &invocation).await?;
        Ok((granted == 1).then_some(RebuildToken(token)))
    }

    /// Adds `events` to the index being rebuilt.
    pub async fn load(
        &self,
        token: &RebuildToken,
        events: &[&Event],
        now: Millis,
    ) -> Result<Applied, IndexError> {
        self.apply_as(&token.0, Sequence(0), Sequence(0), events, now).await
    }

    /// Declares the index ready at `watermark`; returns false if the right was lost.
    ///
    /// Nothing is granted until `hold` and nothing counts as overdue until `guard`, unless all of `executors`, which
    /// may be running executions, have sent a heartbeat before.
    pub async fn finish_rebuild(
        &self,
        token: &RebuildToken,
        watermark: Sequence,
        executors: &[ExecutorId],
        hold: Millis,
        guard: Millis,
    ) -> Result<bool, IndexError> {
        let mut invocation = self.0.action_scripts.finish_rebuild.prepare_invoke();
        invocation.key(META).arg(&token.0).arg(watermark.0).arg(hold.0).arg(guard.0);
        for executor in executors {
            invocation.arg(executor.as_str());
        }
        let done: u8 = self.invoke("action_finish_rebuild", &invocation).await?;
        Ok(done == 1)
    }

    /// Position from which a rebuild may start to read: every unfinished execution has its last record after it.
    /// `None` if there is no index.
    pub async fn floor(&self) -> Result<Option<Sequence>, IndexError> {
        let mut invocation = self.0.action_scripts.floor.prepare_invoke();
        invocation.key(META);
        let found: Option<u64> = self.invoke("action_floor", &invocation).await?;
        Ok(found.map(Sequence))
    }

    async fn apply_as(
        &self,
        token: &str,
        from: Sequence,
        to: Sequence,
        events: &[&Event],
        now: Millis,
    ) -> Result<Applied, IndexError> {
        let what = "action_apply";
        let mut invocation = self.0.action_scripts.apply.prepare_invoke();
        invocation
            .key(META)
            .arg(from.0)
            .arg(to.0)
            .arg(token)
            .arg(REBUILD_TTL_MS)
            .arg(now.0)
            .arg(events.len());
        for event in events {
            event.write(&mut invocation);
        }
        let (status, watermark, astray, fresh): (String, u64, Vec<String>, Vec<String>) =
            self.invoke(what, &invocation).await?;
        match status.as_str() {
            "applied" => {
                let read = |pair: &[String]| {
                    let [key, executor] = pair else { return None };
                    Some(StaleClaim { key: key.parse().ok()?, executor: executor.parse().ok()? })
                };
                let astray: Option<Vec<StaleClaim>> = astray.chunks(2).map(read).collect();
                let fresh: Option<Vec<ExecutionKey>> = fresh.iter().map(|key| key.parse().ok()).collect();
                let effects = astray.zip(fresh).map(|(astray, fresh)| Effects { astray, fresh });
                effects.map(Applied::Done).ok_or(IndexError::Answer { what })
            }
            "gap" => Ok(Applied::Gap(Sequence(watermark))),
            "empty" => Ok(Applied::Empty),
            "rebuilding" => Ok(Applied::Rebuilding),
            "lost" => Ok(Applied::Lost),
            _ => Err(IndexError::Answer { what }),
        }
    }

    pub(super) async fn invoke<T: redis::FromRedisValue>(
        &self,
        what: &'static str,
        invocation: &redis::ScriptInvocation<'_>,
    ) -> Result<T, IndexError> {
        let answer = invocation.invoke_async(&mut self.0.connection.clone()).await;
        answer.map_err(|source| IndexError::Call { what, source })
    }
}
