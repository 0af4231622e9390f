//! The scripts and the keys.

use std::sync::Arc;

use redis::Script;

/// Every key has this prefix; the braces keep them in one slot of a cluster. An execution is spelt `<group>/<id>`.
///
/// - `meta` HASH: `ready`, `watermark`, `epoch`; `hold`, `guard`: until when nothing is offered, and nothing is overdue,
///   after a rebuild. No TTL. Its absence means: rebuild. `rebuild` STRING with TTL: who rebuilds.
/// - `live` HASH: position, score, latest time and pool of every unfinished execution. `records` HASH: its last record.
///   `positions` ZSET: the same executions by position.
/// - `pools` SET: pools with waiting executions. `waiting:<pool>` ZSET: these, by priority, then place. `expires` ZSET: all
///   that wait, by when they have waited too long.
/// - `claims` HASH: execution to executor. `claims:<executor>` SET: the same from the other side. `running` HASH: how many a
///   pool. `offered` ZSET: claims without an answer yet, by deadline; `asked` ZSET: those whose deadline passed and whose
///   executor was asked, by when that answer is due.
/// - `executors` ZSET by expiry; `members:<pool>` ZSET the same of one pool. `executor:<executor>` HASH: `pool`, `slots`,
///   `host`, `heartbeat`, `extra` (slots taken by what is not its claim), `open` (whether it is offered anything).
///   `free:<pool>` ZSET: open executors with free slots, by how many.
/// - `ended:<executor>` ZSET: the last executions that it ended itself, by position: a heartbeat may still name them.
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
    pub(crate) overdue: Script,
    pub(crate) queue: Script,
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
            overdue: script!("overdue"),
            queue: script!("queue"),
        }))
    }
}

impl std::ops::Deref for Scripts {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
