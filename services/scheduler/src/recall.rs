//! What a scheduler learns at its start from executions that ended before: it reads the end of the log again. Nothing
//! else waits for that.

use bus::{ActionSubject, BusError, Follower, Start, stream};
use model::Sequence;
use service::ServiceError;
use tracing::{info, warn};

use crate::{
    Shared,
    records::{self, RecordContent},
};

/// Maximum number of records read again: at most some hundred megabytes and a few seconds.
const RECORDS: u64 = 100_000;
const BATCH: usize = 1000;

/// Learns once, then waits until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let stop = shared.context.stop.clone();
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        read = recall(&shared) => match read {
            Ok(ended) => info!(ended, "learned from finished executions"),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read finished executions");
            }
        },
    }
    stop.cancelled().await;
    Ok(())
}

/// Returns the number of finished executions it learned from.
async fn recall(shared: &Shared) -> Result<u64, BusError> {
    let (first, last) = shared.context.bus.stream(stream::ACTIONS).positions().await?;
    let begin = Sequence(last.0.saturating_sub(RECORDS).max(first.0.saturating_sub(1)));
    if begin >= last {
        return Ok(0);
    }
    let mut follower =
        Follower::new(&shared.context.bus, stream::ACTIONS, ActionSubject::ALL, Start::After(begin));
    let mut learned = 0;
    loop {
        for stored in follower.next(BATCH).await {
            if stored.sequence > last {
                return Ok(learned);
            }
            // The projector reports records that cannot be read.
            if let Ok(RecordContent::Finished(record)) = records::read(&stored) {
                learned += 1;
                shared.learned.learn(
                    &record.execution.keys,
                    record.measured.as_ref(),
                    record.home.as_ref(),
                    record.is_success(),
                );
            }
        }
        if follower.caught_up() || follower.cursor() >= last {
            return Ok(learned);
        }
    }
}
