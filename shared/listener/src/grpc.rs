//! Counts the calls of a gRPC server, and ends calls whose message does not arrive in time.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use http_body::Body as _;
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
};

use crate::{
    body::{OpenRequest, RequestBody, ResponseBody, TooSlow},
    call::Call,
    limiter::Usage,
};

/// A gRPC service whose calls count for their connection.
#[derive(Debug, Clone)]
pub struct CountedCalls<S> {
    inner: S,
    patience: Duration,
    /// Paths of methods whose requests may pause, or that have their own timeouts.
    except: &'static [&'static str],
}

impl<S> CountedCalls<S> {
    /// Applies `patience` to pauses in all requests except those of the methods `except`.
    pub fn new(inner: S, patience: Duration, except: &'static [&'static str]) -> Self {
        Self { inner, patience, except }
    }
}

impl<S, B> Service<http::Request<Body>> for CountedCalls<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut call = Call::begin(request.uri().clone());
        let usage = request.extensions().get::<Arc<Usage>>().cloned();
        let sending = !request.body().is_end_stream();
        let open = usage.clone().map(OpenRequest::new);
        let patience = (!self.except.contains(&request.uri().path())).then_some(self.patience);
        let request = if sending {
            request.map(|sent| Body::new(RequestBody::new(sent, usage, patience, too_slow)))
        } else {
            request
        };
        let answered = self.inner.call(request);
        async move {
            let answer = answered.await?;
            call.answered(answer.headers());
            Ok(answer.map(|inner| ResponseBody::new(inner, open, Some(call))))
        }
        .boxed()
    }
}

fn too_slow(error: TooSlow) -> Box<dyn std::error::Error + Send + Sync> {
    Box::new(Status::deadline_exceeded(error.to_string()))
}
