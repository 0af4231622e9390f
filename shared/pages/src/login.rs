//! The page for signing in, the way to a provider of `OpenID` Connect and back, and signing out.

use std::sync::Arc;

use axum::{
    extract::{Extension as FromExtensions, Form, State as FromState},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
};
use callers::{ATTEMPT_LIFETIME, Answer, Caller, Place, SignIn, SignInError, SignedIn};
use http_api::{Cookie, Failure, PathParameters, QueryParameters};
use maud::{Markup, html};
use model::{AuditKind, ErrorCode};
use serde::Deserialize;
use telemetry::escaped;

use crate::{
    layout::{ErrorPage, page as whole, url_part},
    site::Site,
};

const KEY: &str = "an API key";

/// How people sign in here; a page that says so where they cannot.
fn sign_in(site: &Site) -> Result<SignIn, ErrorPage> {
    let missing = || {
        ErrorPage::from(Failure::missing(
            "this farm has no sign-in: docs/gateway-access.md says how it gets one",
        ))
    };
    SignIn::of(&site.callers).ok_or_else(missing)
}

/// Handles `GET /login`: offers the ways to sign in.
pub(crate) async fn page(
    FromState(site): FromState<Site>,
    query: QueryParameters,
) -> Result<Response, ErrorPage> {
    let wanted = query.last("to").unwrap_or_else(|| "/".into());
    Ok(whole("Sign in", &offer(&sign_in(&site)?, &wanted, None), false).into_response())
}

fn offer(sign_in: &SignIn, wanted: &str, fault: Option<&str>) -> Markup {
    html! {
        h1 { "Sign in" }
        @if let Some(fault) = fault { div.alert role="alert" { p { (escaped(fault)) } } }
        @for (name, title) in sign_in.providers() {
            p { a.button href={ "/login/" (name) "?to=" (url_part(wanted)) } { "Sign in with " (title) } }
        }
        h2 { "With an API key" }
        form.filter method="post" action="/login" {
            input type="hidden" name="to" value=(wanted);
            label { "API key " input type="password" name="key" required maxlength="200" autocomplete="current-password"; }
            button { "Sign in" }
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct WithKey {
    key: String,
    #[serde(default)]
    to: String,
}

/// Handles `POST /login`: signs in with an API key.
pub(crate) async fn with_key(
    FromState(site): FromState<Site>,
    FromExtensions(place): FromExtensions<Arc<Place>>,
    Form(WithKey { key, to }): Form<WithKey>,
) -> Result<Response, ErrorPage> {
    let sign_in = sign_in(&site)?;
    match sign_in.with_key(&key, &to) {
        Ok(signed_in) => Ok(start_session(&site, &place, signed_in, KEY)),
        Err(error) => {
            place.refused(&error.refusal());
            let content = offer(&sign_in, &to, Some(&error.to_string()));
            Ok((StatusCode::UNAUTHORIZED, whole("Sign in", &content, false)).into_response())
        }
    }
}

/// Handles `GET /login/{issuer}`: sends a person to a provider.
pub(crate) async fn begin(
    FromState(site): FromState<Site>,
    FromExtensions(place): FromExtensions<Arc<Place>>,
    names: PathParameters,
    query: QueryParameters,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let (sign_in, issuer) = (sign_in(&site)?, names.text("issuer"));
    let back = redirect_uri(&site, issuer, &headers)?;
    let wanted = query.last("to").unwrap_or_default();
    match sign_in.begin(issuer, &back, &wanted).await {
        Ok(begun) => {
            let kept = site.api.origin.set(Cookie::Attempt, &begun.attempt, ATTEMPT_LIFETIME);
            Ok(with_cookies(Redirect::to(&begun.url).into_response(), [kept]))
        }
        Err(error) => Ok(refused(&place, &error)),
    }
}

/// Handles `GET /login/{issuer}/callback`: a person comes back from a provider.
pub(crate) async fn finish(
    FromState(site): FromState<Site>,
    FromExtensions(place): FromExtensions<Arc<Place>>,
    names: PathParameters,
    query: QueryParameters,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let (sign_in, issuer) = (sign_in(&site)?, names.text("issuer"));
    let back = redirect_uri(&site, issuer, &headers)?;
    let [state, code, error, description, from] =
        ["state", "code", "error", "error_description", "iss"].map(|name| query.last(name));
    let answer = Answer {
        state: state.as_deref().unwrap_or_default(),
        code: code.as_deref(),
        error: error.as_deref(),
        error_description: description.as_deref(),
        issuer: from.as_deref(),
    };
    let attempt = site.api.origin.read(Cookie::Attempt, &headers);
    match sign_in.finish(issuer, &back, attempt, &answer).await {
        Ok(signed_in) => Ok(start_session(&site, &place, signed_in, issuer)),
        // An address with another state may come from another site: the attempt of this browser goes on.
        Err(error @ SignInError::Foreign { .. }) => Ok(refused(&place, &error)),
        Err(error) => Ok(with_cookies(refused(&place, &error), [site.api.origin.clear(Cookie::Attempt)])),
    }
}

/// Handles `POST /logout`: takes the session from the browser.
pub(crate) async fn sign_out(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Response {
    if caller.is_in_session() {
        caller.did(AuditKind::Logout, caller.shown_name(), None);
    }
    with_cookies(Redirect::to("/login").into_response(), [site.api.origin.clear(Cookie::Session)])
}

/// Where a provider sends people back to. It knows this address, and refuses others.
fn redirect_uri(site: &Site, issuer: &str, headers: &HeaderMap) -> Result<String, ErrorPage> {
    let origin = site.api.origin.of(headers);
    let origin = origin.ok_or_else(|| ErrorPage::from(Failure::invalid("the request has no header host")))?;
    Ok(format!("{origin}/login/{}/callback", url_part(issuer)))
}

/// Gives a person the session, and the page that it wanted.
fn start_session(site: &Site, place: &Arc<Place>, signed_in: SignedIn, with: &str) -> Response {
    let SignedIn { session, lifetime, caller, wanted } = signed_in;
    caller.calling(place).did(AuditKind::Login, with, None);
    let origin = &site.api.origin;
    let cookies = [origin.set(Cookie::Session, &session, lifetime), origin.clear(Cookie::Attempt)];
    with_cookies(Redirect::to(&wanted).into_response(), cookies)
}

fn with_cookies<const N: usize>(mut response: Response, cookies: [Option<HeaderValue>; N]) -> Response {
    for cookie in cookies.into_iter().flatten() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// The page that says why a person could not sign in.
fn refused(place: &Place, error: &SignInError) -> Response {
    place.refused(&error.refusal());
    let code = match error {
        SignInError::Unknown => ErrorCode::NotFound,
        SignInError::Foreign { .. } => ErrorCode::InvalidRequest,
        SignInError::Unreachable { .. } => ErrorCode::Unavailable,
        SignInError::Key { .. } => ErrorCode::Unauthenticated,
        SignInError::Refused { .. }
        | SignInError::Untrusted { .. }
        | SignInError::NoRule { .. }
        | SignInError::TooLong => ErrorCode::PermissionDenied,
    };
    let (status, why) = Failure::new(code, error.to_string()).parts();
    let content = html! {
        h1 { "Not signed in" }
        p { (escaped(&why)) }
        p { a href="/login" { "Sign in" } }
    };
    (status, whole("Not signed in", &content, false)).into_response()
}
