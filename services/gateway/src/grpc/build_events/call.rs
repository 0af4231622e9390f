//! One stream of build events: they are stored in their order, one message after the other, and acknowledged in their
//! order when they are stored. While a message is written, the next events are collected.

use std::{sync::Arc, time::Duration};

use build_events::{
    pack, redact,
    service::{Event, OrderedBuildEvent, StreamId, ToolStreamResponse},
};
use bus::{BazelEvents, ChunkFault, EventContent, EventOwner};
use bytes::{Bytes, BytesMut};
use callers::Caller;
use model::{DigestFunction, ToolInvocation};
use policy::build_events::{EventNumber, EventNumbers, MESSAGE_BYTES_MAX, events_go_to_store};
use telemetry::metrics::{Counter, Label, count};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tonic::{Status, metadata::MetadataMap};
use tracing::debug;

use super::{
    PATIENCE,
    owner::{Owner, owner},
    requests::{Received, Requests},
    unacknowledged::Unacknowledged,
};
use crate::grpc::{Core, faults};

/// Maximum number of events that are collected while others are written.
const COLLECTED_MAX: usize = 1000;
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Name of the type of Bazel's events.
const BAZEL_EVENT: &str = "build_event_stream.BuildEvent";

/// A stream of build events while it is open.
pub(super) struct Call {
    core: Core,
    caller: Arc<Caller>,
    headers: MetadataMap,
    acknowledged: mpsc::Sender<Result<ToolStreamResponse, Status>>,
    numbers: EventNumbers,
    opened: Option<Opened>,
    unacknowledged: Unacknowledged,
}

/// What the first request of a stream states.
struct Opened {
    id: StreamId,
    tool: ToolInvocation,
    owner: Owner,
    /// Bytes of its events that went to the bus.
    on_bus: u64,
}

/// Events that are written as one message.
#[derive(Default)]
struct Batch {
    packed: BytesMut,
    first: u64,
    last: u64,
    complete: bool,
    /// The numbers to acknowledge, with the memory of their requests.
    accepted: Vec<(i64, Received)>,
}

impl Call {
    pub(super) fn new(
        core: Core,
        (caller, headers): (Arc<Caller>, MetadataMap),
        unacknowledged: Unacknowledged,
        acknowledged: mpsc::Sender<Result<ToolStreamResponse, Status>>,
    ) -> Self {
        Self {
            core,
            caller,
            headers,
            acknowledged,
            numbers: EventNumbers::default(),
            opened: None,
            unacknowledged,
        }
    }

    /// Runs until the client sends no more, an error ends the stream, or the gateway stops.
    pub(super) async fn run(mut self, requests: Requests) {
        let (sender, receiver) = mpsc::channel(COLLECTED_MAX);
        let reading = read(requests, sender);
        let stop = self.core.stop.clone();
        let acknowledged = self.acknowledged.clone();
        let ended = tokio::select! {
            ended = async { tokio::join!(reading, self.store_all(receiver)).1 } => ended,
            () = stop.cancelled() => Err(Status::unavailable("the gateway shuts down; resume the stream")),
            () = acknowledged.closed() => return,
        };
        if let Err(status) = ended {
            debug!(%status, "a stream of build events ended early");
            // A client that left needs no reason.
            let _ = acknowledged.send(Err(status)).await;
        }
    }

    async fn store_all(
        &mut self,
        mut received: mpsc::Receiver<Result<Received, Status>>,
    ) -> Result<(), Status> {
        let mut waiting = Vec::new();
        while received.recv_many(&mut waiting, COLLECTED_MAX).await > 0 {
            let since = waiting.iter().find_map(|next| next.as_ref().ok()).map(|first| first.at);
            let _waiting = since.map(|since| self.unacknowledged.begin(since));
            let mut batch = Batch::default();
            for next in waiting.drain(..) {
                // What came before an error is stored and acknowledged.
                let added = match next {
                    Ok(next) => self.add(&mut batch, next).await,
                    Err(status) => Err(status),
                };
                if added.is_err() || batch.packed.len() >= MESSAGE_BYTES_MAX {
                    self.store(std::mem::take(&mut batch)).await?;
                }
                added?;
            }
            self.store(batch).await?;
        }
        Ok(())
    }

    /// Adds an event to the batch, which is stored before if the event does not fit.
    async fn add(&mut self, batch: &mut Batch, mut received: Received) -> Result<(), Status> {
        let event = received.request.ordered_build_event.take();
        let mut event = event.ok_or_else(|| Status::invalid_argument("a request contains no build event"))?;
        self.check_stream(&received, &event).await?;
        let asked = event.sequence_number;
        let number =
            self.numbers.accept(asked).map_err(|refusal| Status::failed_precondition(refusal.to_string()))?;
        let EventNumber::Next(number) = number else {
            count(Counter::BazelEvents, &[(Label::Outcome, "repeated")], 1);
            batch.accepted.push((asked, received));
            return Ok(());
        };
        make_safe(&mut event);
        if !batch.packed.is_empty() && batch.packed.len() + received.bytes > MESSAGE_BYTES_MAX {
            self.store(std::mem::take(batch)).await?;
        }
        if batch.packed.is_empty() {
            batch.first = number;
        }
        (batch.last, batch.complete) = (number, event.is_last());
        pack(&mut batch.packed, event);
        batch.accepted.push((asked, received));
        Ok(())
    }

