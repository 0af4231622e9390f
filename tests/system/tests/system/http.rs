//! The tests' own HTTP client.

/// Creates a client; it requires a TLS configuration, which is not used.
pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}
