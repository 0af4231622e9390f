//! Asking executors what they have, when the index doubts it.

use std::time::Duration;

use bus::Subject;
use bytes::Bytes;
use service::{Context, ServiceError};
use tracing::debug;

use crate::Wakes;

/// How soon after the doubt: long enough for what is on its way.
const SOON: Duration = Duration::from_millis(20);
/// How slowly at last, while there is always another doubt.
const SLOW: Duration = Duration::from_millis(500);

/// Asks until the service stops: soon at first, then more and more slowly.
pub(crate) async fn run(context: Context, wakes: Wakes) -> Result<(), ServiceError> {
    let mut pause = SOON;
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            asked = tokio::time::timeout(SLOW * 2, wakes.ask.notified()) => {
                if asked.is_err() {
                    pause = SOON;
                    tokio::select! {
                        () = context.stop.cancelled() => return Ok(()),
                        () = wakes.ask.notified() => {}
                    }
                }
            }
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        now(&context).await;
        pause = (pause * 2).min(SLOW);
    }
}

/// Asks now.
pub(crate) async fn now(context: &Context) {
    let subject = Subject::ExecutorAnnounce.to_string();
    if let Err(error) = context.bus.client().publish(subject, Bytes::new()).await {
        debug!(%error, "executors were not asked to announce themselves; their next heartbeat does");
    }
}
