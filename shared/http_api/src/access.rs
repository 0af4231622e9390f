//! Which right each route needs, and the check of every request.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts as _, MatchedPath, Query, RawPathParams, Request},
    http::{HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse as _, Redirect, Response},
    routing::MethodRouter,
};
use callers::{
    Caller, Callers, Credentials, Lapsing, LapsingRequest, Offered, Place, Refusal, SignIn, offered,
};
use listener::Usage;
use model::{ErrorCode, Group};
use percent_encoding::percent_decode_str;
use policy::access::{Need, Reach, Right, Rights};

use crate::{
    Failure, form_token, header_text,
    origin::{Cookie, WebOrigin},
};

/// Whether a query has an API key, in any notation.
fn has_key(query: &str) -> bool {
    percent_decode_str(query).collect::<Vec<u8>>().windows(4).any(|part| part == b"fbk_")
}

/// What a route needs of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteNeed {
    /// Not even credentials: it shows nothing of the farm.
    Nothing,
    /// Credentials that are accepted.
    Known,
    /// A right in the group that the path or the parameter `group` names; in all groups if the request names none.
    InGroup(Right),
    /// A right in all groups.
    InAll(Right),
    /// A right, whatever the group.
    Right(Right),
    /// The same, and a person who names no group is led to the page of theirs.
    PageInGroup(Right),
    /// A right in the groups of the builds that the parameters `a` and `b` name, as GROUP/ID.
    OfBuilds(Right),
    /// The same as [`Need::Farm`].
    Farm,
}

impl RouteNeed {
    /// Whether these rights suffice for a request that names a group of the caller where it can name one.
    pub fn is_met_by(self, rights: &Rights) -> bool {
        let need = match self {
            Self::Nothing | Self::Known => Need::Known,
            Self::InGroup(right) | Self::PageInGroup(right) | Self::OfBuilds(right) | Self::Right(right) => {
                Need::Right(right)
            }
            Self::InAll(right) => Need::InAll(right),
            Self::Farm => Need::Farm,
        };
        rights.check(need).is_ok()
    }

    /// The groups that a request names, of those in which it needs a right; empty if one of them is invalid.
    async fn groups(self, request: &mut Request) -> Vec<Group> {
        match self {
            Self::InGroup(_) | Self::PageInGroup(_) => groups(request).await,
            Self::OfBuilds(_) => groups_of_builds(request.uri()),
            Self::Nothing | Self::Known | Self::InAll(_) | Self::Right(_) | Self::Farm => Vec::new(),
        }
    }
}

/// Pages for people in place of the answers of the API.
#[derive(Debug, Clone, Copy)]
pub struct PersonPages {
    /// Says why a request is refused. Without a caller, the farm does not know who asks.
    pub refusal: fn(Failure, Option<&Caller>, &Callers) -> Response,
    /// Asks which group a person wants to see: the path of the page for each of theirs.
    pub choice: fn(&[(Group, String)], &Caller, &Callers) -> Response,
}

/// Routes with what each needs: one without a need cannot be added.
#[derive(Debug)]
pub struct Routes<S> {
    router: Router<S>,
    needs: HashMap<(Method, String), RouteNeed>,
    /// Without these, people get the answers of the API.
    pages: Option<PersonPages>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self { router: Router::new(), needs: HashMap::new(), pages: None }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Adds a method of a path.
    #[must_use]
    pub fn route(mut self, method: Method, path: &str, need: RouteNeed, handler: MethodRouter<S>) -> Self {
        self.needs.insert((method, path.to_owned()), need);
        Self { router: self.router.route(path, handler), ..self }
    }

    /// Adds all routes of another.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.needs.extend(other.needs);
        let pages = self.pages.or(other.pages);
        Self { router: self.router.merge(other.router), needs: self.needs, pages }
    }

    /// Changes the router without adding routes, for example by a layer or its state.
    #[must_use]
    pub fn map<T>(self, change: impl FnOnce(Router<S>) -> Router<T>) -> Routes<T> {
        Routes { router: change(self.router), needs: self.needs, pages: self.pages }
    }

    /// Answers people by these pages.
    #[must_use]
    pub fn with_pages(self, pages: PersonPages) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// The router, and the check of requests to its routes.
    pub(crate) fn guarded(self, callers: Callers, origin: WebOrigin) -> (Router<S>, Guard) {
        (self.router, Guard { callers, origin, needs: Arc::new(self.needs), pages: self.pages })
    }
}

/// Checks requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    callers: Callers,
    origin: WebOrigin,
    needs: Arc<HashMap<(Method, String), RouteNeed>>,
    pages: Option<PersonPages>,
}

