//! `trainer`: learns from finished builds how much of each executor type builds occupy (section 4.3 of the paper).
//!
//! in: lifecycle events of the last 17 days · out: a versioned occupancy model, in the store, and a notice of it · Redis:
//! none · decides with `occupancy`

mod lessons;
mod train;

use std::time::Duration;

use model::Millis;
use service::{Context, Ready, Running, ServiceError};
use tracing::{info, warn};

/// Runs the service until it is told to stop.
pub fn run(context: Context) -> Running {
    Box::pin(serve(context))
}

/// How soon a training that could not be done is tried again, at the most.
const RETRY: Duration = Duration::from_secs(60);

async fn serve(context: Context) -> Result<(), ServiceError> {
    let store = context.store().await?;
    context.ready(Ready::default()).await?;
    let every = Duration::from_secs(context.settings.training_seconds);
    if every.is_zero() {
        context.stop.cancelled().await;
        return Ok(());
    }
    loop {
        let pause = match due_in(&context, every).await {
            Ok(Some(wait)) => wait,
            Ok(None) => match train::train(&context, &store).await {
                Ok(trained) => {
                    info!("{trained}");
                    every
                }
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "no model was trained");
                    every.min(RETRY)
                }
            },
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "when the last model was trained is not known");
                every.min(RETRY)
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// How long until a training is due; `None`: now. Of several trainers the first one's model makes the others wait.
async fn due_in(context: &Context, every: Duration) -> Result<Option<Duration>, bus::BusError> {
    let Some(last) = context.bus.current_model().await? else { return Ok(None) };
    let left = every.saturating_sub(Millis::now().since(last.trained_at_ms));
    Ok((!left.is_zero()).then_some(left))
}
