//! The end of a build waits for the build events of its Bazel: INVOCATION_FINISHED is written when their stream is
//! complete, or has expired because its publisher probably crashed.
//!
//! Bazel waits for its own stream by default. With `--bes_upload_mode=nowait_for_upload_complete` it returns before.

use std::time::Duration;

use model::BuildRecord;
use telemetry::error_chain;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::{shared::Shared, stop::Stop};

/// Time without new events after which a stream has expired.
const EXPIRY: Duration = Duration::from_secs(10);
/// Time after which the build ends even if events still come: every client can publish events of any build.
const WAIT_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until the build events of the last call of Bazel in a run are complete or have expired, or the run is stopped;
/// for at most 30 seconds, and not beyond the time limit of the build, whose command has ended in time.
pub(crate) async fn complete(shared: &Shared, record: &BuildRecord, stop: &Stop, timeout_at: Instant) {
    let end = timeout_at.min(Instant::now() + WAIT_MAX);
    let key = record.build.key();
    let (mut last, mut since) = (None, Instant::now());
    loop {
        match shared.context.bus.last_bazel_events(&key).await {
            Ok(None) => return,
            Ok(Some((attempt, events))) if attempt != record.attempt || events.complete => return,
            Ok(Some((_, events))) => {
                let place = Some((events.tool, events.last));
                if place != last {
                    (last, since) = (place, Instant::now());
                }
            }
            // The bus is needed for what follows anyway.
            Err(error) => {
                debug!(build = %key, error = error_chain(&error), "cannot read the last build events");
            }
        }
        if since.elapsed() >= EXPIRY || Instant::now() >= end {
            debug!(build = %key, "the build events of the build's Bazel are not complete, going on without them");
            return;
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = stop.wanted() => return,
        }
    }
}