impl Guard {
    /// Passes on a request of a caller who may make it, with the [`Caller`] in its extensions.
    pub(crate) async fn check(self, request: Request, next: Next) -> Response {
        match self.admit(request).await {
            Ok((request, None)) => next.run(request).await,
            Ok((request, Some(held))) => {
                let is_allowed = move || held.clone().allows();
                let request = request.map(|body| {
                    if http_body::Body::is_end_stream(&body) {
                        return body;
                    }
                    Body::new(LapsingRequest::while_allowed(body, is_allowed.clone()))
                });
                let answer = next.run(request).await;
                answer.map(|body| Body::new(Lapsing::while_allowed(body, is_allowed)))
            }
            Err(refused) => refused,
        }
    }

    /// The request with its caller, and what its answer depends on while it is sent.
    async fn admit(&self, mut request: Request) -> Result<(Request, Option<Held>), Response> {
        let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            return Err(Failure::invalid("the request has more than one header Host").into_response());
        }
        // At other paths there is nothing to protect.
        let Some(path) = path else { return Ok((request, None)) };
        let method = if *request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
        let call = format!("{method} {path}");
        let path_names_group = path.contains("{group}");
        let need = self.needs.get(&(method, path)).copied();
        let usage = request.extensions().get::<Arc<Usage>>().cloned();
        let address = usage.as_ref().map(|usage| usage.client());
        let place = self.callers.place(call, Some(request.uri().path().to_owned()), address);
        if need == Some(RouteNeed::Nothing) {
            request.extensions_mut().insert(place);
            return Ok((request, None));
        }
        if self.callers.have_rules() && request.uri().query().is_some_and(has_key) {
            place.refused_because("an API key in its URL");
            let why =
                "an API key in a URL ends in logs and histories: revoke this one, and send keys in a header";
            return Err(Failure::invalid(why).into_response());
        }
        let certificate = usage.as_ref().map_or(&[] as &[String], |usage| usage.certificate_names());
        let session = self.origin.read(Cookie::Session, request.headers());
        let offered = Offered { session, ..offered(request.headers(), certificate) };
        let credentials = self.callers.have_rules().then(|| offered.keep());
        let found = self.callers.admit(offered, &place, usage.as_deref()).await;
        let caller = found.map_err(|refusal| self.refused(&refusal, None, &request, &place))?;
        let wants_page = wants_page(&request);
        request = form_token::check(&caller, request).await.map_err(|failure| {
            caller.refused_because(failure.message());
            self.answer(failure, Some(&caller), wants_page)
        })?;
        // A method that a path does not have is answered as such.
        if let Some(need) = need
            && self.callers.have_rules()
        {
            let groups = need.groups(&mut request).await;
            if !path_names_group && let Some(choice) = self.by_group(&caller, need, &request) {
                return Err(choice);
            }
            allow(&caller, need, &groups)
                .map_err(|refusal| self.refused(&refusal, Some(&caller), &request, &place))?;
            if caller.is_slowed() {
                request = request.map(|body| Body::new(caller.slowed(body)));
            }
            request.extensions_mut().insert(caller);
            let callers = self.callers.clone();
            let held = credentials.map(|credentials| Held { callers, credentials, need, groups });
            return Ok((request, held));
        }
        request.extensions_mut().insert(caller);
        Ok((request, None))
    }

    /// The answer to a refused request. A person is led to the page for signing in; where there is none, the browser asks for any
    /// name, and an API key as the password.
    fn refused(
        &self,
        refusal: &Refusal,
        caller: Option<&Caller>,
        request: &Request,
        place: &Place,
    ) -> Response {
        place.refused(refusal);
        let headers = request.headers();
        let failure = Failure::from(refusal.clone());
        let wants_page = wants_page(request);
        let signs_in = self.pages.is_some() && SignIn::of(&self.callers).is_some();
        if signs_in && wants_page && failure.status() == StatusCode::UNAUTHORIZED {
            return self.to_sign_in(request);
        }
        let mut response = self.answer(failure, caller, wants_page);
        if response.status() == StatusCode::UNAUTHORIZED && !headers.contains_key("x-requested-with") {
            // A browser would ask beside the page for signing in. Container engines need the question.
            if !signs_in || request.uri().path().starts_with("/v2") {
                let challenge = HeaderValue::from_static("Basic realm=\"forebay\", charset=\"UTF-8\"");
                response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
            }
            response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn answer(&self, failure: Failure, caller: Option<&Caller>, wants_page: bool) -> Response {
        match self.pages {
            Some(pages) if wants_page => (pages.refusal)(failure, caller, &self.callers),
            Some(_) | None => failure.into_response(),
        }
    }

    /// A person with some groups asks for a page without saying for which group: leads to that of their group, or to a choice.
    fn by_group(&self, caller: &Caller, need: RouteNeed, request: &Request) -> Option<Response> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let pages = self.pages.filter(|_| wants_page(request) && is_read)?;
        match pages_by_group(&caller.rights, need, request.uri()).as_slice() {
            [] => None,
            [(_, only)] => Some(Redirect::to(only).into_response()),
            several => Some((pages.choice)(several, caller, &self.callers)),
        }
    }

    /// Leads to the page for signing in, which leads back. A session that has ended is removed from the browser.
    fn to_sign_in(&self, request: &Request) -> Response {
        let is_page = request.method() == Method::GET;
        let wanted = request.uri().path_and_query().filter(|_| is_page).map_or("/", |path| path.as_str());
        let wanted = url::form_urlencoded::byte_serialize(wanted.as_bytes()).collect::<String>();
        let mut response = Redirect::to(&format!("/login?to={wanted}")).into_response();
        if self.origin.read(Cookie::Session, request.headers()).is_some()
            && let Some(cleared) = self.origin.clear(Cookie::Session)
        {
            response.headers_mut().insert(header::SET_COOKIE, cleared);
        }
        response
    }
}

