//! The credentials with which this process calls gateways, and the authorities whose certificates it accepts.

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use disk::Changing;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Certificate, ClientTlsConfig, Identity},
};

use crate::RemoteError;

/// Files of a process that calls gateways, all in PEM but the token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// An API key or token.
    pub token: Option<PathBuf>,
    /// Authorities of the certificates of gateways; none: those of the machine.
    pub authorities: Option<PathBuf>,
    /// Certificate of this process and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The credentials belong to the process: every connection that it opens to a gateway has them.
static LOGIN: RwLock<Known> =
    RwLock::new(Known { login: Login { token: None, authorities: None, certificate: None }, token: None });

#[derive(Debug, Clone)]
struct Known {
    login: Login,
    token: Option<Arc<TokenFile>>,
}

/// Sets the credentials of this process. Connections that exist do not change.
pub fn log_in(login: Login) {
    let token = login.token.clone().map(|path| Arc::new(TokenFile::new(path)));
    // The value is replaced as a whole: a panic of another thread leaves it usable.
    *LOGIN.write().unwrap_or_else(PoisonError::into_inner) = Known { login, token };
}

fn known() -> Known {
    LOGIN.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// TLS of a connection to a gateway.
pub(crate) fn tls() -> Result<ClientTlsConfig, RemoteError> {
    let login = known().login;
    let config = ClientTlsConfig::new();
    let config = match &login.authorities {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    let Some((certificate, key)) = &login.certificate else {
        return Ok(config);
    };
    Ok(config.identity(Identity::from_pem(read(certificate)?, read(key)?)))
}

fn read(path: &Path) -> Result<Vec<u8>, RemoteError> {
    std::fs::read(path).map_err(|source| RemoteError::File { path: path.display().to_string(), source })
}

/// Adds the token of this process to calls, and the zone or group that they are for.
#[derive(Debug, Clone)]
pub struct Credentials {
    token: Option<Arc<TokenFile>>,
    acts_for: Option<(&'static str, MetadataValue<Ascii>)>,
}

impl Credentials {
    pub(crate) fn of_process() -> Self {
        Self { token: known().token, acts_for: None }
    }

    /// With this header on each call. The characters of names of zones and groups are those of a header.
    pub(crate) fn acting_for(self, header: &'static str, name: &str) -> Self {
        Self { acts_for: name.parse().ok().map(|name| (header, name)), ..self }
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some((header, name)) = &self.acts_for {
            request.metadata_mut().insert(*header, name.clone());
        }
        if let Some(file) = &self.token {
            let header = file.header().map_err(|error| {
                // Without the path: the answer to a job may quote this.
                Status::unauthenticated(format!("cannot read the token of this process: {error}"))
            })?;
            request.metadata_mut().insert("authorization", header);
        }
        Ok(request)
    }
}

/// A file with a token, which is read again when it changes.
struct TokenFile {
    path: PathBuf,
    /// The header with the token, or why there is none.
    header: Changing<Result<MetadataValue<Ascii>, String>>,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFile").field(&self.path).finish()
    }
}

impl TokenFile {
    fn new(path: PathBuf) -> Self {
        let Ok(header) = Changing::new(vec![path.clone()], || Ok::<_, Infallible>(read_token(&path)));
        Self { path, header }
    }

    fn header(&self) -> Result<MetadataValue<Ascii>, String> {
        self.header.current(|_| Some(read_token(&self.path)))
    }
}

fn read_token(path: &Path) -> Result<MetadataValue<Ascii>, String> {
    let token = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let header = format!("Bearer {}", token.trim());
    let mut header: MetadataValue<Ascii> =
        header.parse().map_err(|_| "it is not one line of text".to_owned())?;
    // Not shown in logs.
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let file = TokenFile::new(path.clone());
        assert!(file.header().is_err());
        for (content, wanted) in [("one\n", "Bearer one"), ("other", "Bearer other")] {
            std::fs::write(&path, content).unwrap();
            file.header.look_now();
            assert_eq!(file.header().unwrap().to_str().unwrap(), wanted);
        }
        assert!(!format!("{file:?}").contains("other"));
    }
}
