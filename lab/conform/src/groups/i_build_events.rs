//! Checks 154–156: build events.

use std::time::Duration;

use prost::Message;
use reapi::protobuf::{Any, Timestamp};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::{
    check::{Check, check},
    context::{Cx, within},
    names::fresh_text,
    stop::{Judged, Stop, describe, fail, need, pass, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(154, I, Must, Nothing, "build events are acknowledged once each, in order", acknowledged),
    check!(155, I, Practical, Nothing, "the end of a build event stream is not an error", ends_well),
    check!(156, I, Practical, Nothing, "a build event stream resumes after a broken connection", goes_on),
];

// The parts of google.devtools.build.v1 that the checks use.

#[derive(Clone, PartialEq, Eq, Message)]
struct StreamId {
    #[prost(string, tag = "1")]
    build_id: String,
    #[prost(string, tag = "6")]
    invocation_id: String,
    #[prost(int32, tag = "3")]
    component: i32,
}

#[derive(Clone, PartialEq, Message)]
struct BuildEvent {
    #[prost(message, optional, tag = "1")]
    event_time: Option<Timestamp>,
    #[prost(message, optional, tag = "51")]
    invocation_attempt_started: Option<Empty>,
    #[prost(message, optional, tag = "59")]
    component_stream_finished: Option<Finished>,
    #[prost(message, optional, tag = "60")]
    bazel_event: Option<Any>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Eq, Message)]
