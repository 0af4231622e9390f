//! Pages for browsers, which are served with the HTTP API. They are whole without a script: nothing of a build, of its
//! output or of its names is more than text in them.
//!
//! A page is a function that makes a [`View`] of what the client of the farm reads; the same function makes the changes
//! that a live page receives ([`live`]).

mod action;
mod ansi;
mod assets;
mod blob;
mod build;
mod chart;
mod compare;
mod console;
mod environments;
mod farm;
mod graph;
mod help;
mod hub;
mod layout;
mod list;
mod live;
mod patience;
mod quota;
mod route;
mod simulate_page;
mod site;
mod test_grid;
mod text_file;
mod timeline;
mod view;

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Redirect, Response},
    routing::{get, post},
};
use http_api::{Api, Failure};
use settings::PageSettings;

use route::Pages as _;
use site::Site;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// One script and one style of this server, no frame, and nothing from elsewhere.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// The routes of the pages.
pub fn routes(api: &Api, settings: &PageSettings) -> Router<Api> {
    let site = Site::new(api, settings);
    Router::new()
        .route("/", get(|| async { Redirect::to("/builds") }))
        .page("/builds", list::view)
        .page("/mine", list::mine)
        .route("/mine", post(list::remember))
        .page("/builds/{group}/{id}", build::view)
        .route("/builds/{group}/{id}/lines", get(console::lines))
        .route("/builds/{group}/{id}/file/{*path}", get(build::file))
        .route("/builds/{group}/{id}/cancel", post(build::cancel))
        .route("/builds/{group}/{id}/resubmit", post(build::resubmit))
        .route("/blobs/{*digest}", get(blob::show))
        .route("/blob-download/{*digest}", get(blob::download))
        .page("/actions/{*digest}", action::view)
        .route("/action-script/{*digest}", get(action::script))
        .route("/action-inputs/{*digest}", get(action::inputs))
        .route("/action-again/{*digest}", post(action::again))
        .page("/compare", compare::builds)
        .page("/compare-actions", compare::actions)
        .page("/tests", test_grid::view)
        .page("/calls/{group}/{id}", build::call)
        .page("/farm", farm::view)
        .route("/farm/approve/{version}/{*name}", post(environments::approve_one))
        .route("/farm/{id}/drain", post(farm::drain_one))
        .route("/farm/{id}/resume", post(farm::resume_one))
        .page("/quota", quota::view)
        .route("/quota", post(quota::change))
        .page("/simulate", simulate_page::view)
        .page("/help", help::view)
        .merge(assets::routes())
        .layer(middleware::from_fn(protect))
        .with_state(site)
}

/// Refuses a form that does not say where it comes from, and says what the browser may do with a page. The HTTP API refuses
/// what says that it comes from another site.
async fn protect(request: Request, next: Next) -> Response {
    let says_origin = [FETCH_SITE, header::ORIGIN].iter().any(|name| request.headers().contains_key(name));
    if request.method() == Method::POST && !says_origin {
        let why = "this request does not say where it comes from; use the page of the build";
        return Failure::invalid(why).with_status(StatusCode::FORBIDDEN).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
