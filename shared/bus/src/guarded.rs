//! Messages of a build that are refused once its attempt has ended.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream::context::PublishErrorKind};
use bytes::Bytes;
use model::{BuildKey, Sequence};
use tokio::time::Instant;

use crate::{
    Bus, BusError, EventSubject,
    headers::{EXPECTED, EXPECTED_SUBJECT},
    transition::is_conflict,
};

const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The reason why a chunk was not written.
#[derive(Debug, thiserror::Error)]
pub enum ChunkFault {
    /// The attempt has ended: another process has moved the build on.
    #[error("another process has already ended this attempt")]
    RunEnded,
    /// The bus returned an error.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Writes a message if the last lifecycle message of the build is still the one at the given position, which started the
/// attempt. Retries for at most `patience`.
pub(crate) async fn publish_guarded(
    bus: &Bus,
    (key, guard): (&BuildKey, Sequence),
    subject: &str,
    mut headers: HeaderMap,
    payload: Bytes,
    patience: Duration,
) -> Result<(), ChunkFault> {
    headers.insert(EXPECTED, guard.0.to_string().as_str());
    headers.insert(EXPECTED_SUBJECT, EventSubject::lifecycle(key).to_string().as_str());
    let deadline = Instant::now() + patience;
    loop {
        let written = bus.publish_once(subject, headers.clone(), payload.clone()).await;
        let Err(error) = written else { return Ok(()) };
        if error.kind() == PublishErrorKind::MaxPayloadExceeded {
            return Err(BusError::TooLarge { what: format!("an event of build {key}") }.into());
        }
        // If the state cannot be read, it is not known yet whether the attempt has ended: retry.
        if is_conflict(&error) && run_ended(bus, key, guard).await.unwrap_or(false) {
            return Err(ChunkFault::RunEnded);
        }
        if Instant::now() >= deadline {
            return Err(BusError::failed(format!("writing an event of build {key}"))(error).into());
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn run_ended(bus: &Bus, key: &BuildKey, guard: Sequence) -> Result<bool, BusError> {
    let latest = bus.records().latest(key).await?;
    Ok(latest.is_none_or(|(sequence, _)| sequence != guard))
}
