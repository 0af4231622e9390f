//! Which execution of an action others join instead of running it again.

use std::{fmt, time::Duration};

use model::{BlobDigest, Execution, ExecutionKey, Group};

use crate::{
    IndexError,
    actions::{Actions, script::META},
};

/// What executions must have in common to be one: quota group, action (digest and digest function) and instance name,
/// whose results are kept apart from those of others. Its text is the field in `merge`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MergeKey(String);

impl MergeKey {
    /// That of an execution; none for one that may not be shared.
    pub fn of(execution: &Execution) -> Option<Self> {
        let Execution { group, action, instance, .. } = execution;
        (!execution.do_not_cache).then(|| Self::named(group, action, instance))
    }

    /// That of executions of an action that may be shared.
    pub fn named(group: &Group, action: &BlobDigest, instance: &str) -> Self {
        Self(format!("{group} {action} {instance}"))
    }
}

impl fmt::Display for MergeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What became of joining.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// Nothing is to be joined: the candidate is what others join from now on.
    First,
    /// This is to be joined. It was found before it was written perhaps: whoever joins writes it too.
    Other(ExecutionKey),
}

impl Actions {
    /// Joins the execution of `what` that waits or runs, or makes `candidate` the one that others join. `over` is what the
    /// caller knows to have ended: none of it is joined, nor does it stand in the way.
    ///
    /// The projection of the log keeps in `merge` each execution that can be shared from its first record to its end. So
    /// what can be joined lives exactly as long as the execution itself, which a record with a time to live, renewed by
    /// its executor, could only approach. Until the projection knows of it, for at most `ttl`, the candidate stands
    /// in a record of its own.
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
        let found: String = self.invoke(call, &invocation).await?;
        if found.is_empty() {
            return Ok(Joined::First);
        }
        let key = found.parse().map_err(|_| IndexError::Answer { what: call })?;
        Ok(Joined::Other(key))
    }
}
