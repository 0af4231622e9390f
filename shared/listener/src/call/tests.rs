//! Calls of gRPC as they show in the metrics.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, pending, ready},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body as _, Frame};
use telemetry::metrics::render;
use tonic::{
    body::Body,
    codegen::{Service, http},
};

use super::*;
use crate::CountedCalls;

/// The body of an answer, frame by frame.
#[derive(Default)]
struct Frames(VecDeque<Frame<Bytes>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// Answers every call with this status: in the trailers after a message, or in the head.
#[derive(Clone)]
enum Answers {
    Trailers(&'static str),
    Head(&'static str),
}

fn status(code: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(STATUS, code.parse().unwrap());
    headers
}

impl Service<http::Request<Body>> for Answers {
    type Response = http::Response<Frames>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let mut answer = http::Response::new(Frames::default());
        match self {
            Self::Trailers(code) => {
                let frames = [Frame::data(Bytes::from_static(b"message")), Frame::trailers(status(code))];
                answer.body_mut().0.extend(frames);
            }
            Self::Head(code) => *answer.headers_mut() = status(code),
        }
        ready(Ok(answer))
    }
}

/// A service that never answers.
struct Silent;

impl Service<http::Request<Body>> for Silent {
    type Response = http::Response<Frames>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        Box::pin(pending())
    }
}

fn request(path: &str) -> http::Request<Body> {
    http::Request::builder().uri(path).body(Body::empty()).unwrap()
}

fn counted<S>(service: S) -> CountedCalls<S> {
    CountedCalls::new(service, Duration::from_secs(1), &[])
}

/// Makes a call, and reads at most `frames` frames of its answer.
async fn call(answers: Answers, path: &str, frames: usize) {
    let mut body = counted(answers).call(request(path)).await.unwrap().into_body();
    for _ in 0..frames {
        let _ = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    }
}

/// How often calls of the endpoint ended with the status.
fn calls(endpoint: &str, status: &str) -> u64 {
    let labels = format!("{{endpoint=\"{endpoint}\",status=\"{status}\"}} ");
    let text = render();
    let line =
        text.lines().find_map(|line| line.strip_prefix("forebay_api_requests_total")?.strip_prefix(&labels));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn the_status_is_that_of_the_trailers_or_of_an_answer_without_message() {
    call(Answers::Trailers("0"), "/a.Service/Method", 3).await;
    call(Answers::Trailers("0"), "/a.Service/Method", 2).await;
    call(Answers::Trailers("14"), "/a.Service/Method", 3).await;
    call(Answers::Head("5"), "/a.Service/Method", 0).await;
    let count = |status| calls("a.Service/Method", status);
    assert_eq!([count("OK"), count("UNAVAILABLE"), count("NOT_FOUND"), count("CANCELLED")], [2, 1, 1, 0]);
    assert!(render().contains("forebay_api_seconds_count{endpoint=\"a.Service/Method\"} 4\n"));
}

#[tokio::test]
async fn a_call_that_its_client_drops_is_cancelled() {
    call(Answers::Trailers("0"), "/dropped.Service/Method", 1).await;
    assert_eq!(calls("dropped.Service/Method", "CANCELLED"), 1, "dropped before the trailers");
    let mut silent = counted(Silent);
    let answer =
        tokio::time::timeout(Duration::from_millis(1), silent.call(request("/dropped.Service/Method")));
    assert!(answer.await.is_err());
    assert_eq!(calls("dropped.Service/Method", "CANCELLED"), 2, "dropped before the answer");
    assert_eq!(calls("dropped.Service/Method", "OK"), 0);
}

#[tokio::test]
async fn paths_that_are_no_methods_make_no_labels() {
    call(Answers::Head("12"), "/made.up/Path", 0).await;
    call(Answers::Trailers("12"), "/made.up/Other", 3).await;
    assert_eq!(calls(UNKNOWN, "UNIMPLEMENTED"), 2);
    drop(counted(Silent).call(request("/made.up/Dropped")));
    assert_eq!(calls(UNKNOWN, "CANCELLED"), 1);
    assert!(!render().contains("made.up"));
}
