//! Which right each route needs, and the check of every request.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    extract::{FromRequestParts as _, MatchedPath, Query, RawPathParams, Request},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
    routing::MethodRouter,
};
use callers::{Caller, Callers, Refusal, offered};
use listener::Usage;
use model::{ErrorCode, Group};
use policy::access::{Need, Right};

use crate::Failure;

/// What a route needs of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteNeed {
    /// Not even credentials: it shows nothing of the farm.
    Nothing,
    /// Credentials.
    Known,
    /// A right in the group that the path or the parameter `group` names; in all groups if the request names none.
    InGroup(Right),
    /// A right in all groups.
    InAll(Right),
    /// A right, whatever the group.
    Right(Right),
    /// As [`Need::Farm`].
    Farm,
}

/// Routes with what each needs: one without a need cannot be added.
#[derive(Debug)]
pub struct Routes<S> {
    router: Router<S>,
    needs: HashMap<(Method, String), RouteNeed>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self { router: Router::new(), needs: HashMap::new() }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Adds a method of a path.
    #[must_use]
    pub fn route(mut self, method: Method, path: &str, need: RouteNeed, handler: MethodRouter<S>) -> Self {
        self.needs.insert((method, path.to_owned()), need);
        Self { router: self.router.route(path, handler), needs: self.needs }
    }

    /// Adds all routes of another.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.needs.extend(other.needs);
        Self { router: self.router.merge(other.router), needs: self.needs }
    }

    /// Changes the router without adding routes, for example by a layer or its state.
    #[must_use]
    pub fn map<T>(self, change: impl FnOnce(Router<S>) -> Router<T>) -> Routes<T> {
        Routes { router: change(self.router), needs: self.needs }
    }

    /// The router, and the check of requests to its routes.
    pub(crate) fn guarded(self, callers: Callers) -> (Router<S>, Guard) {
        (self.router, Guard { callers, needs: Arc::new(self.needs) })
    }
}

/// Checks requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    callers: Callers,
    needs: Arc<HashMap<(Method, String), RouteNeed>>,
}

impl Guard {
    /// Passes on a request of a caller who may make it, with the [`Caller`] in its extensions.
    pub(crate) async fn check(self, request: Request, next: Next) -> Response {
        match self.admit(request).await {
            Ok(request) => next.run(request).await,
            Err(refused) => refused,
        }
    }

    async fn admit(&self, mut request: Request) -> Result<Request, Response> {
        let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
        // At other paths there is nothing to protect.
        let Some(path) = path else { return Ok(request) };
        let method = if *request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
        let need = self.needs.get(&(method, path)).copied();
        if need == Some(RouteNeed::Nothing) {
            return Ok(request);
        }
        if self.callers.have_rules() && request.uri().query().is_some_and(|query| query.contains("fbk_")) {
            let why =
                "an API key in a URL ends in logs and histories: revoke this one, and send keys in a header";
            return Err(Failure::invalid(why).into_response());
        }
        let usage = request.extensions().get::<Arc<Usage>>().cloned();
        let certificate = usage.as_ref().map_or(&[] as &[String], |usage| usage.certificate_names());
        let found = self.callers.identify(offered(request.headers(), certificate)).await;
        let caller = found.map_err(|refusal| refused(refusal, request.headers()))?;
        // A method that a path does not have is answered as such.
        if let Some(need) = need
            && self.callers.have_rules()
        {
            let groups =
                if let RouteNeed::InGroup(_) = need { groups(&mut request).await } else { Vec::new() };
            allow(&caller, need, &groups).map_err(|refusal| refused(refusal, request.headers()))?;
        }
        request.extensions_mut().insert(caller);
        Ok(request)
    }
}

fn allow(caller: &Caller, need: RouteNeed, groups: &[Group]) -> Result<(), Refusal> {
    match need {
        RouteNeed::Nothing | RouteNeed::Known => Ok(()),
        RouteNeed::Right(right) => caller.check(Need::Right(right)),
        RouteNeed::Farm => caller.check(Need::Farm),
        RouteNeed::InAll(right) => caller.check(Need::InAll(right)),
        RouteNeed::InGroup(right) if groups.is_empty() => caller.check(Need::InAll(right)),
        RouteNeed::InGroup(right) => groups.iter().try_for_each(|group| caller.check(Need::In(right, group))),
    }
}

/// The groups that the path or the parameter `group` names; empty if one of them is invalid.
async fn groups(request: &mut Request) -> Vec<Group> {
    let (mut parts, body) = std::mem::take(request).into_parts();
    let in_path = RawPathParams::from_request_parts(&mut parts, &()).await.ok();
    let in_path =
        in_path.iter().flatten().filter(|(name, _)| *name == "group").map(|(_, value)| value.to_owned());
    let mut named: Vec<String> = in_path.collect();
    if named.is_empty() {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let pairs = query.map(|Query(pairs)| pairs).unwrap_or_default();
        named = pairs.into_iter().filter(|(name, _)| name == "group").map(|(_, value)| value).collect();
    }
    *request = Request::from_parts(parts, body);
    named.iter().map(|name| name.parse()).collect::<Result<_, _>>().unwrap_or_default()
}

/// The caller of a request, as the check of its route found it.
pub fn caller(extensions: &axum::http::Extensions) -> Arc<Caller> {
    Caller::of(extensions)
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Missing | Refusal::Invalid { .. } => ErrorCode::Unauthenticated,
            Refusal::Denied(_) => ErrorCode::PermissionDenied,
        };
        Self::new(code, refusal.to_string())
    }
}

/// The answer to a refused request. A browser then asks its user: for any name, and an API key as the password.
fn refused(refusal: Refusal, headers: &HeaderMap) -> Response {
    let mut response = Failure::from(refusal).into_response();
    if response.status() == StatusCode::UNAUTHORIZED && !headers.contains_key("x-requested-with") {
        let challenge = HeaderValue::from_static("Basic realm=\"forebay\", charset=\"UTF-8\"");
        response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
        response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
