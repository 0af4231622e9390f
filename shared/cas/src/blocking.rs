//! Calls that block: how many run at a time, and on which threads.

use std::{cell::Cell, sync::Arc};

use tokio::sync::Semaphore;

use crate::CasError;

/// Maximum number of concurrent calls to the disk; more would only slow each other down.
const CALLS_MAX: usize = 64;

thread_local! {
    static DEDICATED: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread serves one task at a time, so that a blocking call delays no other task. From then on
/// blocking calls run directly on it: handing them to another thread and back takes longer than most of them.
pub fn dedicate_thread() {
    DEDICATED.set(true);
}

/// Whether blocking calls may run on this thread.
pub fn is_thread_dedicated() -> bool {
    DEDICATED.get()
}

/// Runs blocking calls, a limited number at a time.
#[derive(Debug)]
pub(crate) struct BlockingCalls {
    permits: Arc<Semaphore>,
}

impl BlockingCalls {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// Runs `work` with `state`: here if the thread is dedicated, otherwise on a blocking thread.
    pub(crate) async fn run<S: Send + Sync + 'static, T: Send + 'static>(
        &self,
        state: &Arc<S>,
        work: impl FnOnce(&S) -> Result<T, CasError> + Send + 'static,
    ) -> Result<T, CasError> {
        if is_thread_dedicated() {
            return work(state);
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| CasError::Stopping)?;
        let state = Arc::clone(state);
        let done = tokio::task::spawn_blocking(move || {
            let outcome = work(&state);
            drop(permit);
            outcome
        });
        done.await.map_err(|_| CasError::Stopping)?
    }
}
