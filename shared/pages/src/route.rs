//! How a page becomes a route.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension as FromExtensions, State},
    http::{HeaderMap, Method, Uri, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use callers::{Caller, Watching};
use http_api::{Failure, PathParameters, QueryParameters, RouteNeed, Routes, header_text};

use crate::{
    layout::ErrorPage,
    live,
    reader::Reader,
    site::{Asked, ME, MakeView, Scope, Site},
    view::View,
};

/// Adds pages to a router.
pub(crate) trait Pages {
    /// Adds the page at `path`, and its changes for those who ask for server-sent events.
    fn page<F, V>(self, path: &str, need: RouteNeed, make: F) -> Self
    where
        F: Fn(Site, Asked) -> V + Clone + Send + Sync + 'static,
        V: Future<Output = Result<View, Failure>> + Send + 'static;
}

impl Pages for Routes<Site> {
    fn page<F, V>(self, path: &str, need: RouteNeed, make: F) -> Self
    where
        F: Fn(Site, Asked) -> V + Clone + Send + Sync + 'static,
        V: Future<Output = Result<View, Failure>> + Send + 'static,
    {
        let make: MakeView = Arc::new(move |site, asked| Box::pin(make(site, asked)));
        let show = move |State(site): State<Site>,
                         names: PathParameters,
                         query: QueryParameters,
                         FromExtensions(caller): FromExtensions<Arc<Caller>>,
                         headers: HeaderMap,
                         uri: Uri| {
            let make = make.clone();
            async move {
                let reader = Reader::of(&caller, &site.callers);
                match site.seen_by(&caller) {
                    Ok(site) => answer(site, make, (names, query), (&headers, &uri), (&caller, reader)).await,
                    Err(failure) => ErrorPage::for_reader(failure, reader).into_response(),
                }
            }
        };
        self.route(Method::GET, path, need, get(show))
    }
}

async fn answer(
    site: Site,
    make: MakeView,
    (names, query): (PathParameters, QueryParameters),
    (headers, uri): (&HeaderMap, &Uri),
    (caller, reader): (&Caller, Reader),
) -> Response {
    let wants_changes = header_text(headers, header::ACCEPT).is_some_and(|kinds| kinds == EVENTS);
    let asked = Asked {
        names: Arc::new(names),
        query: Arc::new(query.without_empty()),
        origin: site.api.origin.of(headers),
        me: me(headers),
        scope: if wants_changes { Scope::Live } else { Scope::Page },
        rights: caller.rights.clone(),
    };
    if wants_changes {
        // Pages of different readers differ by their name, and by what they may see.
        let rights = &asked.rights;
        let name = format!("{uri} {rights:?} {}", asked.me.as_deref().unwrap_or_default());
        let watching = match caller.watch() {
            Ok(watching) => watching,
            Err(refusal) => return ErrorPage::for_reader(refusal, reader).into_response(),
        };
        return match live::changes(site, name, make, asked).await {
            Ok(changes) => changes.map(|body| Body::new(Watching::during(watching, body))),
            Err(failure) => ErrorPage::for_reader(failure, reader).into_response(),
        };
    }
    match make(site, asked).await {
        Ok(view) => view.page(&reader).into_response(),
        Err(failure) => ErrorPage::for_reader(failure, reader).into_response(),
    }
}

const EVENTS: &str = "text/event-stream";
/// The reader's name in the cookie.
fn me(headers: &HeaderMap) -> Option<String> {
    let cookies = header_text(headers, header::COOKIE)?;
    let value = cookies.split(';').find_map(|pair| pair.trim().strip_prefix(ME)?.strip_prefix('='))?;
    let pair = format!("={value}");
    let (_, name) = url::form_urlencoded::parse(pair.as_bytes()).next()?;
    (!name.is_empty()).then(|| name.into_owned())
}
