//! The Lua scripts and the keys that they use.

use std::{sync::Arc, time::Duration};

use policy::actions::{HALF_LIFE, LONG_AGO, RETURNED_WAIT};
use redis::Script;

/// Every key has this prefix; the braces keep all keys in one slot of a cluster.
/// An execution is written `<group>/<id>`.
///
/// - `meta` HASH: `ready`, `watermark`, `epoch`; `hold`, `guard`: times until which, after a rebuild, nothing is
///   granted and nothing is overdue. No TTL. If it is missing, the index must be rebuilt. `rebuild` STRING with TTL:
///   token of the process that rebuilds.
/// - `live` HASH: position, score, expiry time, cost and id of the requirements of every unfinished execution. `records` HASH: its last
///   record. `demands` HASH: its requirements on an executor (JSON). `ranges` HASH: number of these
///   executions by range of 1024 positions.
/// - `waiting` HASH: number of waiting executions by id of their requirements (`model::RequirementsId`). `heads:<id>` ZSET:
///   groups with such executions, by the score of the first. `waiting:<id> <group>` ZSET: the executions, by rank (band, then priority), then start
///   tag. `backlog` HASH: number of waiting executions by group. `expires` ZSET: all waiting executions by the time
///   at which they expire.
/// - `tags:<group>` HASH while the group waits: `i<flow>` the start tag of the next execution of a flow (an
///   invocation, or a level), `l<flow>` that of its last one, the empty field that of the execution started last.
/// - `use:<pool>` HASH: group to its past use, the resources that it holds, and the time of that count.
/// - `claims` HASH: execution to the executors that have a copy, each `<executor>@<pool>`. `claims:<executor>` SET: the same from the other
///   side. `running` HASH: copies by pool of their executor. `doubtful` ZSET of `<executor> <execution>`: claims that their
///   executor did not name, by the time at which it is asked; `asked` ZSET: claims that it was asked about, by the
///   time its answer is due.
/// - `hedges` ZSET: executions by the time at which another copy is due.
/// - `executors` ZSET by expiry; `members:<pool>` ZSET the same of one pool. `executor:<executor>`
///   HASH: `pool`, `host`, `heartbeat`; `granted`: number of the last grant; `notices`: the last ones,
///   `<number> <model::GrantNotice>` in a line each, if there are several schedulers.
/// - `merge` HASH: the join key (see [`super::MergeKey`]) of every unfinished execution that may be shared, to the
///   execution. `joining:<join key>` STRING with TTL: an execution that others join before its first record is applied.
/// - `followed` STRING with TTL: exists while a scheduler waits for another one to apply records.
/// - `awaited` SET: executors that have not sent a heartbeat since a rebuild.
///
/// The number is the version of the keys: what another version wrote is not read, and an index is built from the log.
pub(crate) const META: &str = "forebay:{actions}:2:meta";

pub(crate) fn key(name: &str) -> String {
    format!("forebay:{{actions}}:2:{name}")
}

/// The last arguments of every script: half-life of past use and minimum wait of a returned execution in milliseconds,
/// and the expiry of an execution that must not wait. `action_common.lua` removes them.
pub(super) fn policy_numbers() -> [u64; 3] {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    [millis(HALF_LIFE), millis(RETURNED_WAIT), LONG_AGO.0]
}

#[derive(Clone)]
pub(crate) struct Scripts(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) apply: Script,
    pub(crate) begin_rebuild: Script,
    pub(crate) finish_rebuild: Script,
    pub(crate) floor: Script,
    pub(crate) follow: Script,
    pub(crate) heads: Script,
    pub(crate) first: Script,
    pub(crate) commit: Script,
    pub(crate) announce: Script,
    pub(crate) lost: Script,
    pub(crate) due: Script,
    pub(crate) give_back: Script,
    pub(crate) queue: Script,
    pub(crate) backlog: Script,
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
            follow: script!("follow"),
            heads: script!("heads"),
            first: script!("first"),
            commit: script!("commit"),
            announce: script!("announce"),
            lost: script!("lost"),
            due: script!("due"),
            give_back: script!("give_back"),
            queue: script!("queue"),
            backlog: script!("backlog"),
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
