//! Refuses what a browser sends for a page of another site.
//!
//! Without access rules there is no login, and with them a browser sends what its user entered with every request: what it may do
//! here, any page that its user opens could otherwise do in its name.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderName, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use callers::Callers;
use listener::Usage;
use model::is_loopback_host;

use crate::{Failure, header_text};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Passes on a request unless it comes from another site, or names a server that this one is not.
pub(crate) async fn check(bound: SocketAddr, callers: &Callers, request: Request, next: Next) -> Response {
    let Some(fault) = find_fault(bound, &request) else { return next.run(request).await };
    let address = request.extensions().get::<Arc<Usage>>().map(|usage| usage.client());
    let (method, path) = (request.method(), request.uri().path());
    callers.place(method.to_string(), Some(path.to_owned()), address).refused_because(fault.message());
    fault.into_response()
}

fn find_fault(bound: SocketAddr, request: &Request) -> Option<Failure> {
    let host = header_text(request.headers(), header::HOST).unwrap_or_default();
    if bound.ip().is_loopback() && !is_local(host) {
        let why = format!(
            "this server is reached at {bound} only, not as {host:?}; a name can be made to lead here by another site"
        );
        return Some(Failure::invalid(why).with_status(StatusCode::MISDIRECTED_REQUEST));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && !is_from_here(request, host) {
        let why = "this request comes from a page of another site";
        return Some(Failure::invalid(why).with_status(StatusCode::FORBIDDEN));
    }
    None
}

/// Whether a Host header names this machine by its loopback interface, or not at all.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    name.is_empty() || is_loopback_host(name)
}

/// Whether a request comes from a page of this server, or from no browser: browsers say it in one of two headers.
fn is_from_here(request: &Request, host: &str) -> bool {
    let headers = request.headers();
    let is_same_site =
        header_text(headers, FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    let origin = header_text(headers, header::ORIGIN);
    let is_same_origin =
        origin.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| authority == host));
    is_same_site && is_same_origin
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::{Request, find_fault, is_local};

    fn is_refused(bound: &str, method: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        find_fault(bound.parse().unwrap(), &request.body(Body::empty()).unwrap()).is_some()
    }

    #[test]
    fn only_pages_of_this_server_change_anything() {
        let (bound, host) = ("127.0.0.1:80", ("host", "127.0.0.1:80"));
        assert!(!is_refused(bound, "POST", &[host]));
        assert!(!is_refused(bound, "POST", &[host, ("origin", "http://127.0.0.1:80")]));
        assert!(!is_refused(bound, "GET", &[host, ("sec-fetch-site", "cross-site")]));
        for origin in ["http://evil.com", "null", "http://127.0.0.1:81", "http://127.0.0.2:80"] {
            assert!(is_refused(bound, "POST", &[host, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(is_refused(bound, "POST", &[host, ("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn a_server_on_loopback_has_no_other_name() {
        assert!(is_refused("127.0.0.1:80", "GET", &[("host", "evil.com")]));
        assert!(!is_refused("10.0.0.1:80", "GET", &[("host", "farm.example.com")]));
        for name in ["127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.2", ""] {
            assert!(is_local(name), "{name}");
        }
        for name in ["evil.com", "127.0.0.1.evil.com:80", "10.0.0.1", "localhost.evil.com"] {
            assert!(!is_local(name), "{name}");
        }
    }
}
