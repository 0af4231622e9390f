//! Refuses what a browser sends for a page of another site.
//!
//! Without access rules there is no login, and with them a browser sends what its user entered with every request: what it may do
//! here, any page that its user opens could otherwise do in its name.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::Request,
    http::{HeaderName, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use callers::Callers;
use listener::Usage;
use model::{PublicUrl, is_loopback_host};

use crate::{Failure, form_token::changes, header_text, origin::WebOrigin};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names by which this server is reached.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    bound: SocketAddr,
    public: Option<PublicUrl>,
    machine: Option<String>,
    /// Whether callers prove who they are, or the certificate of this server proves its name.
    is_proved: bool,
}

impl Names {
    pub(crate) fn new(bound: SocketAddr, origin: &WebOrigin, has_rules: bool) -> Self {
        Self {
            bound,
            public: origin.public().cloned(),
            machine: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
            is_proved: has_rules || origin.is_tls(),
        }
    }

    /// Whether a request with this Host header is for this server. A name that another site chose could lead here, too, and its
    /// pages could then read what is here: the browser takes both for the same site.
    fn include(&self, host: &str) -> bool {
        let name = without_port(host);
        let public = self.public.as_ref().map(|public| without_port(public.authority()));
        let is_own =
            [public, self.machine.as_deref()].iter().flatten().any(|own| own.eq_ignore_ascii_case(name));
        if name.is_empty() || is_own || is_loopback_host(name) {
            return true;
        }
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        // Names without a dot are those of the own network: no other site has one.
        let is_near = is_address || !name.contains('.');
        !self.bound.ip().is_loopback() && (self.is_proved || is_near)
    }
}

/// A host without the port that may follow it.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

/// Passes on a request unless it comes from another site, or names a server that this one is not.
pub(crate) async fn check(names: &Names, callers: &Callers, request: Request, next: Next) -> Response {
    let Some(fault) = find_fault(names, &request) else { return next.run(request).await };
    let address = request.extensions().get::<Arc<Usage>>().map(|usage| usage.client());
    let (method, path) = (request.method(), request.uri().path());
    callers.place(method.to_string(), Some(path.to_owned()), address).refused_because(fault.message());
    fault.into_response()
}

fn find_fault(names: &Names, request: &Request) -> Option<Failure> {
    let host = header_text(request.headers(), header::HOST).unwrap_or_default();
    if !names.include(host) {
        let why = format!(
            "this server is reached at {}, not as {host:?}: another site can make a name lead here. The setting public_url \
             names it otherwise",
            names.bound
        );
        return Some(Failure::invalid(why).with_status(StatusCode::MISDIRECTED_REQUEST));
    }
    if changes(request.method()) && !is_from_here(names, request, host) {
        let why = "this request comes from a page of another site";
        return Some(Failure::invalid(why).with_status(StatusCode::FORBIDDEN));
    }
    None
}

/// Whether a request comes from a page of this server, or from no browser: browsers say it in one of two headers.
fn is_from_here(names: &Names, request: &Request, host: &str) -> bool {
    let headers = request.headers();
    let is_same_site =
        header_text(headers, FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    // A proxy may replace the name that the browser sent.
    let is_public = |origin: &str| names.public.as_ref().is_some_and(|public| public.to_string() == origin);
    let is_same_origin = header_text(headers, header::ORIGIN).is_none_or(|origin| {
        is_public(origin) || origin.split_once("://").is_some_and(|(_, authority)| authority == host)
    });
    is_same_site && is_same_origin
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn names(bound: &str) -> Names {
        let machine = Some("build-1.example.com".to_owned());
        Names { bound: bound.parse().unwrap(), public: None, machine, is_proved: false }
    }

    fn is_refused(names: &Names, method: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        find_fault(names, &request.body(Body::empty()).unwrap()).is_some()
    }

    #[test]
    fn only_pages_of_this_server_change_anything() {
        let (here, host) = (names("127.0.0.1:80"), ("host", "127.0.0.1:80"));
        assert!(!is_refused(&here, "POST", &[host]));
        assert!(!is_refused(&here, "POST", &[host, ("origin", "http://127.0.0.1:80")]));
        assert!(!is_refused(&here, "GET", &[host, ("sec-fetch-site", "cross-site")]));
        for origin in ["http://evil.com", "null", "http://127.0.0.1:81", "http://127.0.0.2:80"] {
            assert!(is_refused(&here, "POST", &[host, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(is_refused(&here, "POST", &[host, ("sec-fetch-site", site)]), "{site}");
        }
        let behind = Names { public: Some("https://farm.example.com".parse().unwrap()), ..here };
        assert!(!is_refused(&behind, "POST", &[host, ("origin", "https://farm.example.com")]));
        assert!(is_refused(&behind, "POST", &[host, ("origin", "http://farm.example.com")]));
    }

    #[test]
    fn h4_a_name_that_another_site_chose_does_not_lead_here() {
        let loopback = names("127.0.0.1:80");
        for name in
            ["127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.2", "", "build-1.example.com"]
        {
            assert!(loopback.include(name), "{name}");
        }
        let foreign = ["evil.com", "127.0.0.1.evil.com:80", "localhost.evil.com", "build-1.evil.com"];
        for name in foreign.into_iter().chain(["10.0.0.1", "gateway"]) {
            assert!(!loopback.include(name), "{name}");
        }
        let open = names("10.0.0.1:80");
        for name in ["10.0.0.1", "[fd00::1]:80", "build-1.example.com:80", "gateway:8080", "localhost"] {
            assert!(open.include(name), "{name}");
        }
        for name in foreign {
            assert!(!open.include(name), "{name}");
            assert!(Names { is_proved: true, ..open.clone() }.include(name), "{name}");
            for names in [&open, &loopback] {
                let public = Some(format!("http://{name}").parse().unwrap());
                assert!(Names { public, ..names.clone() }.include(name), "{name}");
            }
        }
    }
}
