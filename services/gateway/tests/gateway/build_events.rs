//! The build event service.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use crate::support::{Farm, Gateway, SOON};
use build_events::{
    service::{
        Any, BuildEvent, Empty, Event, LIFECYCLE, LifecycleRequest, OrderedBuildEvent, StreamFinished,
        StreamId, TOOL_STREAM, ToolStreamRequest, ToolStreamResponse,
    },
    unpack,
};
use bus::{BazelEvents, BazelSubject, EventContent, stream};
use bytes::Bytes;
use model::{Group, Sequence, ToolInvocation};
use reapi::stream::BytesCodec;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    body::Body,
    client::Grpc,
    codegen::{
        Service,
        http::{self, uri::PathAndQuery},
    },
};

/// A tool that publishes events.
struct Tool {
    id: StreamId,
    project: String,
    requests: mpsc::UnboundedSender<ToolStreamRequest>,
    answers: Streaming<ToolStreamResponse>,
}

fn fresh(invocation: &str) -> StreamId {
    StreamId { build_id: "b".into(), invocation_id: invocation.into(), component: 3 }
}

impl Tool {
    async fn open(gateway: &Gateway, invocation: &str) -> Self {
        Self::of_project(gateway, invocation, "").await
    }

    async fn of_project(gateway: &Gateway, invocation: &str, project: &str) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let mut grpc = Grpc::new(gateway.channel.clone());
        grpc.ready().await.unwrap();
        let codec = BytesCodec::<ToolStreamRequest, ToolStreamResponse>::default();
        let request = Request::new(UnboundedReceiverStream::new(receiver));
        let answers = grpc.streaming(request, PathAndQuery::from_static(TOOL_STREAM), codec).await.unwrap();
        Self { id: fresh(invocation), project: project.into(), requests, answers: answers.into_inner() }
    }

    fn send(&self, number: i64, event: Event) {
        let event = BuildEvent { event_time: None, event: Some(event) };
        let event = OrderedBuildEvent {
            stream_id: Some(self.id.clone()),
            sequence_number: number,
            event: Some(event),
        };
        let request = ToolStreamRequest {
            ordered_build_event: Some(event),
            notification_keywords: Vec::new(),
            project_id: self.project.clone(),
        };
        self.requests.send(request).unwrap();
    }

    async fn answer(&mut self) -> Result<Option<i64>, Status> {
        let answer = tokio::time::timeout(SOON, self.answers.message()).await.expect("an answer comes soon");
        Ok(answer?.map(|answer| answer.sequence_number))
    }

    /// Sends events and waits until all are acknowledged in their order.
    async fn publish(&mut self, numbers: std::ops::RangeInclusive<i64>) {
        for number in numbers.clone() {
            self.send(number, bazel(b"\x9a\x3e\x01x"));
        }
        for number in numbers {
            assert_eq!(self.answer().await.unwrap(), Some(number));
        }
    }

    /// Ends the requests; the answers must end without an error.
    async fn end(mut self) {
        let (closed, _) = mpsc::unbounded_channel();
        self.requests = closed;
        assert_eq!(self.answer().await.unwrap(), None);
    }
}

fn bazel(event: &[u8]) -> Event {
    let value = Bytes::copy_from_slice(event);
    Event::BazelEvent(Any { type_url: "type.googleapis.com/build_event_stream.BuildEvent".into(), value })
}

fn finished() -> Event {
    Event::ComponentStreamFinished(StreamFinished { kind: 1 })
}

/// The stored messages of a call outside of builds.
async fn stored(farm: &Farm, invocation: &str) -> Vec<BazelEvents> {
    let group: Group = "default".parse().unwrap();
    let subject = BazelSubject::Events(group, ToolInvocation::of(invocation)).to_string();
    let tail = farm.bus.stream(stream::BAZEL).read_from(&subject, Sequence(1), 1000).await.unwrap();
    tail.events.iter().map(|stored| BazelEvents::read(stored).unwrap()).collect()
}