fn wants_page(request: &Request) -> bool {
    header_text(request.headers(), header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html"))
}

/// What the answer to a request depends on while it is sent.
#[derive(Clone)]
struct Held {
    callers: Callers,
    credentials: Credentials,
    need: RouteNeed,
    groups: Vec<Group>,
}

impl Held {
    /// Whether the caller may still have the answer.
    async fn allows(self) -> bool {
        let found = self.callers.identify(self.credentials.offered()).await;
        found.is_ok_and(|caller| allow(&caller, self.need, &self.groups).is_ok())
    }
}

fn allow(caller: &Caller, need: RouteNeed, groups: &[Group]) -> Result<(), Refusal> {
    match need {
        RouteNeed::Nothing | RouteNeed::Known => Ok(()),
        RouteNeed::Right(right) => caller.check(Need::Right(right)),
        RouteNeed::Farm => caller.check(Need::Farm),
        RouteNeed::InAll(right) => caller.check(Need::InAll(right)),
        RouteNeed::InGroup(right) | RouteNeed::PageInGroup(right) | RouteNeed::OfBuilds(right)
            if groups.is_empty() =>
        {
            caller.check(Need::InAll(right))
        }
        RouteNeed::InGroup(right) | RouteNeed::PageInGroup(right) | RouteNeed::OfBuilds(right) => {
            groups.iter().try_for_each(|group| caller.check(Need::In(right, group)))
        }
    }
}

/// The parameters of a query.
fn parameters(uri: &Uri) -> Vec<(String, String)> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
    query.map(|Query(pairs)| pairs).unwrap_or_default()
}

/// Paths and queries of the page of each group, if the caller reaches only some groups, and the request names none.
fn pages_by_group(rights: &Rights, need: RouteNeed, uri: &Uri) -> Vec<(Group, String)> {
    let (RouteNeed::PageInGroup(_), Reach::Listed(groups)) = (need, &rights.groups) else {
        return Vec::new();
    };
    let mut parameters = parameters(uri);
    // A form sends its field also if it is empty.
    parameters.retain(|(name, value)| name != "group" || !value.is_empty());
    if !need.is_met_by(rights) || parameters.iter().any(|(name, _)| name == "group") {
        return Vec::new();
    }
    let path_for = |group: &Group| {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let query = query.extend_pairs(&parameters).append_pair("group", group.as_str()).finish();
        format!("{}?{query}", uri.path())
    };
    groups.iter().map(|group| (group.clone(), path_for(group))).collect()
}

/// The groups of the builds that the parameters `a` and `b` name: a build without a group is in that of the other.
/// Empty if one of them is invalid.
fn groups_of_builds(uri: &Uri) -> Vec<Group> {
    let builds = parameters(uri).into_iter().filter(|(name, _)| name == "a" || name == "b");
    let named = builds.filter_map(|(_, build)| build.trim().split_once('/').map(|(group, _)| group.parse()));
    named.collect::<Result<_, _>>().unwrap_or_default()
}

/// The groups that the path or the parameter `group` names; empty if one of them is invalid.
async fn groups(request: &mut Request) -> Vec<Group> {
    let (mut parts, body) = std::mem::take(request).into_parts();
    let in_path = RawPathParams::from_request_parts(&mut parts, &()).await.ok();
    let in_path =
        in_path.iter().flatten().filter(|(name, _)| *name == "group").map(|(_, value)| value.to_owned());
    let mut named: Vec<String> = in_path.collect();
    if named.is_empty() {
        let of_query = parameters(&parts.uri).into_iter().filter(|(name, _)| name == "group");
        named = of_query.map(|(_, value)| value).collect();
    }
    *request = Request::from_parts(parts, body);
    named.iter().map(|name| name.parse()).collect::<Result<_, _>>().unwrap_or_default()
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Missing | Refusal::Invalid { .. } => ErrorCode::Unauthenticated,
            Refusal::Denied(_) => ErrorCode::PermissionDenied,
            Refusal::Limited(exceeded) => {
                return Self::limit_reached(refusal.to_string(), exceeded.seconds());
            }
        };
        Self::new(code, refusal.to_string())
    }
}