    /// Opens the stream with its first request; all others must have the same id.
    async fn check_stream(&mut self, received: &Received, event: &OrderedBuildEvent) -> Result<(), Status> {
        if let Some(opened) = &self.opened {
            // Tools may state the id only once.
            return match &event.stream_id {
                Some(id) if *id != opened.id => {
                    Err(Status::invalid_argument("a request names another stream than the first one"))
                }
                Some(_) | None => Ok(()),
            };
        }
        let id = event.stream_id.clone();
        let id = id.ok_or_else(|| Status::invalid_argument("the first request names no stream"))?;
        let tool = ToolInvocation::of(&id.invocation_id);
        let owner = self.find_owner(&received.request.project_id).await?;
        debug!(tool = %tool, ?owner, "a stream of build events begins");
        self.opened = Some(Opened { id, tool, owner, on_bus: 0 });
        Ok(())
    }

    async fn find_owner(&self, project: &str) -> Result<Owner, Status> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match owner(&self.core, (&self.caller, &self.headers), project).await {
                Err(status) if is_temporary(&status) && Instant::now() < deadline => sleep(RETRY_DELAY).await,
                found => return found,
            }
        }
    }

    /// Stores and acknowledges the events of a batch.
    async fn store(&mut self, batch: Batch) -> Result<(), Status> {
        let Some(opened) = &mut self.opened else { return Ok(()) };
        if !batch.packed.is_empty() {
            let events = batch.last - batch.first + 1;
            let outcome = opened.store(&self.core, &batch).await?;
            count(Counter::BazelEvents, &[(Label::Outcome, outcome)], events);
        }
        for (sequence_number, received) in batch.accepted {
            drop(received);
            let acknowledgement = ToolStreamResponse { stream_id: Some(opened.id.clone()), sequence_number };
            if self.acknowledged.send(Ok(acknowledgement)).await.is_err() {
                return Err(Status::cancelled("the client left"));
            }
        }
        Ok(())
    }
}

impl Opened {
    /// Stores the events of a batch; returns what became of them.
    async fn store(&mut self, core: &Core, batch: &Batch) -> Result<&'static str, Status> {
        let Owner::Known(owner) = &self.owner else { return Ok("run_ended") };
        let packed = Bytes::copy_from_slice(&batch.packed);
        let inline = !events_go_to_store(packed.len(), self.on_bus);
        let content = if inline {
            self.on_bus += packed.len() as u64;
            EventContent::Inline(packed)
        } else {
            put(core, owner, &self.tool, packed).await?
        };
        let (tool, first, last, complete) = (self.tool.clone(), batch.first, batch.last, batch.complete);
        let events = BazelEvents { tool, first, last, complete, content };
        match core.bus.write_bazel_events(owner, &events, PATIENCE).await {
            Ok(()) => Ok(if inline { "stored" } else { "stored_as_blob" }),
            Err(ChunkFault::RunEnded) => {
                debug!(tool = %self.tool, "the build of a stream of build events has ended, dropping the rest");
                self.owner = Owner::Ended;
                Ok("run_ended")
            }
            Err(ChunkFault::Bus(error)) => Err(faults::bus(error)),
        }
    }
}

/// Puts packed events into the store, for as long as the bus has the message that names them.
async fn put(
    core: &Core,
    owner: &EventOwner,
    tool: &ToolInvocation,
    packed: Bytes,
) -> Result<EventContent, Status> {
    let deadline = Instant::now() + PATIENCE;
    let blob = loop {
        let put = core.cas.put_bytes(DigestFunction::Sha256, packed.clone()).await;
        match put.map_err(|error| faults::store(&error)) {
            Ok(blob) => break blob,
            Err(status) if is_temporary(&status) && Instant::now() < deadline => sleep(RETRY_DELAY).await,
            // Bazel sends the event again after any other error than these two.
            Err(status) => return Err(Status::unavailable(status.message())),
        }
    };
    core.bus.name_event_blob(owner.group(), tool, &blob, PATIENCE).await.map_err(faults::bus)?;
    Ok(EventContent::Blob(blob))
}

fn is_temporary(status: &Status) -> bool {
    matches!(status.code(), tonic::Code::Unavailable | tonic::Code::ResourceExhausted)
}

/// Removes the secrets of an event. Of one that is unreadable nothing but its type remains.
fn make_safe(event: &mut OrderedBuildEvent) {
    let content = event.event.as_mut().and_then(|event| event.event.as_mut());
    let Some(Event::BazelEvent(any)) = content else { return };
    if !any.type_url.ends_with(BAZEL_EVENT) {
        return;
    }
    match redact(&any.value) {
        Ok(safe) => any.value = safe,
        Err(error) => {
            debug!(number = event.sequence_number, %error, "a build event is unreadable");
            count(Counter::BazelEvents, &[(Label::Outcome, "unreadable")], 1);
            any.value = Bytes::new();
        }
    }
}

/// Reads requests ahead of those that are written, as far as there is memory.
async fn read(mut requests: Requests, sender: mpsc::Sender<Result<Received, Status>>) {
    loop {
        let next = tokio::select! {
            next = requests.next() => next,
            () = sender.closed() => return,
        };
        let Some(next) = next.transpose() else { return };
        let ended = next.is_err();
        if sender.send(next).await.is_err() || ended {
            return;
        }
    }
}