fn numbers(messages: &[BazelEvents]) -> Vec<i64> {
    let packed = |message: &BazelEvents| match &message.content {
        EventContent::Inline(packed) => unpack(packed.clone()).unwrap(),
        EventContent::Blob(_) => Vec::new(),
    };
    messages.iter().flat_map(packed).map(|event| event.sequence_number).collect()
}

/// A request of a stream that announces 64 MiB and sends nothing of them.
struct HalfOpen {
    head: Option<Bytes>,
}

impl http_body::Body for HalfOpen {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        self.head.take().map_or(Poll::Pending, |head| Poll::Ready(Some(Ok(http_body::Frame::data(head)))))
    }
}

#[tokio::test]
async fn streams_that_announce_more_than_they_send_stop_no_other() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        let head = Some(Bytes::from_static(&[0, 4, 0, 0, 0]));
        let request = http::Request::post(format!("http://gateway{TOOL_STREAM}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(HalfOpen { head }))
            .unwrap();
        let mut channel = gateway.channel.clone();
        std::future::poll_fn(|cx| Service::poll_ready(&mut channel, cx)).await.unwrap();
        streams.push(channel.call(request).await.unwrap());
    }
    let mut tool = Tool::open(&gateway, "call-1").await;
    tool.publish(1..=100).await;
    tool.end().await;
    drop(streams);
}

#[tokio::test]
async fn events_are_stored_in_order_without_secrets_and_acknowledged() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let mut tool = Tool::open(&gateway, "call-1").await;
    // options_parsed with one option.
    tool.send(1, bazel(b"\x6a\x1b\x0a\x19--remote_header=x-k=hidden"));
    assert_eq!(tool.answer().await.unwrap(), Some(1));
    tool.publish(2..=500).await;
    tool.send(500, bazel(b""));
    assert_eq!(tool.answer().await.unwrap(), Some(500), "a repeat is acknowledged again");
    tool.send(501, finished());
    assert_eq!(tool.answer().await.unwrap(), Some(501));
    tool.end().await;
    let messages = stored(&farm, "call-1").await;
    assert_eq!(numbers(&messages), (1..=501).collect::<Vec<_>>());
    assert!(messages.len() < 400, "events that wait for each other share a message: {}", messages.len());
    assert_eq!(messages.iter().filter(|message| message.complete).count(), 1);
    let EventContent::Inline(first) = &messages[0].content else { panic!("{messages:?}") };
    assert!(!String::from_utf8_lossy(first).contains("hidden"), "{first:?}");
}

#[tokio::test]
async fn wrong_numbers_and_streams_are_refused() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    for (number, code) in [(0, Code::FailedPrecondition), (-1, Code::FailedPrecondition)] {
        let mut tool = Tool::open(&gateway, "call").await;
        tool.send(number, bazel(b""));
        assert_eq!(tool.answer().await.unwrap_err().code(), code, "{number}");
    }
    let mut tool = Tool::open(&gateway, "call").await;
    tool.publish(3..=4).await;
    tool.send(6, bazel(b""));
    assert_eq!(tool.answer().await.unwrap_err().code(), Code::FailedPrecondition);
    let mut tool = Tool::open(&gateway, "call").await;
    tool.publish(1..=1).await;
    tool.id = fresh("other");
    tool.send(2, bazel(b""));
    assert_eq!(tool.answer().await.unwrap_err().code(), Code::InvalidArgument);
    let mut tool = Tool::of_project(&gateway, "call", "no-such-instance").await;
    tool.send(1, bazel(b""));
    let refused = tool.answer().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("known:"), "{refused}");
}

#[tokio::test]
async fn hostile_ids_and_contents_are_stored() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    for id in ["", "a/b", "a.b.*.>", &"x".repeat(1 << 20), "nul\0", "\u{202e}"] {
        let mut tool = Tool::open(&gateway, id).await;
        tool.send(i64::MAX - 1, bazel(b"\xff\xff\xff"));
        let foreign = Any { type_url: "x/other".into(), value: Bytes::from_static(b"\xff") };
        tool.send(i64::MAX, Event::BuckEvent(foreign));
        assert_eq!(tool.answer().await.unwrap(), Some(i64::MAX - 1));
        assert_eq!(tool.answer().await.unwrap(), Some(i64::MAX));
        tool.end().await;
        let messages = stored(&farm, id).await;
        assert_eq!(numbers(&messages), [i64::MAX - 1, i64::MAX], "{}", id.len());
    }
}

