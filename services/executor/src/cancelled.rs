//! Cancellations of executions that this executor does not hold yet.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use model::ExecutionKey;
use parking_lot::Mutex;

/// Recently cancelled executions that were not held here: a cancellation may overtake the claim of its action.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Mutex<VecDeque<(Instant, ExecutionKey)>>);

/// How long a cancellation is remembered: claims arrive sooner.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

impl Cancelled {
    /// Records a cancellation whose action is not held yet.
    pub(crate) fn note(&self, execution: ExecutionKey) {
        let mut all = self.0.lock();
        while all.front().is_some_and(|(at, _)| at.elapsed() > ON_ITS_WAY) {
            all.pop_front();
        }
        all.push_back((Instant::now(), execution));
    }

    /// Whether it was cancelled recently.
    pub(crate) fn has(&self, execution: &ExecutionKey) -> bool {
        self.0.lock().iter().any(|(at, key)| key == execution && at.elapsed() <= ON_ITS_WAY)
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    #[test]
    fn an_order_that_overtakes_what_it_is_about_is_remembered() {
        let key = || ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() };
        let (cancelled, one) = (Cancelled::default(), key());
        cancelled.note(one.clone());
        assert!(cancelled.has(&one) && !cancelled.has(&key()));
    }
}
