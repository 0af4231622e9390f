//! What the handlers of pages work with, and how a page becomes a route.

use std::{pin::Pin, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, Uri, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use client::Client;
use http_api::{Api, Failure, PathParameters, QueryParameters, header_text};
use model::Millis;
use settings::PageSettings;

use crate::{
    layout::ErrorPage,
    live::{self, Hub},
    view::View,
};

/// State shared by all pages. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) api: Api,
    pub(crate) settings: Arc<PageSettings>,
    pub(crate) hub: Arc<Hub>,
}

impl Site {
    pub(crate) fn new(api: &Api, settings: &PageSettings) -> Self {
        Self { api: api.clone(), settings: Arc::new(settings.clone()), hub: Arc::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.api.client
    }

    /// The time by the farm's clock.
    pub(crate) fn now(&self) -> Millis {
        self.api.client.bus().now()
    }
}

/// What a page was asked for. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) names: Arc<PathParameters>,
    /// Without the parameters that have no value: forms send all fields.
    pub(crate) query: Arc<QueryParameters>,
    /// Address of this server, as the browser knows it: `http://HOST:PORT`.
    pub(crate) origin: Option<String>,
    /// Name that the reader gave as the submitter of their builds.
    pub(crate) me: Option<String>,
    /// Whether only the parts that change are needed.
    pub(crate) is_live: bool,
}

pub(crate) type Viewing = Pin<Box<dyn Future<Output = Result<View, Failure>> + Send>>;
/// Makes the view of a page.
pub(crate) type MakeView = Arc<dyn Fn(Site, Asked) -> Viewing + Send + Sync>;

/// Adds pages to a router.
pub(crate) trait Pages {
    /// Adds the page at `path`, and its changes for those who ask for server-sent events.
    fn page<F, V>(self, path: &str, make: F) -> Self
    where
        F: Fn(Site, Asked) -> V + Clone + Send + Sync + 'static,
        V: Future<Output = Result<View, Failure>> + Send + 'static;
}

impl Pages for Router<Site> {
    fn page<F, V>(self, path: &str, make: F) -> Self
    where
        F: Fn(Site, Asked) -> V + Clone + Send + Sync + 'static,
        V: Future<Output = Result<View, Failure>> + Send + 'static,
    {
        let make: MakeView = Arc::new(move |site, asked| Box::pin(make(site, asked)));
        let show = move |State(site): State<Site>,
                         names: PathParameters,
                         query: QueryParameters,
                         headers: HeaderMap,
                         uri: Uri| {
            let make = make.clone();
            async move { answer(site, make, (names, query), &headers, &uri).await }
        };
        self.route(path, get(show))
    }
}

async fn answer(
    site: Site,
    make: MakeView,
    (names, query): (PathParameters, QueryParameters),
    headers: &HeaderMap,
    uri: &Uri,
) -> Response {
    let wants_changes = header_text(headers, header::ACCEPT).is_some_and(|kinds| kinds == EVENTS);
    let asked = Asked {
        names: Arc::new(names),
        query: Arc::new(query.without_empty()),
        origin: header_text(headers, header::HOST).map(|host| format!("http://{host}")),
        me: me(headers),
        is_live: wants_changes,
    };
    if wants_changes {
        // Pages of different readers differ by their name.
        let name = format!("{uri} {}", asked.me.as_deref().unwrap_or_default());
        return live::changes(site, name, make, asked);
    }
    match make(site, asked).await {
        Ok(view) => view.page().into_response(),
        Err(failure) => ErrorPage::from(failure).into_response(),
    }
}

const EVENTS: &str = "text/event-stream";
/// Name of the cookie with the reader's name.
pub(crate) const ME: &str = "forebay_submitter";

/// The reader's name in the cookie.
fn me(headers: &HeaderMap) -> Option<String> {
    let cookies = header_text(headers, header::COOKIE)?;
    let value = cookies.split(';').find_map(|pair| pair.trim().strip_prefix(ME)?.strip_prefix('='))?;
    let pair = format!("={value}");
    let (_, name) = url::form_urlencoded::parse(pair.as_bytes()).next()?;
    (!name.is_empty()).then(|| name.into_owned())
}
