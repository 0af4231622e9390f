//! Telling what is being done for an execution, to whoever waits for it.

use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use model::{ExecutionKey, ExecutionProgress, ExecutionStage};
use tracing::debug;

use crate::Shared;

/// Nobody reads of what is over sooner, and each message is carried through three processes.
const QUIET: Duration = Duration::from_millis(100);

/// Where one execution stands.
pub(crate) struct Progress<'a> {
    shared: &'a Shared,
    key: &'a ExecutionKey,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    stage: Option<ExecutionStage>,
    loud: bool,
}

impl<'a> Progress<'a> {
    /// It has only begun.
    pub(crate) fn of(shared: &'a Shared, key: &'a ExecutionKey) -> Self {
        Self { shared, key, state: Mutex::default() }
    }

    /// This is being done from now on.
    pub(crate) async fn enter(&self, stage: ExecutionStage) {
        if self.change(|state| state.stage = Some(stage)).loud {
            self.tell(stage).await;
        }
    }

    /// After a while, tells what is being done, and from then on at once. Never ends.
    pub(crate) async fn grow_loud(&self) -> Infallible {
        tokio::time::sleep(QUIET).await;
        if let Some(stage) = self.change(|state| state.loud = true).stage {
            self.tell(stage).await;
        }
        std::future::pending().await
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> State {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        *state
    }

    async fn tell(&self, stage: ExecutionStage) {
        let progress = ExecutionProgress {
            executor: self.shared.id.clone(),
            stage,
            at_ms: self.shared.context.bus.now(),
        };
        if let Err(error) = self.shared.context.bus.publish_progress(self.key, &progress).await {
            debug!(error = telemetry::error_chain(&error), "progress was not told");
        }
    }
}
