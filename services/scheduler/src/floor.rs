//! Where a rebuild starts to read. The stream keeps days of finished executions, while unfinished
//! ones are mostly recent.

use std::time::Duration;

use bus::{ActionsFloor, Bus, BusError, Start, stream};
use index::actions::Actions;
use model::Sequence;
use parking_lot::Mutex;
use service::Context;
use tokio::time::Instant;
use tracing::debug;

/// Minimum time between two writes of the position; a rebuild rereads the records that came after the last write.
const PAUSE: Duration = Duration::from_secs(5);

/// Writes the position from which a rebuild may start, at intervals.
#[derive(Default)]
pub(crate) struct Floor(Mutex<Option<Instant>>);

impl Floor {
    /// Called after records were applied; writes the position if [`PAUSE`] has passed.
    pub(crate) fn note(&self, context: &Context, actions: &Actions) {
        let mut last = self.0.lock();
        if last.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let (bus, actions) = (context.bus.clone(), actions.clone());
        // An older position that is written late is lower, which only costs time.
        tokio::spawn(async move {
            let floor = match actions.floor().await {
                Ok(Some(floor)) => floor,
                // The index does not exist.
                Ok(None) => return,
                Err(error) => {
                    debug!(%error, "cannot read the position from which a rebuild starts");
                    return;
                }
            };
            if let Err(error) = bus.buckets().put(&(), Some(&ActionsFloor(floor))).await {
                debug!(%error, "cannot write the position from which a rebuild starts");
            }
        });
    }
}

/// Where a rebuild starts: after the position written, or with the last record of every execution if that is less to
/// read or no written position fits the stream.
pub(crate) async fn start(bus: &Bus) -> Start {
    match written(bus).await {
        Ok(Some((floor, first, last))) if is_nearer(floor, first, last) => Start::After(floor),
        Ok(_) => Start::LastOfEachSubject,
        Err(error) => {
            debug!(%error, "cannot read the position from which a rebuild starts");
            Start::LastOfEachSubject
        }
    }
}

async fn written(bus: &Bus) -> Result<Option<(Sequence, Sequence, Sequence)>, BusError> {
    let (_, Some(ActionsFloor(floor))) = bus.buckets().get::<ActionsFloor>(&()).await? else {
        return Ok(None);
    };
    let (first, last) = bus.stream(stream::ACTIONS).positions().await?;
    Ok(Some((floor, first, last)))
}

/// Whether fewer messages follow `floor` than there are executions; each finished execution has at least two messages.
fn is_nearer(floor: Sequence, first: Sequence, last: Sequence) -> bool {
    floor <= last && last.0 - floor.0 <= last.0.saturating_sub(first.0) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_reads_from_the_floor_only_where_that_is_less() {
        let near = |floor, first, last| is_nearer(Sequence(floor), Sequence(first), Sequence(last));
        assert!(near(90, 1, 100));
        assert!(near(100, 1, 100));
        assert!(!near(10, 1, 100), "reading the last record of each execution is less");
        assert!(!near(101, 1, 100), "another stream");
    }
}
