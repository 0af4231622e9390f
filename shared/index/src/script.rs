//! The scripts and the keys.

use std::sync::Arc;

use redis::Script;

/// Every key has this prefix; the braces keep them in one slot of a cluster.
///
/// - `meta` HASH: `ready`, `watermark`, `epoch`, `turn`. No TTL. Its absence means: rebuild.
/// - `rebuild` STRING with TTL: who rebuilds.
/// - `groups` ZSET: groups with waiting builds, by whose turn it is. `queue:<group>` ZSET: its waiting
///   builds by priority, then age. `recent:<group>` LIST and `seen` SET: for listing.
/// - `builds` HASH: position, score and time of every unfinished build.
/// - `expires`, `offered`, `running`, `deadlines` ZSET by time in ms. `offers` HASH: build to workspace.
/// - `idle` SET and `taken` HASH of workspaces. `workers` ZSET by expiry, `workerinfo`, `slots` HASH, `draining` SET.
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
    pub(crate) commit_picks: Script,
    pub(crate) settle_offers: Script,
    pub(crate) announce_worker: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            apply_events: Script::new(include_str!("../lua/apply_events.lua")),
            begin_rebuild: Script::new(include_str!("../lua/begin_rebuild.lua")),
            finish_rebuild: Script::new(include_str!("../lua/finish_rebuild.lua")),
            read_heads: Script::new(include_str!("../lua/read_heads.lua")),
            commit_picks: Script::new(include_str!("../lua/commit_picks.lua")),
            settle_offers: Script::new(include_str!("../lua/settle_offers.lua")),
            announce_worker: Script::new(include_str!("../lua/announce_worker.lua")),
        }))
    }
}

impl std::ops::Deref for Scripts {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
