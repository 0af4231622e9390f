//! Finds what no message reports: builds that waited or ran too long, and runs that never had a lease or
//! whose expiry was missed.

use std::{collections::HashMap, time::Duration};

use bus::{BusError, millis};
use index::{Index, IndexError};
use model::{BuildKey, Millis};
use service::{Context, ServiceError, Step, crash_point};
use settings::ReaperSettings;
use tokio::time::Instant;
use tracing::warn;

use crate::verdict;

/// Interval of the check of time limits: the precision of queue timeouts. It queries Redis only, not the bus.
const PAUSE: Duration = Duration::from_secs(1);
const BUILDS_MAX: isize = 500;
/// Maximum time for which a build that may still run is not checked again.
const POSTPONED_MAX: Duration = Duration::from_secs(5);

/// What a sweep remembers for the next ones.
struct Remembered {
    orphans_due: Instant,
    /// Builds that exceeded their time limit but may still run, with the time of their next check.
    postponed: HashMap<BuildKey, Millis>,
}

#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Sweeps until the service stops.
pub(crate) async fn run(
    context: Context,
    settings: ReaperSettings,
    index: Index,
) -> Result<(), ServiceError> {
    let mut remembered = Remembered { orphans_due: Instant::now(), postponed: HashMap::new() };
    loop {
        if let Err(error) = sweep(&context, &settings, &index, &mut remembered).await {
            warn!(error = telemetry::error_chain(&error), "the sweep failed, retrying");
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Checks once everything that is due.
async fn sweep(
    context: &Context,
    settings: &ReaperSettings,
    index: &Index,
    remembered: &mut Remembered,
) -> Result<(), SweepError> {
    let now = context.bus.now();
    let bus = &context.bus;
    for key in index.expired(now, BUILDS_MAX).await? {
        crash_point(Step::OverdueFound);
        log_failure(&key, verdict::waited_too_long(bus, &key).await);
    }
    overruns(context, settings.overrun, index, &mut remembered.postponed).await?;
    let counts = index.counts().await?;
    let ttl = settings.lease_ttl;
    if counts.running > 0 && Instant::now() >= remembered.orphans_due {
        remembered.orphans_due = Instant::now() + ttl / 2;
        orphans(context, index, now, ttl).await?;
    }
    Ok(())
}

/// Ends builds that ran too long. Reads past the postponed builds, so that they do not hide others.
async fn overruns(
    context: &Context,
    overrun: Duration,
    index: &Index,
    postponed: &mut HashMap<BuildKey, Millis>,
) -> Result<(), SweepError> {
    let now = context.bus.now();
    postponed.retain(|_, next| *next > now);
    let max = BUILDS_MAX.saturating_add_unsigned(postponed.len());
    for key in index.overrun(now, max).await? {
        if postponed.contains_key(&key) {
            continue;
        }
        crash_point(Step::OverdueFound);
        match verdict::ran_too_long(&context.bus, &key, overrun).await {
            Ok(None) => {}
            Ok(Some(ends_at)) => {
                postponed.insert(key, ends_at.min(now.after(POSTPONED_MAX)));
            }
            Err(error) => log_failure(&key, Err(error)),
        }
    }
    Ok(())
}

/// Handles runs without a lease: their worker died between two effects, or the expiry was missed.
///
/// Skips a run younger than the lifetime of a lease: its lease was held when the run was written.
async fn orphans(context: &Context, index: &Index, now: Millis, ttl: Duration) -> Result<(), SweepError> {
    let since = Millis(now.0.saturating_sub(millis(ttl)));
    let running = index.running_since(since, isize::MAX).await?;
    if running.is_empty() {
        return Ok(());
    }
    let held: std::collections::HashSet<BuildKey> =
        context.bus.leases().held(&running).await?.into_iter().map(|(key, _)| key).collect();
    for key in running.iter().filter(|key| !held.contains(key)) {
        crash_point(Step::OrphanFound);
        log_failure(key, verdict::lost(&context.bus, key).await);
    }
    Ok(())
}

/// Logs a failure: one build that cannot be ended now must not block the others; the next sweep finds it again.
fn log_failure(key: &BuildKey, outcome: Result<(), BusError>) {
    if let Err(error) = outcome {
        warn!(%key, error = telemetry::error_chain(&error), "cannot end an overdue build, retrying");
    }
}
