//! Applying the stream of executions, and rebuilding the index after Redis has lost it.

use invariant::Present as _;
use model::{ExecutionKey, ExecutorId, Grants, Millis, Sequence};

use crate::{
    Applied, IndexError, RebuildToken,
    actions::{
        Actions, Change, Committed, Event, Grant,
        dispatch::read_committed,
        script::{self, META},
    },
    rebuild::REBUILD_TTL_MS,
};

/// Effects of a batch of events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// Executors that still hold executions which another process ended.
    pub astray: Vec<StaleClaim>,
    /// Whether this call applied some of the events, not an earlier one of another process.
    pub applied_here: bool,
    /// Whether this call applied all of the events.
    pub was_first: bool,
    /// Whether other processes wait for this one to apply events.
    pub is_followed: bool,
    /// The result of each grant; empty if the events were applied before.
    pub granted: Vec<Committed>,
}

/// An executor that holds an execution which another process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleClaim {
    pub key: ExecutionKey,
    pub executor: ExecutorId,
}

type RawEffects = (String, u64, Vec<String>, u8, Vec<(u64, i64, Vec<String>)>, u8);

/// Time in milliseconds for which a process counts as waiting for another one to apply events.
const FOLLOWED_TTL_MS: u64 = 30_000;

/// The record of `key` among `events`, as it is stored.
fn record_of(key: &ExecutionKey, events: &[&Event]) -> String {
    let record = events.iter().find_map(|event| match &event.change {
        Change::Open(_, open) if event.key == *key => {
            Some(String::from_utf8_lossy(&open.record).into_owned())
        }
        Change::Open(..) | Change::Finished { .. } => None,
    });
    record.present("a grant of an execution that is not among the events")
}

impl Actions {
    /// Applies `events`, read after position `from` up to position `to`. Executions that begin to wait with these events
    /// and are among `grants` are claimed at once.
    pub async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        events: &[&Event],
        grants: &[Grant],
        now: Millis,
    ) -> Result<Applied<Effects>, IndexError> {
        self.apply_as("", (from, to), events, grants, now).await
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
        self.apply_as(&token.0, (Sequence(0), Sequence(0)), events, &[], now).await
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

    /// Position up to which events are applied; `None` if there is no index. The process that applies them learns that
    /// this one waits for it.
    pub async fn follow(&self) -> Result<Option<Sequence>, IndexError> {
        let mut invocation = self.0.action_scripts.follow.prepare_invoke();
        invocation.key(META).arg(FOLLOWED_TTL_MS);
        let found: Option<u64> = self.invoke("action_follow", &mut invocation).await?;
        Ok(found.map(Sequence))
    }

    async fn apply_as(
        &self,
        token: &str,
        (from, to): (Sequence, Sequence),
        events: &[&Event],
        grants: &[Grant],
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
            .arg(now.after(Grants::IN_FLIGHT_MAX).0)
            .arg(events.len());
        for event in events {
            event.write(&mut invocation);
        }
        for grant in grants {
            grant.write(&mut invocation);
        }
        let answer: RawEffects = self.invoke(what, &mut invocation).await?;
        let (status, watermark, astray, applied, granted, followed) = answer;
        let effects = || {
            let read = |pair: &[String]| {
                let [key, executor] = pair else { return None };
                Some(StaleClaim { key: key.parse().ok()?, executor: executor.parse().ok()? })
            };
            let astray: Vec<StaleClaim> = astray.chunks(2).map(read).collect::<Option<_>>()?;
            let granted = grants.iter().zip(granted);
            let granted = granted
                .map(|(grant, answer)| read_committed(grant, answer, || record_of(&grant.key, events)))
                .collect();
            Some(Effects {
                astray,
                applied_here: applied > 0,
                was_first: applied == 2,
                is_followed: followed == 1,
                granted,
            })
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
        self.0.invoke(what, invocation).await
    }
}
