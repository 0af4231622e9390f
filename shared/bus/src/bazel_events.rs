//! Build events that Bazel and other tools publish. Those of a build of the farm are events of that build, guarded as its
//! console is. Those of a tool outside of builds have a stream of their own.

use std::time::Duration;

use async_nats::{HeaderMap, HeaderName, jetstream::context::PublishErrorKind};
use bytes::Bytes;
use model::{Attempt, BlobDigest, BuildKey, Group, InvocationId, Sequence, ToolInvocation};
use tokio::time::Instant;

use crate::{
    BazelSubject, Bus, BusError, ChunkFault, EventKind, EventSubject, Stored,
    guarded::publish_guarded,
    headers::{
        CONTENT_TYPE, HEADER_ATTEMPT, HEADER_BLOB, HEADER_INVOCATION, HEADER_NUMBERS, HEADER_TOOL_INVOCATION,
        MESSAGE_ID, STREAM_END, header,
    },
    stream,
};

/// Content type of packed build events: one encoded `google.devtools.build.v1.OrderedBuildEvent` after the other, each
/// preceded by its length as a varint.
const PACKED_EVENTS: &str = "application/x-protobuf; messageType=google.devtools.build.v1.OrderedBuildEvent";

const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Consecutive build events of one call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BazelEvents {
    /// Id that the tool gave the call.
    pub tool: ToolInvocation,
    /// Number of the first event; the first one of a call has number 1.
    pub first: u64,
    /// Number of the last event.
    pub last: u64,
    /// Whether the tool completed its stream with the last event.
    pub complete: bool,
    pub content: EventContent,
}

/// Where the content of build events is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventContent {
    /// In the message, packed.
    Inline(Bytes),
    /// In the content-addressable store, packed, because it is large.
    Blob(BlobDigest),
}

impl BazelEvents {
    /// Parses a stored message.
    pub fn read(stored: &Stored) -> Option<Self> {
        let headers = stored.headers.as_ref();
        let (first, last) = header(headers, HEADER_NUMBERS)?.split_once('-')?;
        let content = match header(headers, HEADER_BLOB) {
            Some(blob) => EventContent::Blob(blob.parse().ok()?),
            None => EventContent::Inline(stored.payload.clone()),
        };
        Some(Self {
            tool: header(headers, HEADER_TOOL_INVOCATION)?.parse().ok()?,
            first: first.parse().ok()?,
            last: last.parse().ok()?,
            complete: header(headers, STREAM_END).is_some(),
            content,
        })
    }

    /// Puts the content of the blob that a message names into the message.
    pub fn put_inline(stored: &mut Stored, content: Bytes) {
        stored.payload = content;
        if let Some(headers) = &mut stored.headers {
            let is_kept = |name: &HeaderName| AsRef::<str>::as_ref(name) != HEADER_BLOB;
            let kept = headers.iter().filter(|(name, _)| is_kept(name));
            // Each of these headers has one value.
            *headers =
                kept.filter_map(|(name, values)| Some((name.clone(), values.first()?.clone()))).collect();
        }
    }

    /// The attempt of the build that made the call; none outside of builds.
    pub fn attempt(stored: &Stored) -> Option<Attempt> {
        header(stored.headers.as_ref(), HEADER_ATTEMPT)?.parse().ok().map(Attempt)
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, PACKED_EVENTS);
        headers.insert(HEADER_TOOL_INVOCATION, self.tool.as_str());
        headers.insert(HEADER_NUMBERS, format!("{}-{}", self.first, self.last).as_str());
        // The stream's duplicate window drops a repeat after an uncertain answer.
        headers.insert(MESSAGE_ID, format!("{}-{}-{}", self.tool, self.first, self.last).as_str());
        if self.complete {
            headers.insert(STREAM_END, "1");
        }
        headers
    }
}

/// Who made a call whose build events are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventOwner {
    /// An attempt of a build. Its events are refused once it has ended.
    Run {
        key: BuildKey,
        attempt: Attempt,
        invocation: Option<InvocationId>,
        /// Position of the attempt's INVOCATION_STARTED.
        guard: Sequence,
    },
    /// A tool outside of builds that uses this group.
    Outside(Group),
}

impl EventOwner {
    /// The group that the events belong to.
    pub fn group(&self) -> &Group {
        match self {
            Self::Run { key, .. } => &key.group,
            Self::Outside(group) => group,
        }
    }
}

impl Bus {
    /// Writes build events of a call that `owner` made, retrying for at most `patience`.
    ///
    /// # Errors
    ///
    /// Fails with [`ChunkFault::RunEnded`] if the attempt that made the call has ended.
    pub async fn write_bazel_events(
        &self,
        owner: &EventOwner,
        events: &BazelEvents,
        patience: Duration,
    ) -> Result<(), ChunkFault> {
        let mut headers = events.headers();
        let payload = match &events.content {
            EventContent::Inline(packed) => packed.clone(),
            EventContent::Blob(blob) => {
                headers.insert(HEADER_BLOB, blob.to_string().as_str());
                Bytes::new()
            }
        };
        match owner {
            EventOwner::Run { key, attempt, invocation, guard } => {
                headers.insert(HEADER_ATTEMPT, attempt.to_string().as_str());
                if let Some(invocation) = invocation {
                    headers.insert(HEADER_INVOCATION, invocation.to_string().as_str());
                }
                let subject = EventSubject::bazel(key, &events.tool);
                publish_guarded(self, (key, *guard), &subject, headers, payload, patience).await
            }
            EventOwner::Outside(group) => {
                let subject = BazelSubject::Events(group.clone(), events.tool.clone());
                Ok(self.publish_stored(&subject.to_string(), headers, payload, patience).await?)
            }
        }
    }

    /// Records that build events of a call are in `blob`, so that the store keeps it as long as these records.
    pub async fn name_event_blob(
        &self,
        group: &Group,
        tool: &ToolInvocation,
        blob: &BlobDigest,
        patience: Duration,
    ) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER_BLOB, blob.to_string().as_str());
        let subject = BazelSubject::Blob(group.clone(), tool.clone()).to_string();
        self.publish_stored(&subject, headers, Bytes::new(), patience).await
    }

    /// The last build events of Bazel in a build; none if it called no Bazel that published them.
    pub async fn last_bazel_events(
        &self,
        key: &BuildKey,
    ) -> Result<Option<(Attempt, BazelEvents)>, BusError> {
        let subject = EventSubject { key: key.clone(), kind: EventKind::Bazel }.to_string();
        let last = self.stream(stream::EVENTS).last(&subject).await?;
        Ok(last.and_then(|stored| Some((BazelEvents::attempt(&stored)?, BazelEvents::read(&stored)?))))
    }

    async fn publish_stored(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
        patience: Duration,
    ) -> Result<(), BusError> {
        let deadline = Instant::now() + patience;
        loop {
            let written = self.publish_once(subject, headers.clone(), payload.clone()).await;
            let Err(error) = written else { return Ok(()) };
            if error.kind() == PublishErrorKind::MaxPayloadExceeded {
                return Err(BusError::TooLarge { what: format!("a message on {subject}") });
            }
            if Instant::now() >= deadline {
                return Err(BusError::failed(format!("writing to {subject}"))(error));
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// The blob that a message of [`BazelSubject::Blob`] names.
pub fn named_blob(stored: &Stored) -> Option<BlobDigest> {
    header(stored.headers.as_ref(), HEADER_BLOB)?.parse().ok()
}
