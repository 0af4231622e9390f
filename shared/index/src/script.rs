//! The Lua scripts and the keys that they use.

use std::sync::Arc;

use redis::Script;

/// Every key has this prefix; the braces keep all keys in one slot of a cluster.
///
/// - `meta` HASH: `ready`, `watermark`, `epoch`, `order` (of the queues), `groups_version` (of the names in
///   `groups`). No TTL. If it is missing, the index must be rebuilt. `rebuild` STRING with TTL: token of
///   the process that rebuilds.
/// - `groups` SET: groups with waiting builds. `emergencies` SET: those of them with a waiting emergency. `queue:<group>` ZSET: its waiting builds by priority, then their order.
///   `recent:<group>` LIST and `seen` SET: for listing. `ends:<group>` LIST: when its last runs ended, in ms.
/// - `inprogress:<group>` HASH: micro-ESU by executor type of its builds that are offered or running, by their
///   estimates. `ended:<group>` HASH: the same of all its runs that ended. `versions` HASH: version of each group's
///   budget; changes whenever builds of the group are offered, or return to its queue after an offer.
/// - `builds` HASH: for every unfinished build its position, score, time, use and occupancy (unless they are the
///   default) and expected run time.
/// - `expires`, `offered`, `running`, `deadlines` ZSET by time in ms. `offers` HASH: offered or running build to workspace; `taken` HASH: the reverse.
/// - `idle` SET of workspaces. `workers` ZSET by expiry, `workerinfo`, `slots` HASH, `draining` SET:
///   workers that accept no builds; `full` SET: those of them whose disk is full or whose store does not answer.
pub(crate) const META: &str = "forebay:{index}:meta";

pub(crate) fn key(name: &str) -> String {
    format!("forebay:{{index}}:{name}")
}

#[derive(Clone)]
pub(crate) struct Scripts(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) apply_events: Script,
    pub(crate) begin_rebuild: Script,
    pub(crate) finish_rebuild: Script,
    pub(crate) read_heads: Script,
    pub(crate) read_page: Script,
    pub(crate) why: Script,
    pub(crate) demands: Script,
    pub(crate) queue_depths: Script,
    pub(crate) waiting_counts: Script,
    pub(crate) commit_picks: Script,
    pub(crate) settle_offers: Script,
    pub(crate) run_out: Script,
    pub(crate) take_back: Script,
    pub(crate) announce_worker: Script,
}

macro_rules! script {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("../lua/build_common.lua"),
            include_str!(concat!("../lua/", $name, ".lua"))
        ))
    };
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            apply_events: script!("apply_events"),
            begin_rebuild: script!("begin_rebuild"),
            finish_rebuild: script!("finish_rebuild"),
            read_heads: script!("read_heads"),
            read_page: script!("read_page"),
            why: script!("why"),
            demands: script!("demands"),
            queue_depths: script!("queue_depths"),
            waiting_counts: script!("waiting_counts"),
            commit_picks: script!("commit_picks"),
            settle_offers: script!("settle_offers"),
            run_out: script!("run_out"),
            take_back: script!("take_back"),
            announce_worker: script!("announce_worker"),
        }))
    }
}

impl std::ops::Deref for Scripts {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
