//! Caches of a few large entries.

use std::hash::Hash;

use invariant::impossible;
use quick_cache::{
    DefaultHashBuilder, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

/// Creates a cache with one shard, so that one large entry may use much of it.
pub(crate) fn memo<K, V, W>(bytes: u64, weighter: W) -> Cache<K, V, W>
where
    K: Hash + Eq,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    let items = usize::try_from(bytes / 1024).unwrap_or(usize::MAX).clamp(16, 1 << 20);
    let options = OptionsBuilder::new()
        .shards(1)
        .estimated_items_capacity(items)
        .weight_capacity(bytes.max(1 << 16))
        .build();
    let Ok(options) = options else {
        impossible!("the options of a cache lack a capacity");
        return Cache::with_weighter(items, bytes, weighter);
    };
    Cache::with_options(options, weighter, DefaultHashBuilder::default(), DefaultLifecycle::default())
}
