//! Waits until the index of actions shows what a benchmark prepared.

use std::time::{Duration, Instant};

use index::actions::Queue;
use model::{PoolName, RequirementsId};

use crate::{error::BenchError, farm::BenchFarm};

const LOOK: Duration = Duration::from_millis(20);
/// Time limit for a number to change.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a number of the index for these pools, the first of a pair, reaches the second. Fails if the number does
/// not change for a minute.
pub(crate) async fn index_shows(
    farm: &BenchFarm,
    pools: impl Iterator<Item = &PoolName> + Clone,
    what: &str,
    numbers: impl Fn(&Queue) -> (u64, u64),
) -> Result<(), BenchError> {
    let actions = farm.index.actions();
    let mut last = (0, Instant::now());
    loop {
        let now = farm.client.bus().now();
        let queue = actions.queue(&RequirementsId::none(), pools.clone(), None, now).await;
        let queue = queue.map_err(|error| BenchError::new("reading the index", &error))?;
        let (found, wanted) = numbers(&queue);
        if found >= wanted {
            return Ok(());
        }
        if found != last.0 {
            last = (found, Instant::now());
        }
        if last.1.elapsed() > LIMIT {
            return Err(BenchError::plain(format!("waiting until {what}: {found} of {wanted}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}
