//! A channel that records refusals.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use base64::Engine as _;
use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{
    Code,
    body::Body,
    codegen::{Service, http},
    transport::{Channel, Error},
};

/// An error that the server returned for a call immediately.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Name of the method: `/package.Service/Method`.
    pub(crate) method: String,
    pub(crate) code: Code,
    pub(crate) message: String,
    /// Type URLs of its details.
    pub(crate) details: Vec<String>,
}

/// A channel that records refusals.
#[derive(Clone)]
pub(crate) struct Watched {
    inner: Channel,
    seen: Arc<Mutex<Vec<Refusal>>>,
}

const SEEN_MAX: usize = 10_000;

impl Watched {
    pub(crate) fn new(inner: Channel) -> Self {
        Self { inner, seen: Arc::default() }
    }

    /// Returns the refusals recorded so far.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.seen.lock().clone()
    }
}

impl Service<http::Request<Body>> for Watched {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Service::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let seen = Arc::clone(&self.seen);
        let answer = Service::call(&mut self.inner, request);
        async move {
            let response = answer.await?;
            if let Some(refusal) = refusal(method, response.headers()) {
                let mut seen = seen.lock();
                if seen.len() < SEEN_MAX {
                    seen.push(refusal);
                }
            }
            Ok(response)
        }
        .boxed()
    }
}

fn refusal(method: String, headers: &http::HeaderMap) -> Option<Refusal> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    if code == Code::Ok {
        return None;
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let details = base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text("grpc-status-details-bin").trim_end_matches('='))
        .ok()
        .and_then(|bytes| reapi::rpc::Status::decode(&*bytes).ok())
        .map(|status| status.details.into_iter().map(|any| any.type_url).collect())
        .unwrap_or_default();
    Some(Refusal { method, code, message: text("grpc-message").to_owned(), details })
}
