//! The tasks of a running job, from the events of its worker.

use bus::{EventKind, WatchedKinds};
use model::{Attempt, BuildKey, RunningTasks, Sequence, TaskReport, ToolEvent};

use crate::{Client, ClientError, WatchBody, WatchEvent};

const BATCH: usize = 256;
/// Maximum number of batches that are read.
const BATCHES_MAX: usize = 64;

/// The tasks of a job that runs.
#[derive(Debug, Clone, Default)]
pub struct TasksSoFar {
    /// Reports of those that ended, in the order of their ends.
    pub reports: Vec<TaskReport>,
    /// Those that ran at the last event; none if it did not say.
    pub running: Option<RunningTasks>,
}

impl Client {
    /// The tasks of a job in an attempt so far; of a very large job only the first ones, and none if the bus does not have
    /// the events of the build any more.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub async fn tasks_so_far(&self, key: &BuildKey, of_attempt: Attempt) -> Result<TasksSoFar, ClientError> {
        let (kinds, mut from, mut found) =
            (WatchedKinds::of(&[EventKind::Tool]), Sequence(1), TasksSoFar::default());
        for _ in 0..BATCHES_MAX {
            let tail = self.bus().read_events(key, kinds, from, BATCH).await?;
            for stored in &tail.events {
                if let Some(WatchBody::Tool(ToolEvent::TasksEnded { attempt, reports, running, .. })) =
                    WatchEvent::read(stored)?.map(|event| event.body)
                    && attempt == of_attempt
                {
                    found.reports.extend(reports);
                    found.running = running.or(found.running);
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
