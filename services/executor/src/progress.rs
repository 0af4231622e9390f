//! Reports the progress of an execution to waiting clients.

use std::{convert::Infallible, time::Duration};

use images::PullProgress;
use model::{ExecutionKey, ExecutionProgress, ExecutionStage, ImageFetch};
use parking_lot::Mutex;
use tracing::debug;

use crate::shared::Shared;

/// Delay before progress is reported: shorter actions end before a report would be read, and each
/// message passes three processes.
const REPORT_DELAY: Duration = Duration::from_millis(100);

/// Time between two reports about an image that is fetched.
const IMAGE_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of one execution.
pub(crate) struct Progress<'a> {
    shared: &'a Shared,
    key: &'a ExecutionKey,
    state: Mutex<State>,
    pull: PullProgress,
}

#[derive(Clone, Copy, Default)]
struct State {
    stage: Option<ExecutionStage>,
    reporting: bool,
}

impl<'a> Progress<'a> {
    /// Starts without a stage and without reports.
    pub(crate) fn of(shared: &'a Shared, key: &'a ExecutionKey) -> Self {
        Self { shared, key, state: Mutex::default(), pull: PullProgress::default() }
    }

    /// How much of its image was fetched.
    pub(crate) fn pull(&self) -> &PullProgress {
        &self.pull
    }

    /// Enters a stage, and reports it once reports have started.
    pub(crate) async fn enter(&self, stage: ExecutionStage) {
        if self.change(|state| state.stage = Some(stage)).reporting {
            self.report(stage).await;
        }
    }

    /// After [`REPORT_DELAY`], reports the current stage and starts reporting changes at once, and an image that is being
    /// fetched regularly. Never returns.
    pub(crate) async fn report_later(&self) -> Infallible {
        tokio::time::sleep(REPORT_DELAY).await;
        if let Some(stage) = self.change(|state| state.reporting = true).stage {
            self.report(stage).await;
        }
        let mut reported = self.image();
        loop {
            tokio::time::sleep(IMAGE_INTERVAL).await;
            let image = self.image();
            if image != reported {
                reported = image;
                self.report(ExecutionStage::Fetching).await;
            }
        }
    }

    /// How much of the image was fetched, while that is going on.
    fn image(&self) -> Option<ImageFetch> {
        let (bytes, fetched_bytes) = self.pull.read();
        let is_fetching = self.state.lock().stage == Some(ExecutionStage::Fetching);
        (is_fetching && bytes > 0).then_some(ImageFetch { bytes, fetched_bytes })
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
            image: self.image(),
        };
        if let Err(error) = self.shared.context.bus.publish_progress(self.key, &progress).await {
            debug!(error = telemetry::error_chain(&error), "failed to report progress");
        }
    }
}
