//! Checks that what a record describes was accepted.

use model::Sequence;

use crate::{Bus, BusError, Lifecycle, Stored};

impl Bus {
    /// Checks that an enqueuer or a gateway accepted the work of this record; [`BusError::Unsealed`] if none did.
    /// Without a key, every record passes.
    pub async fn check_accepted<R: Lifecycle>(&self, stored: &Stored) -> Result<(), BusError> {
        let Some(seals) = self.seals.as_ref().filter(|seals| !seals.is_on(stored)) else { return Ok(()) };
        let first = self.stream(R::STREAM).first_from(&stored.subject, Sequence(1)).await?;
        if let Some(first) = first.filter(|first| seals.is_on(first))
            && stored.read::<R>()?.is_same_work(&first.read()?)
        {
            return Ok(());
        }
        Err(BusError::Unsealed { sequence: stored.sequence.0, subject: stored.subject.clone() })
    }
}
