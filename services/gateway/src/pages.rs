//! Pages for people, on the port of the HTTP API. They are whole without a script: nothing of a build, of its output or
//! of its names is more than text in them.

mod ansi;
mod build;
mod console;
mod farm;
mod layout;
mod list;

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Redirect, Response},
    routing::{get, post},
};

use crate::{failure::Failure, gateway::Gateway, input::header_text};

const STYLE: &str = include_str!("pages/style.css");
/// Changes with every version of the program; the style is kept for an hour only.
const STYLE_PATH: &str = "/pages/style.css";
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// No script, no frame, and nothing from elsewhere.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'",
);

/// The routes of the pages.
pub(crate) fn routes() -> Router<Gateway> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/builds") }))
        .route("/builds", get(list::show))
        .route("/builds/{group}/{id}", get(build::show))
        .route("/builds/{group}/{id}/cancel", post(build::cancel))
        .route("/farm", get(farm::show))
        .route(STYLE_PATH, get(style))
        .layer(middleware::from_fn(protect))
}

async fn style() -> Response {
    let kept = HeaderValue::from_static("max-age=3600");
    let kind = HeaderValue::from_static("text/css; charset=utf-8");
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, kept)], STYLE).into_response()
}

/// Refuses what a page of another site sends, and says what the browser may do with a page.
async fn protect(request: Request, next: Next) -> Response {
    if request.method() == Method::POST && !is_from_here(&request) {
        let why = "this request comes from another site; use the page of the build";
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

/// Whether a browser sends this for one of these pages. Browsers say where a request comes from, in one of two headers.
fn is_from_here(request: &Request) -> bool {
    let headers = request.headers();
    let host = header_text(headers, header::HOST);
    match (header_text(headers, FETCH_SITE), header_text(headers, header::ORIGIN)) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin.split_once("://").map(|(_, authority)| authority) == host,
        (None, None) => false,
    }
}
