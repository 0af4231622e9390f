//! Applying the stream of executions, and rebuilding the index after Redis has lost it.

use model::{ExecutionKey, ExecutorId, Millis, Sequence};

use crate::{
    Applied, IndexError, RebuildToken,
    actions::{
        Actions, Event,
        script::{self, META},
    },
    rebuild::REBUILD_TTL_MS,
};

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
    ) -> Result<Applied<Effects>, IndexError> {
        self.apply_as("", from, to, events, now).await
    }

    /// Acquires the right to rebuild the index, and empties it; `None` if another projector has it.
    pub async fn begin_rebuild(&self) -> Result<Option<RebuildToken>, IndexError> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let mut invocation = self.0.action_scripts.begin_rebuild.prepare_invoke();
        invocation.key(META).arg(&token).arg(REBUILD_TTL_MS);
        let granted: u8 = self.invoke("action_begin_rebuild", &mut invocation).await?;
        Ok((granted == 1).then_some(RebuildToken(token)))
    }

    /// Adds `events` to the index being rebuilt.
    pub async fn load(
        &self,
        token: &RebuildToken,
        events: &[&Event],
        now: Millis,
    ) -> Result<Applied<Effects>, IndexError> {
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
        let done: u8 = self.invoke("action_finish_rebuild", &mut invocation).await?;
        Ok(done == 1)
    }

    /// Position from which a rebuild may start to read: every unfinished execution has its last record after it.
    /// `None` if there is no index.
    pub async fn floor(&self) -> Result<Option<Sequence>, IndexError> {
        let mut invocation = self.0.action_scripts.floor.prepare_invoke();
        invocation.key(META);
        let found: Option<u64> = self.invoke("action_floor", &mut invocation).await?;
        Ok(found.map(Sequence))
    }

    async fn apply_as(
        &self,
        token: &str,
        from: Sequence,
        to: Sequence,
        events: &[&Event],
        now: Millis,
    ) -> Result<Applied<Effects>, IndexError> {
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
            self.invoke(what, &mut invocation).await?;
        let effects = || {
            let read = |pair: &[String]| {
                let [key, executor] = pair else { return None };
                Some(StaleClaim { key: key.parse().ok()?, executor: executor.parse().ok()? })
            };
            let astray: Vec<StaleClaim> = astray.chunks(2).map(read).collect::<Option<_>>()?;
            let fresh: Vec<ExecutionKey> = fresh.iter().map(|key| key.parse().ok()).collect::<Option<_>>()?;
            Some(Effects { astray, fresh })
        };
        Applied::read(&status, watermark, effects).ok_or(IndexError::Answer { what })
    }

    /// Calls a script; the last arguments of each are the numbers of the policy.
    pub(super) async fn invoke<T: redis::FromRedisValue>(
        &self,
        what: &'static str,
        invocation: &mut redis::ScriptInvocation<'_>,
    ) -> Result<T, IndexError> {
        for number in script::policy_numbers() {
            invocation.arg(number);
        }
        let answer = invocation.invoke_async(&mut self.0.connection.clone()).await;
        answer.map_err(|source| IndexError::Call { what, source })
    }
}