#[tokio::test]
async fn a_large_event_goes_to_the_store() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let mut tool = Tool::open(&gateway, "large").await;
    // Field 3 (progress), which may be long.
    let text = vec![b'x'; 20 << 20];
    let mut event = Vec::new();
    prost::encoding::bytes::encode(3, &text, &mut event);
    tool.publish(1..=1).await;
    tool.send(2, bazel(&event));
    tool.send(3, finished());
    assert_eq!(tool.answer().await.unwrap(), Some(2));
    assert_eq!(tool.answer().await.unwrap(), Some(3));
    let messages = stored(&farm, "large").await;
    let blobs = messages.iter().filter_map(|message| match message.content {
        EventContent::Blob(blob) => Some(blob),
        EventContent::Inline(_) => None,
    });
    let blobs: Vec<_> = blobs.collect();
    let [blob] = blobs[..] else { panic!("{messages:?}") };
    let content = farm.cas.get(&blob).await.unwrap().unwrap();
    assert_eq!(unpack(content).unwrap()[0].sequence_number, 2);
    let named = BazelSubject::Blob("default".parse().unwrap(), ToolInvocation::of("large")).to_string();
    let last = farm.bus.stream(stream::BAZEL).last(&named).await.unwrap().unwrap();
    assert_eq!(bus::named_blob(&last), Some(blob), "the store keeps what is named here");
    // One beyond the limit is refused with its size.
    let mut tool = Tool::open(&gateway, "huge").await;
    tool.send(1, bazel(&vec![0; 65 << 20]));
    let refused = tool.answer().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn a_stream_outlives_a_restart_of_the_bus() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let mut tool = Tool::open(&gateway, "restart").await;
    tool.publish(1..=3).await;
    farm.servers.kill_nats();
    for number in 4..=200 {
        tool.send(number, bazel(b""));
    }
    tool.send(201, finished());
    farm.servers.start_nats().await;
    for number in 4..=201 {
        assert_eq!(tool.answer().await.unwrap(), Some(number));
    }
    tool.end().await;
    let mut found = numbers(&stored(&farm, "restart").await);
    found.dedup();
    assert_eq!(found, (1..=201).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_gateway_that_stops_lets_another_go_on() {
    let farm = Farm::start().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut tool = Tool::open(&one, "moved").await;
    tool.publish(1..=5).await;
    one.stop.cancel();
    assert_eq!(tool.answer().await.unwrap_err().code(), Code::Unavailable);
    // The last ones may come again: their acknowledgement could be lost.
    let mut tool = Tool::open(&two, "moved").await;
    tool.publish(4..=9).await;
    tool.send(10, finished());
    assert_eq!(tool.answer().await.unwrap(), Some(10));
    let found = numbers(&stored(&farm, "moved").await);
    assert!((1..=10).all(|number| found.contains(&number)), "{found:?}");
}

#[tokio::test]
async fn events_of_a_build_that_does_not_run_are_dropped() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let project = format!("forebay/default/worker-1/{}/1", uuid::Uuid::new_v4());
    let mut tool = Tool::of_project(&gateway, "zombie", &project).await;
    tool.publish(1..=20).await;
    tool.end().await;
    assert_eq!(stored(&farm, "zombie").await, []);
    let mut tool = Tool::of_project(&gateway, "zombie", "forebay/x").await;
    tool.send(1, bazel(b""));
    assert_eq!(tool.answer().await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn lifecycle_events_are_accepted_at_any_time() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let mut grpc = Grpc::new(gateway.channel.clone());
    grpc.ready().await.unwrap();
    let codec = BytesCodec::<LifecycleRequest, Empty>::default();
    let request = Request::new(LifecycleRequest::default());
    grpc.unary(request, PathAndQuery::from_static(LIFECYCLE), codec).await.unwrap();
}
