//! How browsers reach this server, and the cookies that they keep for it.

use axum::http::{HeaderMap, HeaderValue, header};
use model::PublicUrl;
use std::time::Duration;

/// Maximum bytes of the header with cookies that is read.
const COOKIES_MAX: usize = 16 << 10;

/// How browsers reach this server.
#[derive(Debug, Clone)]
pub struct WebOrigin {
    public: Option<PublicUrl>,
    is_tls: bool,
}

/// A cookie of this server that only it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cookie {
    /// The sealed session of a person.
    Session,
    /// A sealed attempt to sign in.
    Attempt,
}

impl WebOrigin {
    /// A server with or without TLS, which browsers reach at an address of its own or by that of a proxy.
    pub fn new(public: Option<PublicUrl>, is_tls: bool) -> Self {
        Self { public, is_tls }
    }

    /// The address by which browsers reach it, if the settings name it.
    pub(crate) fn public(&self) -> Option<&PublicUrl> {
        self.public.as_ref()
    }

    /// Whether this server itself has TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The address by which a browser reaches it that sent these headers: `https://HOST:PORT`.
    pub fn of(&self, headers: &HeaderMap) -> Option<String> {
        if let Some(public) = &self.public {
            return Some(public.to_string());
        }
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = headers.get(header::HOST)?.to_str().ok()?;
        Some(format!("{scheme}://{host}"))
    }

    /// The header that gives a browser a cookie for this time.
    pub fn set(&self, cookie: Cookie, value: &str, lifetime: Duration) -> Option<HeaderValue> {
        let secure = if self.is_https() { "; Secure" } else { "" };
        let (name, seconds) = (self.name(cookie), lifetime.as_secs());
        // Lax, not Strict: people come back from their provider, and by links from elsewhere.
        HeaderValue::try_from(format!(
            "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        ))
        .ok()
    }

    /// The header that takes a cookie from a browser.
    pub fn clear(&self, cookie: Cookie) -> Option<HeaderValue> {
        self.set(cookie, "", Duration::ZERO)
    }

    /// The value of a cookie in a request.
    pub fn read<'a>(&self, cookie: Cookie, headers: &'a HeaderMap) -> Option<&'a str> {
        let name = self.name(cookie);
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        lines.filter(|line| line.len() <= COOKIES_MAX).find_map(|line| {
            let value = line.split(';').find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))?;
            (!value.is_empty()).then_some(value)
        })
    }

    fn is_https(&self) -> bool {
        self.public.as_ref().map_or(self.is_tls, PublicUrl::is_https)
    }

    /// With TLS, a name that browsers accept only from this server itself, and not for a domain above it.
    fn name(&self, cookie: Cookie) -> &'static str {
        match (cookie, self.is_https()) {
            (Cookie::Session, true) => "__Host-forebay_session",
            (Cookie::Session, false) => "forebay_session",
            (Cookie::Attempt, true) => "__Host-forebay_sign_in",
            (Cookie::Attempt, false) => "forebay_sign_in",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_cookie_is_only_for_this_server() {
        let plain = WebOrigin::new(None, false);
        let set = plain.set(Cookie::Session, "abc", Duration::from_secs(60)).unwrap();
        assert_eq!(set, "forebay_session=abc; Path=/; Max-Age=60; HttpOnly; SameSite=Lax");
        let https = "https://farm.example.com".parse().unwrap();
        for origin in [WebOrigin::new(None, true), WebOrigin::new(Some(https), false)] {
            let set = origin.set(Cookie::Session, "abc", Duration::from_secs(60)).unwrap();
            assert_eq!(set, "__Host-forebay_session=abc; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure");
            // One that another server of the domain could have set.
            let weak = headers(&[(header::COOKIE, "forebay_session=evil; a=b")]);
            assert_eq!(origin.read(Cookie::Session, &weak), None);
            let own = headers(&[(header::COOKIE, "a=b; __Host-forebay_session=abc")]);
            assert_eq!(origin.read(Cookie::Session, &own), Some("abc"));
        }
        assert!(plain.set(Cookie::Session, "a\nb", Duration::ZERO).is_none());
    }

    #[test]
    fn the_address_is_that_of_the_proxy() {
        let asked = headers(&[(header::HOST, "10.0.0.1:8080")]);
        assert_eq!(WebOrigin::new(None, false).of(&asked).unwrap(), "http://10.0.0.1:8080");
        let public = WebOrigin::new(Some("https://farm.example.com".parse().unwrap()), false);
        assert_eq!(public.of(&asked).unwrap(), "https://farm.example.com");
    }
}
