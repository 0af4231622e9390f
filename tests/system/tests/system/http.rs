//! The tests' own HTTP client.

/// A client; the TLS it needs to be made with is not used.
pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}
