//! Pages for browsers, which are served with the HTTP API. They are whole without a script: nothing of a build, of its
//! output or of its names is more than text in them.
//!
//! A page is a function that makes a [`View`] of what the client of the farm reads; the same function makes the changes
//! that a live page receives ([`live`]).

mod action;
mod ansi;
mod assets;
mod audit;
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
mod login;
mod patience;
mod quota;
mod reader;
mod route;
mod simulate_page;
mod site;
mod test_grid;
mod text_file;
mod timeline;
mod view;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use callers::Callers;
use http_api::{Api, Failure, PersonPages, RouteNeed, Routes};
use policy::access::Right;
use settings::PageSettings;

use layout::ErrorPage;
use reader::Reader;
use route::Pages as _;
use site::Site;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// One script and one style of this server, no frame, and nothing from elsewhere.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

const READ: RouteNeed = RouteNeed::PageInGroup(Right::Read);
const BLOBS: RouteNeed = RouteNeed::Right(Right::CacheRead);
const FARM: RouteNeed = RouteNeed::Farm;
/// What concerns all groups.
const OPERATE: RouteNeed = RouteNeed::InAll(Right::Operate);

/// The routes of the pages.
pub fn routes(api: &Api, settings: &PageSettings, callers: &Callers) -> Routes<Api> {
    let site = Site::new(api, settings, callers);
    Routes::default()
        .route(Method::GET, "/", RouteNeed::Known, get(list::first))
        .page("/builds", READ, list::view)
        .page("/mine", READ, list::mine)
        .route(Method::POST, "/mine", RouteNeed::Known, post(list::remember))
        .page("/builds/{group}/{id}", READ, build::view)
        .route(Method::GET, "/builds/{group}/{id}/lines", READ, get(console::lines))
        .route(Method::GET, "/builds/{group}/{id}/file/{*path}", READ, get(build::file))
        .route(Method::POST, "/builds/{group}/{id}/cancel", RouteNeed::Known, post(build::cancel))
        .route(Method::POST, "/builds/{group}/{id}/resubmit", READ, post(build::resubmit))
        .route(Method::GET, "/blobs/{*digest}", BLOBS, get(blob::show))
        .route(Method::GET, "/blob-download/{*digest}", BLOBS, get(blob::download))
        .page("/actions/{*digest}", BLOBS, action::view)
        .route(Method::GET, "/action-script/{*digest}", BLOBS, get(action::script))
        .route(Method::GET, "/action-inputs/{*digest}", BLOBS, get(action::inputs))
        .route(Method::POST, "/action-again/{*digest}", RouteNeed::Right(Right::Execute), post(action::again))
        .page("/compare", RouteNeed::OfBuilds(Right::Read), compare::builds)
        .page("/compare-actions", BLOBS, compare::actions)
        .page("/tests", READ, test_grid::view)
        .page("/calls/{group}/{id}", READ, build::call)
        .page("/farm", FARM, farm::view)
        .route(
            Method::POST,
            "/farm/approve/{version}/{*name}",
            RouteNeed::Right(Right::Operate),
            post(environments::approve_one),
        )
        .route(Method::POST, "/farm/{id}/drain", OPERATE, post(farm::drain_one))
        .route(Method::POST, "/farm/{id}/resume", OPERATE, post(farm::resume_one))
        .page("/quota", FARM, quota::view)
        .route(Method::POST, "/quota", RouteNeed::Right(Right::Operate), post(quota::change))
        .page("/audit", OPERATE, audit::view)
        .page("/simulate", FARM, simulate_page::view)
        .page("/help", RouteNeed::Known, help::view)
        .route(Method::GET, "/login", RouteNeed::Nothing, get(login::page))
        .route(Method::POST, "/login", RouteNeed::Nothing, post(login::with_key))
        .route(Method::GET, "/login/{issuer}", RouteNeed::Nothing, get(login::begin))
        .route(Method::GET, "/login/{issuer}/callback", RouteNeed::Nothing, get(login::finish))
        .route(Method::POST, "/logout", RouteNeed::Known, post(login::sign_out))
        .merge(assets::routes())
        .map(|router| router.layer(middleware::from_fn(protect)).with_state(site))
        .with_pages(PersonPages {
            refusal: |failure, caller, callers| {
                let reader = caller.map_or_else(Reader::default, |caller| Reader::of(caller, callers));
                restricted(ErrorPage::for_reader(failure, reader).into_response())
            },
            choice: |groups, caller, callers| {
                restricted(list::choice_of_group(groups, &Reader::of(caller, callers)).into_response())
            },
        })
}

/// Refuses a form that does not say where it comes from, and says what the browser may do with a page. The HTTP API refuses
/// what says that it comes from another site.
async fn protect(request: Request, next: Next) -> Response {
    let says_origin = [FETCH_SITE, header::ORIGIN].iter().any(|name| request.headers().contains_key(name));
    if request.method() == Method::POST && !says_origin {
        let why = "this request does not say where it comes from; use the page of the build";
        return Failure::invalid(why).with_status(StatusCode::FORBIDDEN).into_response();
    }
    restricted(next.run(request).await)
}

/// The same page with what the browser may do with it.
fn restricted(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
