//! Caches of a few large things.

use std::hash::Hash;

use quick_cache::{
    DefaultHashBuilder, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

/// A cache of one shard, so that one large entry may take much of it.
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
    match options {
        Ok(options) => {
            Cache::with_options(options, weighter, DefaultHashBuilder::default(), DefaultLifecycle::default())
        }
        // Only missing capacities are refused.
        Err(_) => Cache::with_weighter(items, bytes, weighter),
    }
}
