//! The scripts and the keys.

use std::sync::Arc;

use redis::Script;

/// Every key has this prefix; the braces keep them in one slot of a cluster. An execution is spelt `<group>/<id>`.
///
/// - `meta` HASH: `ready`, `watermark`, `epoch`; `hold`, `guard`: until when nothing is offered, and nothing is overdue,
///   after a rebuild. No TTL. Its absence means: rebuild. `rebuild` STRING with TTL: who rebuilds.
/// - `live` HASH: position, score, latest time, cost and pool of every unfinished execution. `records` HASH: its last record.
///   `demands` HASH: what it wants of an executor (JSON). `positions` ZSET: the same executions by position.
/// - `pools` SET: pools with waiting executions. `waiting` HASH: how many in each. `groups:<pool>` SET: groups that wait there.
///   `waiting:<pool> <group>` ZSET: the executions, by priority, then start tag. `expires` ZSET: all that wait, by when they
///   have waited too long.
/// - `tags:<pool> <group>` HASH while the group waits: `i<invocation>` the start tag of its next execution, `l<invocation>`
///   that of its last one, the empty field that of the one which started last.
/// - `use:<pool>` HASH: group to what it used, what it holds, and when that was counted.
/// - `claims` HASH: execution to the executors that have a copy. `claims:<executor>` SET: the same from the other side.
///   `running` HASH: copies of each pool. `doubtful` ZSET of `<executor> <execution>`: claims that their executor did not
///   name, by when it is asked; `asked` ZSET: those it was asked for, by when that answer is due.
/// - `hedges` ZSET: executions by when one copy more is due.
/// - `executors` ZSET by expiry; `members:<pool>` ZSET the same of one pool. `executor:<executor>` HASH: `pool`, `host`,
///   `heartbeat`.
/// - `merge` HASH: for every unfinished execution that may be shared, what others have in common with it (see
///   [`super::MergeKey`]) to the execution. `joining:<the same>` STRING with TTL: an execution that others join before
///   its first record is applied.
/// - `awaited` SET: executors that have not been heard of since a rebuild.
pub(crate) const META: &str = "forebay:{actions}:meta";

pub(crate) fn key(name: &str) -> String {
    format!("forebay:{{actions}}:{name}")
}

#[derive(Clone)]
pub(crate) struct Scripts(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) apply: Script,
    pub(crate) begin_rebuild: Script,
    pub(crate) finish_rebuild: Script,
    pub(crate) floor: Script,
    pub(crate) heads: Script,
    pub(crate) commit: Script,
    pub(crate) announce: Script,
    pub(crate) lost: Script,
    pub(crate) due: Script,
    pub(crate) give_back: Script,
    pub(crate) queue: Script,
    pub(crate) join: Script,
}

macro_rules! script {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("../../lua/action_common.lua"),
            include_str!(concat!("../../lua/action_", $name, ".lua"))
        ))
    };
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            apply: script!("apply"),
            begin_rebuild: script!("begin_rebuild"),
            finish_rebuild: script!("finish_rebuild"),
            floor: script!("floor"),
            heads: script!("heads"),
            commit: script!("commit"),
            announce: script!("announce"),
            lost: script!("lost"),
            due: script!("due"),
            give_back: script!("give_back"),
            queue: script!("queue"),
            join: script!("join"),
        }))
    }
}

impl std::ops::Deref for Scripts {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
