//! Reading stored messages: the latest record of a build, of many builds in one round trip, and a build's events.

use std::time::{Duration, SystemTime};

use async_nats::StatusCode;
use bytes::Bytes;
use futures::StreamExt as _;
use model::{BuildKey, BuildRecord, ExecutionKey, ExecutionRecord, Sequence};
use serde::{Serialize, de::DeserializeOwned};

use crate::{ActionSubject, Bus, BusError, Encoding, EventSubject, Stored, stream};

/// Part of a build's events.
#[derive(Debug)]
pub struct Tail {
    /// The events, in order.
    pub events: Vec<Stored>,
    /// Whether more events may follow.
    pub more: bool,
}

#[derive(Serialize)]
struct MultiGet<'a> {
    multi_last: &'a [String],
    batch: usize,
}

#[derive(Serialize)]
struct BatchGet<'a> {
    seq: u64,
    next_by_subj: &'a str,
    batch: usize,
    max_bytes: usize,
}

/// Maximum size of one batch in bytes: its reader holds all of it in memory.
const BATCH_BYTES: usize = 512 << 10;
const BATCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of keys up to which single reads need fewer messages than a batch (a subscription, its end
/// and an end marker).
const SINGLE_READS_MAX: usize = 4;
/// Maximum number of subjects in one request, well below the server's limit of 1,024.
const SUBJECTS_MAX: usize = 500;

impl Bus {
    /// Reads the last lifecycle message of a build from the stream's leader.
    pub async fn latest(&self, key: &BuildKey) -> Result<Option<(Sequence, BuildRecord)>, BusError> {
        match self.last_stored(stream::EVENTS, &EventSubject::lifecycle(key).to_string()).await? {
            None => Ok(None),
            Some(stored) => Ok(Some((stored.sequence, stored.record()?))),
        }
    }

    /// Reads the last lifecycle message of a build from any replica: fast, and possibly slightly stale.
    pub async fn latest_direct(&self, key: &BuildKey) -> Result<Option<(Sequence, BuildRecord)>, BusError> {
        self.last_direct(stream::EVENTS, &EventSubject::lifecycle(key).to_string()).await
    }

    /// Reads the last message of an execution from the stream's leader.
    pub async fn latest_execution(
        &self,
        key: &ExecutionKey,
    ) -> Result<Option<(Sequence, ExecutionRecord)>, BusError> {
        match self.last_stored(stream::ACTIONS, &ActionSubject(key.clone()).to_string()).await? {
            None => Ok(None),
            Some(stored) => Ok(Some((stored.sequence, stored.execution()?))),
        }
    }

    /// Reads the last message of an execution from any replica: fast, and possibly slightly stale.
    pub async fn latest_execution_direct(
        &self,
        key: &ExecutionKey,
    ) -> Result<Option<(Sequence, ExecutionRecord)>, BusError> {
        self.last_direct(stream::ACTIONS, &ActionSubject(key.clone()).to_string()).await
    }

    async fn last_direct<T: DeserializeOwned>(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<(Sequence, T)>, BusError> {
        match self.last_stored_direct(stream, subject).await? {
            None => Ok(None),
            Some(stored) => Ok(Some((stored.sequence, stored.read()?))),
        }
    }

    /// Reads the last message on `subject` of `stream` from any replica.
    async fn last_stored_direct(&self, stream: &str, subject: &str) -> Result<Option<Stored>, BusError> {
        let what = || format!("reading the last message on {subject}");
        let request = format!("$JS.API.DIRECT.GET.{stream}.{subject}");
        let reply = self.client.request(request, Bytes::new()).await.map_err(BusError::failed(what()))?;
        if reply.status == Some(StatusCode::NOT_FOUND) {
            return Ok(None);
        }
        Ok(Stored::from_direct(reply))
    }

    /// Reads the last message on `subject` of `stream` from its leader.
    pub async fn last_stored(&self, stream: &str, subject: &str) -> Result<Option<Stored>, BusError> {
        use async_nats::jetstream::stream::LastRawMessageErrorKind;
        let what = || format!("reading the last message on {subject}");
        let handle = self.js.get_stream_no_info(stream).await.map_err(BusError::failed(what()))?;
        match handle.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(Stored {
                subject: message.subject.to_string(),
                sequence: Sequence(message.sequence),
                at: SystemTime::from(message.time).into(),
                headers: Some(message.headers),
                payload: message.payload,
            })),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(BusError::failed(what())(error)),
        }
    }

    /// Reads the last lifecycle messages of many builds, in no particular order, from any replica; builds
    /// without one are omitted.
    pub async fn latest_many(&self, keys: &[BuildKey]) -> Result<Vec<(Sequence, BuildRecord)>, BusError> {
        let stored = self.latest_many_stored(keys).await?;
        stored.iter().map(|message| Ok((message.sequence, message.record()?))).collect()
    }

    /// Like [`Self::latest_many`], with the records as they are stored.
    pub async fn latest_many_stored(&self, keys: &[BuildKey]) -> Result<Vec<Stored>, BusError> {
        let subjects: Vec<String> = keys.iter().map(|key| EventSubject::lifecycle(key).to_string()).collect();
        if subjects.len() <= SINGLE_READS_MAX {
            let reads = subjects.iter().map(|subject| self.last_stored_direct(stream::EVENTS, subject));
            return Ok(futures::future::try_join_all(reads).await?.into_iter().flatten().collect());
        }
        self.last_of_many(stream::EVENTS, &subjects).await
    }

    /// Reads the last message on each of `subjects`, in no particular order.
    pub async fn last_of_many(&self, stream: &str, subjects: &[String]) -> Result<Vec<Stored>, BusError> {
        let mut found = Vec::with_capacity(subjects.len());
        for part in subjects.chunks(SUBJECTS_MAX) {
            let request = MultiGet { multi_last: part, batch: SUBJECTS_MAX };
            found.extend(self.direct_batch(stream, &request).await?.events);
        }
        Ok(found)
    }

    /// Reads up to `batch` events on `subjects` (a filter) from position `from` on.
    pub async fn events_from(&self, subjects: &str, from: Sequence, batch: usize) -> Result<Tail, BusError> {
        self.stored_from(stream::EVENTS, subjects, from, batch).await
    }

    /// Reads up to `batch` messages of `stream` on `subjects` (a filter) from position `from` on.
    pub(crate) async fn stored_from(
        &self,
        stream: &str,
        subjects: &str,
        from: Sequence,
        batch: usize,
    ) -> Result<Tail, BusError> {
        let request = BatchGet { seq: from.0.max(1), next_by_subj: subjects, batch, max_bytes: BATCH_BYTES };
        self.direct_batch(stream, &request).await
    }

    /// Sends one request and collects its replies until a status message ends them.
    async fn direct_batch<T: Serialize>(&self, stream: &str, request: &T) -> Result<Tail, BusError> {
        let what = || format!("reading a batch of {stream}");
        let inbox = self.client.new_inbox();
        let mut replies = self.client.subscribe(inbox.clone()).await.map_err(BusError::failed(what()))?;
        let payload = crate::encode(Encoding::Json, request);
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        self.client.publish_with_reply(subject, inbox, payload).await.map_err(BusError::failed(what()))?;
        let mut events = Vec::new();
        loop {
            let next = tokio::time::timeout(BATCH_TIMEOUT, replies.next()).await;
            let Ok(Some(message)) = next else { return Err(BusError::Timeout { what: what() }) };
            match message.status {
                None => events.extend(Stored::from_direct(message)),
                // End of batch, or an empty batch.
                Some(status) if status.as_u16() == 204 => {
                    let pending = crate::header(message.headers.as_ref(), "Nats-Num-Pending");
                    let more = pending.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0);
                    return Ok(Tail { events, more });
                }
                Some(StatusCode::NOT_FOUND) => return Ok(Tail { events, more: false }),
                Some(status) => {
                    let text = message.description.unwrap_or_default();
                    return Err(BusError::failed(what())(format!("status {status}: {text}")));
                }
            }
        }
    }

    /// First and last position of `stream`.
    pub async fn stream_positions(&self, stream: &str) -> Result<(Sequence, Sequence), BusError> {
        let what = || format!("reading the state of {stream}");
        let handle = self.js.get_stream_no_info(stream).await.map_err(BusError::failed(what()))?;
        let info = handle.get_info().await.map_err(BusError::failed(what()))?;
        Ok((Sequence(info.state.first_sequence), Sequence(info.state.last_sequence)))
    }
}
