//! Blocking work of asynchronous functions.

use crate::{CollectError, InputError};

/// Runs blocking work on a blocking thread, unless this thread is dedicated to such work.
pub(crate) async fn blocking<T: Send + 'static, E: From<Stopped> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    if cas::is_thread_dedicated() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Stopped.into()),
        },
    }
}

/// The runtime is shutting down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped;

impl From<Stopped> for InputError {
    fn from(_: Stopped) -> Self {
        Self::Stopping
    }
}

impl From<Stopped> for CollectError {
    fn from(_: Stopped) -> Self {
        Self::Stopping
    }
}
