//! Calls that change something in the name of a person who signed in: they must come from a page of this server.
//!
//! The browser sends the session by itself, so a page of another site could make such calls, too. It cannot read the token that
//! forms of our pages contain.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderName, Method, StatusCode, header},
};
use callers::Caller;

use crate::{Failure, header_text};

/// The header with the token, for calls by a script.
const HEADER: HeaderName = HeaderName::from_static("x-forebay-form-token");
/// The field of a form with the token.
pub const FORM_TOKEN_FIELD: &str = "form_token";
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Maximum bytes of a form.
const FORM_BYTES_MAX: usize = 64 << 10;

/// Whether a method changes something.
pub(crate) fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Passes on a request that proves that it comes from a page which was made for the session of its caller.
pub(crate) async fn check(caller: &Caller, request: Request) -> Result<Request, Failure> {
    if !caller.is_in_session() || !changes(request.method()) {
        return Ok(request);
    }
    let headers = request.headers();
    // What these say is checked before: `guard`.
    if !headers.contains_key(FETCH_SITE) && !headers.contains_key(header::ORIGIN) {
        return Err(refused("a change with a session that does not say from which page it comes"));
    }
    let without = || refused("a change with a session, and without the token of a page that was made for it");
    if let Some(given) = header_text(headers, HEADER) {
        return if caller.has_form_token(given) { Ok(request) } else { Err(without()) };
    }
    let is_form = header_text(headers, header::CONTENT_TYPE)
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        return Err(without());
    }
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, FORM_BYTES_MAX).await.map_err(|_| {
        let why = format!("the form cannot be read, or has more than {FORM_BYTES_MAX} bytes");
        Failure::invalid(why).with_status(StatusCode::PAYLOAD_TOO_LARGE)
    })?;
    let mut fields = url::form_urlencoded::parse(&body);
    let given = fields.find(|(name, _)| name == FORM_TOKEN_FIELD).map(|(_, value)| value);
    if given.is_some_and(|given| caller.has_form_token(&given)) {
        return Ok(Request::from_parts(parts, Body::from(body)));
    }
    Err(without())
}

fn refused(why: &str) -> Failure {
    Failure::invalid(why).with_status(StatusCode::FORBIDDEN)
}
