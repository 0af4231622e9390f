//! Counts from the log of executions.

use std::{collections::BTreeSet, time::Duration};

use bus::{ActionSubject, Follower, Start, stream};
use model::{ExecutionPhase, Sequence};

use crate::{error::BenchError, farm::BenchFarm};

const LIMIT: Duration = Duration::from_secs(60);
const BATCH: usize = 1000;

/// Counts of records in the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Number of distinct executions.
    pub(crate) executions: usize,
    /// Number of hedged copies.
    pub(crate) hedged: usize,
    /// Number of requeued runs.
    pub(crate) requeued: usize,
}

/// The position of the last record.
pub(crate) async fn end(farm: &BenchFarm) -> Result<Sequence, BenchError> {
    Ok(farm.client.bus().stream(stream::ACTIONS).positions().await?.1)
}

/// Counts the records after position `from`.
pub(crate) async fn since(farm: &BenchFarm, from: Sequence) -> Result<Counts, BenchError> {
    let last = end(farm).await?;
    let read = async {
        let mut follower =
            Follower::new(farm.client.bus(), stream::ACTIONS, ActionSubject::ALL, Start::After(from));
        let (mut counts, mut keys) = (Counts::default(), BTreeSet::new());
        while follower.cursor() < last {
            for stored in follower.next(BATCH).await {
                let record = stored.execution()?;
                match record.phase {
                    ExecutionPhase::Hedged => counts.hedged += 1,
                    ExecutionPhase::Requeued { .. } => counts.requeued += 1,
                    ExecutionPhase::Accepted
                    | ExecutionPhase::CopyEnded { .. }
                    | ExecutionPhase::Raised
                    | ExecutionPhase::Finished(_) => {}
                }
                keys.insert(record.execution.id);
            }
        }
        counts.executions = keys.len();
        Ok(counts)
    };
    let read = tokio::time::timeout(LIMIT, read).await;
    read.map_err(|error| BenchError::new("reading the log of executions", &error))?
}
