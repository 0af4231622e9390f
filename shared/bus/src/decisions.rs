//! The decisions of the governor over time.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use model::{GovernorRecord, Millis, Sequence};
use serde::Serialize;

use crate::{Bus, BusError, FromJson as _, Message as _, Stored, codec::to_json, stream};

/// Subject of the copies of the governor's decisions that are kept over time.
pub const DECISIONS_SUBJECT: &str = "forebay.governor.decision";

/// Maximum number of reads at a time.
const READS_AT_ONCE: usize = 64;

#[derive(Serialize)]
struct GetAt {
    seq: u64,
}

impl Bus {
    /// Keeps a copy of a decision. Copies are for charts: a lost one is a gap, so none is waited for.
    ///
    /// They are not taken from what the bucket of quotas republishes: its messages carry the position that their writer
    /// expected, which a second stream would check against its own.
    pub async fn keep_decision(&self, decision: &GovernorRecord) {
        if let Err(error) = self.client.publish(DECISIONS_SUBJECT, decision.to_json()).await {
            tracing::debug!(%error, "a decision is missing in the record of decisions");
        }
    }

    /// Decisions since `since`, in order: at most `points`, evenly distributed over all of that time.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub async fn decisions(&self, since: Millis, points: u64) -> Result<Vec<GovernorRecord>, BusError> {
        let (first, last) = self.stream(stream::DECISIONS).positions().await?;
        let first = self.first_decision_since(since, first, last).await?;
        let read = |position| async move { self.decision(Sequence(position)).await };
        let found: Vec<Option<GovernorRecord>> = futures::stream::iter(spread(first.0, last.0, points))
            .map(read)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().filter(|decision| decision.at_ms >= since).collect())
    }

    /// The position of the first decision at `since` or later; after the last one if there is none.
    async fn first_decision_since(
        &self,
        since: Millis,
        first: Sequence,
        last: Sequence,
    ) -> Result<Sequence, BusError> {
        // Decisions are in the order of time, and none is missing between the first and the last position.
        let (mut low, mut high) = (first.0.max(1), last.0 + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.decision(Sequence(middle)).await? {
                Some(decision) if decision.at_ms >= since => high = middle,
                Some(_) | None => low = middle + 1,
            }
        }
        Ok(Sequence(low))
    }

    async fn decision(&self, position: Sequence) -> Result<Option<GovernorRecord>, BusError> {
        let what = || format!("reading decision {position} of the governor");
        let subject = format!("$JS.API.DIRECT.GET.{}", stream::DECISIONS);
        let request: Bytes = to_json(&GetAt { seq: position.0 });
        let reply = tokio::time::timeout(PATIENCE, self.client.request(subject, request)).await;
        let reply = reply.map_err(|_| BusError::Timeout { what: what() })?;
        let reply = reply.map_err(BusError::failed(what()))?;
        Ok(Stored::from_direct(reply).and_then(|stored| GovernorRecord::from_json(&stored.payload).ok()))
    }
}

const PATIENCE: Duration = Duration::from_secs(3);

/// At most `points` positions from `first` to `last`, evenly distributed, with both of them.
fn spread(first: u64, last: u64, points: u64) -> Vec<u64> {
    let all = (last + 1).saturating_sub(first);
    match points {
        0 => Vec::new(),
        _ if all <= points => (first..=last).collect(),
        1 => vec![last],
        // 128 bits: no product of two positions overflows.
        _ => (0..points)
            .map(|number| {
                let offset = u128::from(all - 1) * u128::from(number) / u128::from(points - 1);
                first + u64::try_from(offset).unwrap_or(all - 1)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::spread;

    #[test]
    fn nothing_is_spread_over_nothing() {
        assert_eq!(spread(1, 0, 10), Vec::<u64>::new());
        assert_eq!(spread(5, 9, 0), Vec::<u64>::new());
        assert_eq!(spread(5, 9, 1), [9]);
    }

    proptest! {
        #[test]
        fn positions_are_spread_from_the_first_to_the_last(first in 1..1000_u64, more in 0..100_000_u64, points in 2..500_u64) {
            let found = spread(first, first + more, points);
            prop_assert_eq!(found.first(), Some(&first));
            prop_assert_eq!(found.last(), Some(&(first + more)));
            prop_assert_eq!(found.len() as u64, points.min(more + 1));
            let steps: Vec<u64> = found.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (least, most) = (steps.iter().min().copied().unwrap_or(1), steps.iter().max().copied().unwrap_or(1));
            prop_assert!(least >= 1 && most <= least + 1);
        }
    }
}
