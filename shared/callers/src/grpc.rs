//! The layer of gRPC servers: which right each method needs.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use listener::Usage;
use policy::access::{Need, Right};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
};

use crate::{
    caller::Caller,
    callers::Callers,
    credential::{Credentials, Offered},
    lapsing::{Lapsing, LapsingRequest},
    place::Place,
    refusal::Refusal,
};

/// Header of an API key.
pub(crate) const API_KEY: &str = "x-forebay-api-key";

/// What each method needs, by the name of its service and its own. Methods that are not listed are refused to callers of a
/// farm with access rules.
const METHODS: &[(&str, &[&str], Needed)] = &[
    ("grpc.health.v1.Health", &["Check", "Watch", "List"], Needed::Nothing),
    ("build.bazel.remote.execution.v2.Capabilities", &["GetCapabilities"], Needed::Known),
    (
        "build.bazel.remote.execution.v2.Execution",
        &["Execute", "WaitExecution"],
        Needed::Right(Right::Execute),
    ),
    (
        "google.longrunning.Operations",
        &["GetOperation", "WaitOperation", "CancelOperation", "DeleteOperation", "ListOperations"],
        Needed::Right(Right::Execute),
    ),
    ("build.bazel.remote.execution.v2.ActionCache", &["GetActionResult"], Needed::Right(Right::CacheRead)),
    (
        "build.bazel.remote.execution.v2.ActionCache",
        &["UpdateActionResult"],
        Needed::Right(Right::CacheWrite),
    ),
    (
        "build.bazel.remote.execution.v2.ContentAddressableStorage",
        &["FindMissingBlobs", "BatchReadBlobs", "GetTree", "SplitBlob"],
        Needed::Right(Right::CacheRead),
    ),
    (
        "build.bazel.remote.execution.v2.ContentAddressableStorage",
        &["BatchUpdateBlobs", "SpliceBlob"],
        Needed::Right(Right::BlobWrite),
    ),
    ("google.bytestream.ByteStream", &["Read"], Needed::Right(Right::CacheRead)),
    ("google.bytestream.ByteStream", &["Write", "QueryWriteStatus"], Needed::Right(Right::BlobWrite)),
    ("build.bazel.remote.asset.v1.Fetch", &["FetchBlob", "FetchDirectory"], Needed::Right(Right::BlobWrite)),
    ("build.bazel.remote.asset.v1.Push", &["PushBlob", "PushDirectory"], Needed::Right(Right::CacheWrite)),
    (
        "build.bazel.remote.logstream.v1.LogStreamService",
        &["CreateLogStream"],
        Needed::Right(Right::BlobWrite),
    ),
    (
        "google.devtools.build.v1.PublishBuildEvent",
        &["PublishLifecycleEvent", "PublishBuildToolEventStream"],
        Needed::Right(Right::Execute),
    ),
];

/// What a method needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needed {
    /// Not even a known caller.
    Nothing,
    Known,
    Right(Right),
}

fn needed(path: &str) -> Option<Needed> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let found = METHODS.iter().find(|(name, methods, _)| *name == service && methods.contains(&method));
    found.map(|(_, _, needed)| *needed)
}

/// The answer to a refused call.
pub fn denied(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Missing | Refusal::Invalid { .. } => Status::unauthenticated(refusal.to_string()),
        Refusal::Denied(_) => Status::permission_denied(refusal.to_string()),
        Refusal::Limited(exceeded) => {
            reapi::status::retry(Code::ResourceExhausted, refusal.to_string(), exceeded.retry)
        }
    }
}

/// A gRPC service that only known callers with sufficient rights reach. It adds the [`Caller`] to the extensions of a call.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    callers: Callers,
}

impl<S> Guarded<S> {
    pub fn new(inner: S, callers: Callers) -> Self {
        Self { inner, callers }
    }
}

