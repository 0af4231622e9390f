//! TLS of clients: authorities of servers, and certificates that are read again when their files change.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::Changing;
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme,
    client::ResolvesClientCert,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

/// Files of a client with TLS, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PemFiles {
    /// Authorities of the certificates of servers. None: those of the machine.
    pub authorities: Option<PathBuf>,
    /// The certificate of the client, with those that lead to its authority, and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    #[error("cannot use {}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("cannot use the authorities of this machine: {reason}")]
    Machine { reason: String },
    #[error("TLS cannot be set up")]
    Config(#[from] rustls::Error),
}

impl TlsFault {
    fn file(path: &Path, reason: impl fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// The content of [`PemFiles`]: of the authorities, and of the certificate and its key.
pub type PemTexts = (Option<Vec<u8>>, Option<(Vec<u8>, Vec<u8>)>);

impl PemFiles {
    /// TLS with these files; none if no file is named, which leaves the choice to the library.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used.
    pub fn client_config(&self) -> Result<Option<ClientConfig>, TlsFault> {
        if *self == Self::default() {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        Ok(Some(match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = Certificate::read(certificate, key, provider)?;
                builder.with_client_cert_resolver(Arc::new(certificate))
            }
        }))
    }

    /// The files as they are now, for libraries that parse them.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read.
    pub fn texts(&self) -> Result<PemTexts, TlsFault> {
        let read = |path: &PathBuf| fs::read(path).map_err(|error| TlsFault::file(path, error));
        let authorities = self.authorities.as_ref().map(read).transpose()?;
        let certificate =
            self.certificate.as_ref().map(|(one, key)| Ok::<_, TlsFault>((read(one)?, read(key)?)));
        Ok((authorities, certificate.transpose()?))
    }

    fn roots(&self) -> Result<RootCertStore, TlsFault> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.authorities {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| TlsFault::file(path, error))?;
            }
            return Ok(roots);
        }
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let reason = found.errors.first().map_or("there are none".to_owned(), ToString::to_string);
            return Err(TlsFault::Machine { reason });
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| TlsFault::file(path, error))?;
    if certificates.is_empty() {
        Err(TlsFault::file(path, "it has no certificate"))
    } else {
        Ok(certificates)
    }
}

/// The certificate of a client.
struct Certificate {
    path: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Changing<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Certificate {
    fn read(certificate: &Path, key: &Path, provider: Arc<CryptoProvider>) -> Result<Self, TlsFault> {
        let paths = vec![certificate.to_owned(), key.to_owned()];
        let current = Changing::new(paths, || certified(certificate, key, &provider))?;
        Ok(Self { path: certificate.to_owned(), key: key.to_owned(), provider, current })
    }
}

fn certified(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, TlsFault> {
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsFault::file(key, error))?;
    let certified = CertifiedKey::from_der(chain, private, provider);
    certified.map(Arc::new).map_err(|error| TlsFault::file(certificate, error))
}

impl ResolvesClientCert for Certificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.current(|_| match certified(&self.path, &self.key, &self.provider) {
            Ok(renewed) => Some(renewed),
            Err(error) => {
                tracing::error!(%error, "cannot use the changed certificate: the earlier one stays in use");
                None
            }
        }))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> PemFiles {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.join("one.pem"), folder.join("one.key"));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        PemFiles { authorities: Some(certificate.clone()), certificate: Some((certificate, key)) }
    }

    #[test]
    fn without_files_the_library_chooses() {
        assert!(PemFiles::default().client_config().unwrap().is_none());
    }

    #[test]
    fn a_renewed_certificate_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        assert!(files.client_config().unwrap().unwrap().client_auth_cert_resolver.has_certs());
        let (certificate, key) = files.certificate.unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let resolver = Certificate::read(&certificate, &key, provider).unwrap();
        let before = resolver.resolve(&[], &[]).unwrap();
        self::files(folder.path());
        resolver.current.look_now();
        let after = resolver.resolve(&[], &[]).unwrap();
        assert_ne!(before.cert, after.cert);
        fs::write(&certificate, "no certificate").unwrap();
        resolver.current.look_now();
        assert_eq!(resolver.resolve(&[], &[]).unwrap().cert, after.cert);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path());
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        files.authorities = Some(empty);
        let error = files.client_config().unwrap_err().to_string();
        assert!(error.contains("empty.pem") && error.contains("no certificate"), "{error}");
        files.authorities = Some(folder.path().join("missing.pem"));
        assert!(files.client_config().unwrap_err().to_string().contains("missing.pem"));
    }
}
