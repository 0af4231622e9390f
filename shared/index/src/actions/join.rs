//! Selection of the execution that requests for the same action join instead of running it again.

use std::{fmt, time::Duration};

use model::{BlobDigest, Execution, ExecutionKey, Group, Zone};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// Key that executions must share to be merged: trust zone, quota group, action (digest and digest function) and instance name,
/// since results of zones and instances are kept apart. Its text is the field in `merge`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MergeKey(String);

impl MergeKey {
    /// The key of an execution; `None` if it may not be shared.
    pub fn of(execution: &Execution) -> Option<Self> {
        let Execution { group, action, instance, zone, .. } = execution;
        (!execution.do_not_cache).then(|| Self::named(zone.as_ref(), group, action, instance))
    }

    /// The key of shareable executions of an action.
    pub fn named(zone: Option<&Zone>, group: &Group, action: &BlobDigest, instance: &str) -> Self {
        match zone {
            None => Self(format!("{group} {action} {instance}")),
            // No name of a group has a slash.
            Some(zone) => Self(format!("{zone}/{group} {action} {instance}")),
        }
    }
}

impl fmt::Display for MergeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Outcome of a join request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// There is nothing to join: others join the candidate from now on.
    First,
    /// Join this execution. It may not have been written yet, so the caller writes it as well.
    Other(ExecutionKey),
}

impl Actions {
    /// Joins the waiting or running execution of `what`, or registers `candidate` as the one that others join. The
    /// caller knows that the executions in `over` have ended: they are neither joined nor in the way.
    ///
    /// The projection of the log keeps each shareable execution in `merge` from its first record to its end. An
    /// entry therefore exists exactly as long as the execution itself, which a record with a time to live, renewed
    /// by its executor, could only approximate. Until the projection knows the candidate, for at most `ttl`, a
    /// separate record holds it.
    pub async fn join(
        &self,
        what: &MergeKey,
        candidate: &ExecutionKey,
        over: &[ExecutionKey],
        ttl: Duration,
    ) -> Result<Joined, IndexError> {
        let call = "action_join";
        let mut invocation = self.0.action_scripts.join.prepare_invoke();
        invocation.key(META).arg(&what.0).arg(candidate.to_string());
        invocation.arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1));
        for key in over {
            invocation.arg(key.to_string());
        }
        let found: String = self.invoke(call, &mut invocation).await?;
        if found.is_empty() {
            return Ok(Joined::First);
        }
        let key = found.parse().map_err(|_| IndexError::Answer { what: call })?;
        Ok(Joined::Other(key))
    }
}
