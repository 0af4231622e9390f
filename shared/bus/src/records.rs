//! The last records of builds and executions.

use model::Sequence;

use crate::{Bus, BusError, Lifecycle, RecordKey, Stored, StoredStream};

/// The last records of builds and executions; the type of the key selects which.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a> {
    bus: &'a Bus,
}

/// Number of keys up to which single reads need fewer messages than a batch (a subscription, its end
/// and an end marker).
const SINGLE_READS_MAX: usize = 4;

impl Bus {
    /// The last records of builds and executions.
    pub fn records(&self) -> Records<'_> {
        Records { bus: self }
    }
}

impl<'a> Records<'a> {
    /// Reads the last record from the stream's leader, or from any replica if the user may not ask the leader.
    pub async fn latest<K: RecordKey>(self, key: &K) -> Result<Option<(Sequence, K::Record)>, BusError> {
        let last = self.stream::<K>().last(&key.record_subject()).await?;
        last.as_ref().map(positioned::<K>).transpose()
    }

    /// Reads the last record from any replica: fast, and possibly slightly stale.
    pub async fn latest_direct<K: RecordKey>(
        self,
        key: &K,
    ) -> Result<Option<(Sequence, K::Record)>, BusError> {
        let last = self.stream::<K>().last_direct(&key.record_subject()).await?;
        last.as_ref().map(positioned::<K>).transpose()
    }

    /// Reads the last records of many keys, in no particular order, from any replica; keys without one are omitted.
    pub async fn latest_many<K: RecordKey>(self, keys: &[K]) -> Result<Vec<(Sequence, K::Record)>, BusError> {
        let stored = self.latest_many_stored(keys).await?;
        stored.iter().map(positioned::<K>).collect()
    }

    /// Like [`Self::latest_many`], with the records as they are stored.
    pub async fn latest_many_stored<K: RecordKey>(self, keys: &[K]) -> Result<Vec<Stored>, BusError> {
        let stream = self.stream::<K>();
        let subjects: Vec<String> = keys.iter().map(K::record_subject).collect();
        // A batch does not name its subjects where nats-server could check them.
        if subjects.len() <= SINGLE_READS_MAX || !self.bus.reads(<K::Record as Lifecycle>::STREAM).await {
            let reads = subjects.iter().map(|subject| stream.last_direct(subject));
            return Ok(futures::future::try_join_all(reads).await?.into_iter().flatten().collect());
        }
        stream.last_of_many(&subjects).await
    }

    fn stream<K: RecordKey>(self) -> StoredStream<'a> {
        self.bus.stream(<K::Record as Lifecycle>::STREAM)
    }
}

/// The record in `stored`, with its position.
fn positioned<K: RecordKey>(stored: &Stored) -> Result<(Sequence, K::Record), BusError> {
    Ok((stored.sequence, stored.read()?))
}
