//! Asks executors to announce what they have, when the index is in doubt about it.

use std::time::Duration;

use model::ExecutorHeartbeat;
use service::{Context, ServiceError, request_heartbeats};

use crate::Wakes;

/// Delay between a doubt and the request: long enough for messages in flight to arrive.
const SOON: Duration = Duration::from_millis(20);
/// Maximum delay between two requests, reached while doubts keep coming.
const SLOW: Duration = Duration::from_millis(500);

/// Asks until the service stops: quickly at first, then at growing intervals.
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
        request_heartbeats::<ExecutorHeartbeat>(&context.bus).await;
        pause = (pause * 2).min(SLOW);
    }
}
