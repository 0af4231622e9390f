//! `trainer`: learns from finished builds how much of each executor type builds occupy (section 4.3 of the paper).
//!
//! in: lifecycle events of the last 17 days, and from the archive expired ones · out: a versioned
//! occupancy model in the store, and a notice of it, by compare-and-set · Redis: none · decides with `occupancy`

mod archived;
mod lessons;
mod train;

use std::time::{Duration, Instant};

use cas::Cas;
use model::ModelNotice;
use service::{Context, Ready, Running, ServiceError};
use settings::TrainerSettings;
use tracing::{debug, info, warn};

use crate::train::{TrainError, Trained};

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: TrainerSettings) -> Running {
    Box::pin(serve(context, settings))
}

/// Maximum delay before a failed training is retried.
const RETRY: Duration = Duration::from_secs(60);
/// Maximum delay before a retry while there are too few builds to learn from.
const YOUNG: Duration = Duration::from_secs(600);

async fn serve(context: Context, settings: TrainerSettings) -> Result<(), ServiceError> {
    let cas = context.cas_with_small_caches().await?;
    store_bounds::keep_bounds(&context, &cas).await?;
    context.ready(Ready::default()).await?;
    let every = settings.training_interval;
    if every.is_zero() {
        context.stop.cancelled().await;
        return Ok(());
    }
    let mut trained = None;
    loop {
        let pause = match due_in(&context, every, trained).await {
            Ok(Some(wait)) => {
                debug!(seconds = wait.as_secs(), "no training is due yet");
                wait
            }
            Ok(None) => {
                let retry = attempt(&context, &cas).await;
                if retry.is_none() {
                    trained = Some(Instant::now());
                }
                // After a training, compute at once when the next one is due.
                every.min(retry.unwrap_or(Duration::ZERO))
            }
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read the last model's age, retrying");
                every.min(RETRY)
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Trains once. `None` means that the training completed and need not be repeated before the next one is due;
/// otherwise the delay before a retry.
async fn attempt(context: &Context, cas: &Cas) -> Option<Duration> {
    match train::train(context, cas).await {
        Ok(Trained::Published(published)) => {
            info!("{published}");
            None
        }
        Ok(Trained::Overtaken) => {
            info!("another trainer published a model first, dropping this one");
            None
        }
        Err(TrainError::Refused(refusal)) => {
            warn!(error = telemetry::error_chain(&refusal), "the trained model was refused, not publishing");
            None
        }
        // The farm is new; this is not a fault.
        Err(error @ TrainError::TooFew { .. }) => {
            debug!(error = telemetry::error_chain(&error), "cannot train a model yet");
            Some(YOUNG)
        }
        Err(
            error
            @ (TrainError::Bus(_) | TrainError::Store(_) | TrainError::Unsound(_) | TrainError::Lost(_)),
        ) => {
            warn!(error = telemetry::error_chain(&error), "cannot train a model, retrying");
            Some(RETRY)
        }
    }
}

/// Time until a training is due; `None` means now. Among several trainers, the first one's model makes the others
/// wait; a training of this process (`trained`) counts even if its model was not published.
async fn due_in(
    context: &Context,
    every: Duration,
    trained: Option<Instant>,
) -> Result<Option<Duration>, bus::BusError> {
    let (_, published) = context.bus.buckets().get::<ModelNotice>(&()).await?;
    let ages = [
        published.map(|notice| context.bus.now().since(notice.trained_at_ms)),
        trained.map(|trained| trained.elapsed()),
    ];
    let youngest = ages.into_iter().flatten().min();
    Ok(youngest.map(|age| every.saturating_sub(age)).filter(|left| !left.is_zero()))
}
