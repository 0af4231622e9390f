//! Fetches from registries: each blob once at a time, and few of a registry.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use model::BlobDigest;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Maximum number of layers that are fetched from a registry at a time.
const OF_REGISTRY: usize = 8;

/// What is in use, by key.
type InUse<K, V> = Mutex<HashMap<K, Weak<V>>>;

/// The fetches of a process.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    blobs: InUse<(String, BlobDigest), AsyncMutex<()>>,
    registries: InUse<String, Semaphore>,
}

/// The right to fetch a blob.
pub(crate) struct Turn {
    _blob: OwnedMutexGuard<()>,
    /// `None` only if the registry's semaphore were closed, which never happens.
    _registry: Option<OwnedSemaphorePermit>,
}

impl Fetches {
    /// Waits until nothing else fetches the blob from this registry, and few others are fetched from it. Registries do not
    /// wait for each other.
    pub(crate) async fn turn(&self, registry: &str, blob: &BlobDigest) -> Turn {
        let one = entry(&self.blobs, (registry.to_owned(), *blob), || AsyncMutex::new(()));
        let of_blob = one.lock_owned().await;
        let places = entry(&self.registries, registry.to_owned(), || Semaphore::new(OF_REGISTRY));
        Turn { _blob: of_blob, _registry: places.acquire_owned().await.ok() }
    }
}

/// The value of a key that something uses, or else a new one.
fn entry<K: Eq + Hash, V>(all: &InUse<K, V>, key: K, new: impl Fn() -> V) -> Arc<V> {
    let mut all = all.lock();
    if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, value| value.strong_count() > 0);
    let value = Arc::new(new());
    all.insert(key, Arc::downgrade(&value));
    value
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use model::Digest;

    use super::*;

    fn blob(number: usize) -> BlobDigest {
        Digest::of(number.to_string().as_bytes()).of_size(1)
    }

    #[tokio::test]
    async fn a_registry_that_hangs_delays_only_what_it_has() {
        let fetches = Fetches::default();
        let mut turns = Vec::new();
        for number in 0..OF_REGISTRY {
            turns.push(fetches.turn("hangs", &blob(number)).await);
        }
        assert!(fetches.turn("hangs", &blob(100)).now_or_never().is_none());
        let other = fetches.turn("other", &blob(0)).await;
        assert!(fetches.turn("other", &blob(0)).now_or_never().is_none(), "it is fetched once");
        drop((turns, other));
        assert!(fetches.turn("hangs", &blob(100)).now_or_never().is_some());
        assert_eq!(fetches.blobs.lock().len(), 1, "what nothing uses is forgotten");
    }
}