struct Finished {
    #[prost(int32, tag = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OrderedBuildEvent {
    #[prost(message, optional, tag = "1")]
    stream_id: Option<StreamId>,
    #[prost(int64, tag = "2")]
    sequence_number: i64,
    #[prost(message, optional, tag = "3")]
    event: Option<BuildEvent>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamRequest {
    #[prost(message, optional, tag = "4")]
    ordered_build_event: Option<OrderedBuildEvent>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct StreamResponse {
    #[prost(message, optional, tag = "1")]
    stream_id: Option<StreamId>,
    #[prost(int64, tag = "2")]
    sequence_number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LifecycleRequest {
    #[prost(message, optional, tag = "2")]
    build_event: Option<OrderedBuildEvent>,
}

const LIMIT: Duration = Duration::from_secs(10);
const STREAM: &str = "/google.devtools.build.v1.PublishBuildEvent/PublishBuildToolEventStream";
const LIFECYCLE: &str = "/google.devtools.build.v1.PublishBuildEvent/PublishLifecycleEvent";

/// A stream of build events.
struct Publishing {
    id: StreamId,
    send: Option<mpsc::UnboundedSender<StreamRequest>>,
    answers: Streaming<StreamResponse>,
}

async fn ready(cx: &Cx) -> Result<Grpc<crate::watched::Watched>, Stop> {
    let mut grpc = Grpc::new(cx.client.transport().clone());
    match grpc.ready().await {
        Ok(()) => Ok(grpc),
        Err(error) => Err(Stop::Fail(format!("the connection is lost: {error}"))),
    }
}

fn is_absent(status: &Status) -> bool {
    status.code() == Code::Unimplemented
}

const ABSENT: &str = "the server does not accept build events (PublishBuildEvent is not implemented)";

fn event(id: &StreamId, sequence_number: i64, is_last: bool) -> OrderedBuildEvent {
    let bazel =
        Any { type_url: "type.googleapis.com/build_event_stream.BuildEvent".into(), value: Vec::new() };
    OrderedBuildEvent {
        stream_id: Some(id.clone()),
        sequence_number,
        event: Some(BuildEvent {
            event_time: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            invocation_attempt_started: None,
            component_stream_finished: is_last.then_some(Finished { kind: 1 }),
            bazel_event: (!is_last).then_some(bazel),
        }),
    }
}

impl Publishing {
    fn id() -> StreamId {
        StreamId { build_id: fresh_text(), invocation_id: fresh_text(), component: 3 }
    }

    async fn open(cx: &Cx, id: StreamId, first: i64) -> Result<Self, Stop> {
        let mut grpc = ready(cx).await?;
        let (send, receive) = mpsc::unbounded_channel();
        // Some servers answer only after a first message.
        let opened = send.send(StreamRequest { ordered_build_event: Some(event(&id, first, false)) });
        need!(opened.is_ok(), "the tool cannot send");
        let request = Request::new(UnboundedReceiverStream::new(receive));
        let codec = ProstCodec::<StreamRequest, StreamResponse>::default();
        let answer = grpc.streaming(request, PathAndQuery::from_static(STREAM), codec);
        match within(LIMIT, "PublishBuildToolEventStream", answer).await? {
            Ok(answers) => Ok(Self { id, send: Some(send), answers: answers.into_inner() }),
            Err(status) if is_absent(&status) => Err(Stop::Skip(ABSENT.into())),
            Err(status) => Err(status.into()),
        }
    }

    fn send(&self, sequence_number: i64, is_last: bool) -> Result<(), Stop> {
        let request = StreamRequest { ordered_build_event: Some(event(&self.id, sequence_number, is_last)) };
        match &self.send {
            Some(send) if send.send(request).is_ok() => Ok(()),
            Some(_) | None => Err(Stop::Fail("the server ended the stream early".into())),
        }
    }

    async fn acknowledgement(&mut self) -> Result<i64, Stop> {
        match within(LIMIT, "a build event", self.answers.message()).await? {
            Ok(Some(answer)) => {
                need!(answer.stream_id.as_ref() == Some(&self.id), "an acknowledgement names another stream");
                Ok(answer.sequence_number)
            }
            Ok(None) => fail!("the stream ended before all events were acknowledged"),
            Err(status) if is_absent(&status) => skip!("{ABSENT}"),
            Err(status) => fail!("the stream of build events broke off with {}", describe(&status)),
        }
    }

    async fn acknowledged(&mut self, wanted: i64) -> Result<(), Stop> {
        let found = self.acknowledgement().await?;
        need!(found == wanted, "event {wanted} is acknowledged as {found}");
        Ok(())
    }

    async fn end(mut self) -> Result<(), Stop> {
        self.send = None;
        match within(LIMIT, "the end of a build event stream", self.answers.message()).await? {
            Ok(None) => Ok(()),
            Ok(Some(answer)) => fail!("after the end, {} is acknowledged", answer.sequence_number),
            Err(status) => fail!("the end of a build event stream is {}", describe(&status)),
        }
    }
}

async fn acknowledged(cx: &Cx) -> Judged {
    let mut stream = Publishing::open(cx, Publishing::id(), 1).await?;
    stream.acknowledged(1).await?;
    for number in 2..=20 {
        stream.send(number, false)?;
    }
    for number in 2..=20 {
        stream.acknowledged(number).await?;
    }
    stream.send(20, false)?;
    stream.acknowledged(20).await?;
    stream.send(21, true)?;
    stream.acknowledged(21).await?;
    stream.end().await?;
    let mut stream = Publishing::open(cx, Publishing::id(), 1).await?;
    stream.acknowledged(1).await?;
    stream.send(5, false)?;
    match tokio::time::timeout(Duration::from_secs(2), stream.answers.message()).await {
        Err(_) | Ok(Ok(None)) => {}
        Ok(Err(status)) => {
            need!(status.code() == Code::FailedPrecondition, "a gap is answered with {}", describe(&status));
        }
        Ok(Ok(Some(answer))) => fail!("after a gap, {} is acknowledged", answer.sequence_number),
    }
    pass()
}

async fn ends_well(cx: &Cx) -> Judged {
    let mut stream = Publishing::open(cx, Publishing::id(), 1).await?;
    stream.acknowledged(1).await?;
    stream.send(2, true)?;
    stream.acknowledged(2).await?;
    let id = stream.id.clone();
    stream.end().await?;
    let mut grpc = ready(cx).await?;
    let request = LifecycleRequest { build_event: Some(event(&id, 1, false)) };
    let codec = ProstCodec::<LifecycleRequest, Empty>::default();
    let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(LIFECYCLE), codec);
    within(Duration::from_secs(3), "PublishLifecycleEvent", answer).await??;
    pass()
}

async fn goes_on(cx: &Cx) -> Judged {
    let id = Publishing::id();
    let mut stream = Publishing::open(cx, id.clone(), 1).await?;
    stream.acknowledged(1).await?;
    for number in 2..=5 {
        stream.send(number, false)?;
    }
    stream.acknowledged(2).await?;
    drop(stream);
    let mut stream = Publishing::open(cx, id, 3).await?;
    stream.acknowledged(3).await?;
    for number in 4..=7 {
        stream.send(number, number == 7)?;
    }
    for number in 4..=7 {
        stream.acknowledged(number).await?;
    }
    stream.end().await?;
    pass()
}