impl<S, B> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Default + http_body::Body + Send + Unpin + 'static,
{
    type Response = http::Response<Lapsing<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if !self.callers.have_rules() {
            let caller = if is_recorded(request.uri().path()) {
                Caller::anyone().calling(&place(&self.callers, &request))
            } else {
                Caller::anyone()
            };
            request.extensions_mut().insert(caller);
            let answer = self.inner.call(request);
            return async move { Ok(answer.await?.map(Lapsing::never)) }.boxed();
        }
        // The one that is ready handles this call.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let callers = self.callers.clone();
        async move {
            let path = request.uri().path().to_owned();
            let place = place(&callers, &request);
            match admit(&callers, &place, &mut request).await {
                Ok(None) => Ok(inner.call(request).await?.map(Lapsing::never)),
                Ok(Some(credentials)) => {
                    let is_allowed = move || is_allowed(callers.clone(), path.clone(), credentials.clone());
                    let request = slowed(request)
                        .map(|body| Body::new(LapsingRequest::while_allowed(body, is_allowed.clone())));
                    let answer = inner.call(request).await?;
                    Ok(answer.map(|body| Lapsing::while_allowed(body, is_allowed)))
                }
                Err(refusal) => {
                    place.refused(&refusal);
                    Ok(denied(&refusal).into_http())
                }
            }
        }
        .boxed()
    }
}

/// The request with a body that is read as fast as its caller may upload.
fn slowed(request: http::Request<Body>) -> http::Request<Body> {
    let caller = Caller::of(request.extensions());
    if caller.is_slowed() { request.map(|body| Body::new(caller.slowed(body))) } else { request }
}

/// The call of a request.
fn place(callers: &Callers, request: &http::Request<Body>) -> Arc<Place> {
    let address = request.extensions().get::<Arc<Usage>>().map(|usage| usage.client());
    callers.place(request.uri().path().to_owned(), None, address)
}

/// Whether what a method does is recorded also in a farm without access rules; to know the call costs something.
fn is_recorded(path: &str) -> bool {
    path == "/google.longrunning.Operations/CancelOperation"
}

/// Whether the caller with these credentials may still call a method.
async fn is_allowed(callers: Callers, path: String, credentials: Credentials) -> bool {
    let found = callers.identify(credentials.offered()).await;
    found.is_ok_and(|caller| check(&caller, needed(&path)).is_ok())
}

/// Finds the caller of a call, and checks its rights. Returns its credentials, unless the call needs none.
async fn admit(
    callers: &Callers,
    place: &Arc<Place>,
    request: &mut http::Request<Body>,
) -> Result<Option<Credentials>, Refusal> {
    let needed = needed(request.uri().path());
    if needed == Some(Needed::Nothing) {
        return Ok(None);
    }
    let usage = request.extensions().get::<Arc<Usage>>().cloned();
    let certificate = usage.as_ref().map_or(&[] as &[String], |usage| usage.certificate_names());
    let offered = offered(request.headers(), certificate);
    let caller = callers.admit(offered, place, usage.as_deref()).await?;
    check(&caller, needed)?;
    let credentials = offered.keep();
    request.extensions_mut().insert(caller);
    Ok(Some(credentials))
}

fn check(caller: &Caller, needed: Option<Needed>) -> Result<(), Refusal> {
    match needed {
        Some(Needed::Nothing | Needed::Known) => Ok(()),
        Some(Needed::Right(right)) => caller.check(Need::Right(right)),
        // Methods that the farm does not have are answered as such, to those who may do everything.
        None => caller.check(Need::InAll(Right::Operate)),
    }
}

/// The credentials of a request.
pub fn offered<'a>(headers: &'a http::HeaderMap, certificate: &'a [String]) -> Offered<'a> {
    let all = |name: http::HeaderName| headers.get_all(name);
    let (authorization, key) =
        (all(http::header::AUTHORIZATION), all(http::HeaderName::from_static(API_KEY)));
    Offered {
        authorization: authorization.iter().next().map(http::HeaderValue::as_bytes),
        api_key: key.iter().next().map(http::HeaderValue::as_bytes),
        is_repeated: authorization.iter().nth(1).is_some() || key.iter().nth(1).is_some(),
        session: None,
        certificate,
    }
}
