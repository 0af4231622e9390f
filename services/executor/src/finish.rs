//! Writing the result: the first one written stands.

use std::time::Duration;

use bus::Written;
use model::{ExecutionOffer, ExecutionOutcome, Millis};
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::Shared;

const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);

/// Writes ACTION_FINISHED behind the record that was offered, or behind its successor where it was queued again meanwhile:
/// actions are hermetic, so any result is as good as another. Tries until the lease is gone: then it is run elsewhere.
pub(crate) async fn finish(shared: &Shared, offer: &ExecutionOffer, outcome: ExecutionOutcome) {
    let key = offer.record.execution.key();
    let mut last = (offer.sequence, offer.record.clone());
    let stop = shared.hands.get(&key).map(|hand| hand.stop).unwrap_or_default();
    loop {
        let (sequence, record) = &last;
        let next = record.finished(*sequence, outcome.clone(), Millis::now());
        match shared.context.bus.transition(&next, *sequence, PATIENCE).await {
            Ok(Written::Won(_)) => {
                crash_point(Step::ActionResultWritten);
                count(Counter::ActionsRun, &[(Label::Outcome, label(&outcome))], 1);
                return;
            }
            Ok(Written::Lost(Some(found))) if found.1.outcome().is_none() => last = *found,
            Ok(Written::Lost(_)) => {
                debug!(%key, "the action has a result already");
                return;
            }
            Err(error) => {
                warn!(%key, error = telemetry::error_chain(&error), "the result is written again");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

fn label(outcome: &ExecutionOutcome) -> &'static str {
    match (outcome.code, outcome.exit_code) {
        (0, Some(0)) => "succeeded",
        (0, _) => "failed",
        (4, _) => "timed_out",
        _ => "error",
    }
}
