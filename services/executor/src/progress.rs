//! Reports the progress of an execution to waiting clients.

use std::{convert::Infallible, time::Duration};

use model::{ExecutionKey, ExecutionProgress, ExecutionStage};
use parking_lot::Mutex;
use tracing::debug;

use crate::shared::Shared;

/// Delay before progress is reported: shorter actions end before a report would be read, and each
/// message passes three processes.
const REPORT_DELAY: Duration = Duration::from_millis(100);

/// The progress of one execution.
pub(crate) struct Progress<'a> {
    shared: &'a Shared,
    key: &'a ExecutionKey,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    stage: Option<ExecutionStage>,
    reporting: bool,
}

impl<'a> Progress<'a> {
    /// Starts without a stage and without reports.
    pub(crate) fn of(shared: &'a Shared, key: &'a ExecutionKey) -> Self {
        Self { shared, key, state: Mutex::default() }
    }

    /// Enters a stage, and reports it once reports have started.
    pub(crate) async fn enter(&self, stage: ExecutionStage) {
        if self.change(|state| state.stage = Some(stage)).reporting {
            self.report(stage).await;
        }
    }

    /// After [`REPORT_DELAY`], reports the current stage and starts reporting changes at once. Never returns.
    pub(crate) async fn report_later(&self) -> Infallible {
        tokio::time::sleep(REPORT_DELAY).await;
        if let Some(stage) = self.change(|state| state.reporting = true).stage {
            self.report(stage).await;
        }
        std::future::pending().await
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> State {
        let mut state = self.state.lock();
        change(&mut state);
        *state
    }

    async fn report(&self, stage: ExecutionStage) {
        let progress = ExecutionProgress {
            executor: self.shared.id.clone(),
            stage,
            at_ms: self.shared.context.bus.now(),
        };
        if let Err(error) = self.shared.context.bus.publish_progress(self.key, &progress).await {
            debug!(error = telemetry::error_chain(&error), "failed to report progress");
        }
    }
}
