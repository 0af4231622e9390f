//! `PublishBuildEvent` on HTTP/2, spoken without generated code: requests are read one by one as there is memory.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use build_events::service::{Empty, LIFECYCLE, LifecycleRequest, SERVICE, TOOL_STREAM, ToolStreamResponse};
use callers::Caller;
use futures::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _},
    stream::BoxStream,
};
use reapi::stream::BytesCodec;
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    metadata::MetadataMap,
    server::{Grpc, NamedService, StreamingService, UnaryService},
};

use super::{EventRoom, call::Call, requests::Requests, unacknowledged::Unacknowledged};
use crate::grpc::Core;

/// Maximum number of acknowledgements that a client leaves unread.
const UNREAD_MAX: usize = 1024;

/// Implementation of the `google.devtools.build.v1.PublishBuildEvent` service.
#[derive(Clone)]
pub(crate) struct BuildEvents {
    core: Core,
    room: EventRoom,
    unacknowledged: Unacknowledged,
}

type Acknowledgements = BoxStream<'static, Result<ToolStreamResponse, Status>>;

impl BuildEvents {
    pub(crate) fn new(core: Core) -> Self {
        let unacknowledged = Unacknowledged::default();
        unacknowledged.report();
        Self { core, room: EventRoom::default(), unacknowledged }
    }
}

impl NamedService for BuildEvents {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for BuildEvents {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        async move {
            Ok(match request.uri().path() {
                LIFECYCLE => Grpc::new(BytesCodec::default()).unary(Lifecycle, request).await,
                TOOL_STREAM => service.stream(request).await,
                other => Status::unimplemented(format!("method {other} is not supported")).into_http(),
            })
        }
        .boxed()
    }
}

impl BuildEvents {
    async fn stream(self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let requests = Requests::new(body, self.room);
        let caller = Caller::of(&parts.extensions);
        let headers = MetadataMap::from_headers(parts.headers);
        let (sender, receiver) = mpsc::channel(UNREAD_MAX);
        tokio::spawn(Call::new(self.core, (caller, headers), self.unacknowledged, sender).run(requests));
        let unfold =
            |mut receiver: mpsc::Receiver<_>| async move { Some((receiver.recv().await?, receiver)) };
        let acknowledgements = futures::stream::unfold(receiver, unfold).boxed();
        // The body was taken: what answers only writes.
        let empty = http::Request::new(Body::empty());
        Grpc::new(BytesCodec::default()).streaming(Answer(Some(acknowledgements)), empty).await
    }
}

/// Answers with acknowledgements that do not depend on the request that tonic sees.
struct Answer(Option<Acknowledgements>);

impl StreamingService<Empty> for Answer {
    type Response = ToolStreamResponse;
    type ResponseStream = Acknowledgements;
    type Future = futures::future::Ready<Result<Response<Acknowledgements>, Status>>;

    fn call(&mut self, _: Request<tonic::Streaming<Empty>>) -> Self::Future {
        let acknowledgements = self.0.take().unwrap_or_else(|| futures::stream::empty().boxed());
        futures::future::ready(Ok(Response::new(acknowledgements)))
    }
}

/// Accepts lifecycle events. They are not stored: the stream of the tool says the same, and may come without them.
struct Lifecycle;

impl UnaryService<LifecycleRequest> for Lifecycle {
    type Response = Empty;
    type Future = futures::future::Ready<Result<Response<Empty>, Status>>;

    fn call(&mut self, _: Request<LifecycleRequest>) -> Self::Future {
        count(Counter::BazelEvents, &[(Label::Outcome, "lifecycle")], 1);
        futures::future::ready(Ok(Response::new(Empty {})))
    }
}
