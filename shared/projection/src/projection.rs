//! What differs between the projections of builds and of executions.

use bus::{BusError, Start, Stored};
use index::{Applied, Health, IndexError, RebuildToken};
use model::Sequence;
use service::Step;
use tokio::sync::Notify;

/// The steps at which a test can make the process die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Messages were read and not applied.
    pub read: Step,
    /// Messages were applied; nothing that follows from them was done.
    pub applied: Step,
    /// A rebuild has begun and is not finished.
    pub rebuild_begun: Step,
}

/// A log and the index that is maintained from it.
pub trait Projection: Send + Sync {
    /// Stream of the log.
    const STREAM: &'static str;
    /// Subjects of the stream that are followed.
    const SUBJECTS: &'static str;
    /// Name of the log in messages for operators.
    const LOG: &'static str;
    /// Name of the index in messages for operators.
    const INDEX: &'static str;
    /// Steps of this projection.
    const STEPS: Steps;

    /// A message of the log after it was read.
    type Record: Send + Sync;
    /// Effects of a batch on the index.
    type Effects: Send;

    /// Notified when the index was found missing.
    fn missing(&self) -> &Notify;

    /// Called when the index is current again: after the start, after a loss and after a rebuild.
    fn ready(&self);

    /// State of the index; `None` if there is no index.
    fn health(&self) -> impl Future<Output = Result<Option<Health>, IndexError>> + Send;

    /// Whether the index must be rebuilt at the start although it is complete.
    fn is_outdated(&self) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Reads a message of the log. [`BusError::Corrupt`] and [`BusError::Unsealed`] mean that no service of the farm wrote it; after
    /// other errors it is read again.
    fn read(&self, stored: &Stored) -> impl Future<Output = Result<Self::Record, BusError>> + Send;

    /// Called with each batch of new records before it is applied; not called during a rebuild.
    fn note(&self, _records: &[Self::Record]) {}

    /// Applies `records`, read after position `from` up to position `to`.
    fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        records: &[Self::Record],
    ) -> impl Future<Output = Result<Applied<Self::Effects>, IndexError>> + Send;

    /// Called after a batch was applied.
    fn applied(&self, records: &[Self::Record], effects: Self::Effects) -> impl Future<Output = ()> + Send;

    /// Acquires the right to rebuild the index, and empties it; `None` if another projector has it.
    fn begin_rebuild(&self) -> impl Future<Output = Result<Option<RebuildToken>, IndexError>> + Send;

    /// Where a rebuild starts to read.
    fn rebuild_start(&self) -> impl Future<Output = Start> + Send {
        std::future::ready(Start::LastOfEachSubject)
    }

    /// Adds `records` to the index being rebuilt, and renews the right to rebuild.
    fn load(
        &self,
        token: &RebuildToken,
        records: &[Self::Record],
    ) -> impl Future<Output = Result<Applied<Self::Effects>, IndexError>> + Send;

    /// Declares the index ready at `watermark`; returns false if the rebuild must be tried again.
    fn finish_rebuild(
        &self,
        token: &RebuildToken,
        watermark: Sequence,
    ) -> impl Future<Output = Result<bool, IndexError>> + Send;

    /// Called after a rebuild: requests what the log does not contain.
    fn rebuilt(&self) -> impl Future<Output = ()> + Send;
}
