//! What each caller may do at once, so that none keeps the others waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use model::AuditProof;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Caller;

/// Number of callers that are remembered before those without a turn are forgotten.
const CALLERS_MAX: usize = 256;

/// Turns of callers, of which each has the same number.
#[derive(Debug)]
pub struct Shares {
    each: usize,
    held: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    /// Each caller has at most `each` turns at once.
    pub fn new(each: usize) -> Self {
        Self { each, held: Mutex::default() }
    }

    /// Waits for a turn of this caller, in a farm with access rules; without, callers cannot be told apart. Builds share the
    /// turns of their group.
    pub async fn turn(&self, caller: &Caller) -> Option<OwnedSemaphorePermit> {
        if !caller.is_ruled {
            return None;
        }
        // Never closed: only then there would be no turn.
        self.of(caller).acquire_owned().await.ok()
    }

    fn of(&self, caller: &Caller) -> Arc<Semaphore> {
        let group = caller.name.rsplit_once('/').filter(|_| caller.proof == AuditProof::Build);
        let name = group.map_or(caller.name.as_str(), |(group, _)| group);
        let mut held = self.held.lock();
        if let Some(found) = held.get(name).and_then(Weak::upgrade) {
            return found;
        }
        if held.len() >= CALLERS_MAX {
            held.retain(|_, turns| turns.strong_count() > 0);
        }
        let new = Arc::new(Semaphore::new(self.each));
        held.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use policy::access::Rights;

    use super::*;

    #[test]
    fn a_caller_waits_for_itself_and_for_no_other() {
        let caller = |name: &str| Caller::ruled(name.to_owned(), AuditProof::Key, Rights::all());
        let (one, other) = (caller("key:one"), caller("key:other"));
        let shares = Shares::new(2);
        let mut held: Vec<_> = (0..2).map(|_| shares.turn(&one).now_or_never().unwrap()).collect();
        assert!(shares.turn(&one).now_or_never().is_none());
        assert!(shares.turn(&other).now_or_never().is_some());
        held.pop();
        assert!(shares.turn(&one).now_or_never().is_some());
    }
}
