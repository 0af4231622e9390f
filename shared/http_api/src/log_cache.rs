//! Indexes of logs that were read recently, so that a window of a long log needs few messages.

use std::{collections::VecDeque, sync::Arc};

use client::BuildLogs;
use model::BuildKey;
use parking_lot::Mutex;

/// Maximum number of builds, and of pieces of all their logs: about 10 MB.
const BUILDS_MAX: usize = 256;
const PIECES_MAX: usize = 50_000;

/// The indexes of the logs of some builds, last used first.
#[derive(Debug, Default)]
pub(crate) struct LogCache {
    kept: Mutex<VecDeque<(BuildKey, Arc<BuildLogs>)>>,
}

impl LogCache {
    /// What is known of the logs of a build.
    pub(crate) fn get(&self, key: &BuildKey) -> Arc<BuildLogs> {
        let kept = self.kept.lock();
        kept.iter().find(|(of, _)| of == key).map(|(_, logs)| logs.clone()).unwrap_or_default()
    }

    /// Keeps the logs of a build and drops those that were used least recently.
    pub(crate) fn put(&self, key: BuildKey, logs: Arc<BuildLogs>) {
        let mut kept = self.kept.lock();
        kept.retain(|(of, _)| *of != key);
        kept.push_front((key, logs));
        let mut pieces = 0;
        let fitting = kept.iter().take(BUILDS_MAX).take_while(|(_, logs)| {
            pieces += logs.pieces();
            pieces <= PIECES_MAX
        });
        let fitting = fitting.count();
        kept.truncate(fitting);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use client::BuildLogs;
    use model::{BuildId, BuildKey};

    use super::{BUILDS_MAX, LogCache};

    #[test]
    fn the_builds_used_last_are_kept() {
        let cache = LogCache::default();
        let key = |_| BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        let keys: Vec<BuildKey> = (0..=BUILDS_MAX).map(key).collect();
        let logs: Vec<Arc<BuildLogs>> = keys.iter().map(|_| Arc::default()).collect();
        for number in 0..BUILDS_MAX {
            cache.put(keys[number].clone(), logs[number].clone());
        }
        cache.put(keys[0].clone(), logs[0].clone());
        cache.put(keys[BUILDS_MAX].clone(), logs[BUILDS_MAX].clone());
        let kept = |number: usize| Arc::ptr_eq(&cache.get(&keys[number]), &logs[number]);
        assert!(kept(0) && kept(BUILDS_MAX) && kept(2) && !kept(1));
    }
}
