//! How the index proves who it is to Redis.

use std::pin::Pin;

use credentials::{Credentials, PemTexts, Server, TlsFault};
use futures::{Stream, StreamExt as _, stream};
use redis::{
    Client, ClientTlsConfig, ErrorKind, RedisError, RedisResult, TlsCertificates,
    auth::{BasicAuth, StreamingCredentialsProvider},
};

use crate::IndexError;

/// Whether connections to the server have TLS.
pub(crate) fn uses_tls(server: &Server) -> bool {
    server.url.starts_with("rediss:")
}

/// A client for the server, and the files of TLS that it has read.
pub(crate) fn client(server: &Server) -> Result<(Client, PemTexts), IndexError> {
    let invalid = |source| IndexError::Url { url: server.shown(), source };
    if !uses_tls(server) {
        let client = Client::open(server.url.as_str()).map_err(invalid)?;
        return Ok((client, PemTexts::default()));
    }
    // The library takes the provider of the process; another part of it may have set it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let texts = server.credentials.tls.texts().map_err(unusable)?;
    let (root_cert, certificate) = texts.clone();
    let client_tls = certificate.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let client = Client::build_with_tls(server.url.as_str(), TlsCertificates { client_tls, root_cert });
    Ok((client.map_err(invalid)?, texts))
}

pub(crate) fn unusable(fault: TlsFault) -> IndexError {
    IndexError::Credentials(Box::new(fault))
}

/// Gives a connection the password that follows from the seed, as the file has it then.
pub(crate) struct Login {
    credentials: Credentials,
    user: String,
}

impl Login {
    /// The login of these credentials, if they have a seed.
    pub(crate) fn new(credentials: &Credentials) -> Result<Option<Self>, IndexError> {
        let user = credentials.user().map_err(|fault| IndexError::Credentials(Box::new(fault)))?;
        // A file that cannot be used is reported now, and not at each attempt to connect.
        credentials.key().map_err(|fault| IndexError::Credentials(Box::new(fault)))?;
        Ok(user.map(|user| Self { credentials: credentials.clone(), user: user.to_string() }))
    }

    fn password(&self) -> RedisResult<BasicAuth> {
        let failed =
            |reason: String| RedisError::from((ErrorKind::AuthenticationFailed, "no password", reason));
        match self.credentials.key() {
            Ok(Some(key)) => Ok(BasicAuth::new(self.user.clone(), key.seed.redis_password())),
            Ok(None) => Err(failed("there is no seed".to_owned())),
            Err(fault) => Err(failed(telemetry::error_chain(&fault))),
        }
    }
}

impl StreamingCredentialsProvider for Login {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        // Redis keeps a connection whose password was replaced: the next one needs the new password.
        Box::pin(stream::iter([self.password()]).chain(stream::pending()))
    }
}
