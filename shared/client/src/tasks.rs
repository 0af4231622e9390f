//! The tasks of a running job, from the events of its worker.

use bus::{EventKind, WatchedKinds};
use model::{Attempt, BuildKey, Sequence, TaskReport, ToolEvent};

use crate::{Client, ClientError, WatchBody, WatchEvent};

const BATCH: usize = 256;
/// Maximum number of batches that are read.
const BATCHES_MAX: usize = 64;

impl Client {
    /// The reports of the tasks of a job that ended so far in an attempt, in the order of their ends; of a very large job
    /// only the first ones, and none of a build that the bus has no more.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub async fn ended_tasks(
        &self,
        key: &BuildKey,
        of_attempt: Attempt,
    ) -> Result<Vec<TaskReport>, ClientError> {
        let (kinds, mut from, mut found) = (WatchedKinds::of(&[EventKind::Tool]), Sequence(1), Vec::new());
        for _ in 0..BATCHES_MAX {
            let tail = self.bus().read_events(key, kinds, from, BATCH).await?;
            for stored in &tail.events {
                if let Some(WatchBody::Tool(ToolEvent::TasksEnded { attempt, reports, .. })) =
                    WatchEvent::read(stored)?.map(|event| event.body)
                    && attempt == of_attempt
                {
                    found.extend(reports);
                }
            }
            match tail.events.last() {
                Some(last) if tail.more => from = Sequence(last.sequence.0 + 1),
                Some(_) | None => break,
            }
        }
        Ok(found)
    }
}
