//! TLS of listening sockets: certificates that are read again when their files change, and the names in
//! the certificates of clients.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use disk::{Changing, regular_bytes};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};
use webpki::EndEntityCert;

use crate::{limiter::Usage, protocol::Protocol};

/// The files of a server with TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, in PEM.
    pub key: PathBuf,
    /// Authorities of client certificates, in PEM; none: clients need no certificate.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients without a certificate are refused.
    pub is_client_required: bool,
}

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}: {reason}")]
    Read { path: String, reason: String },
    #[error("{path} contains no certificate")]
    Empty { path: String },
    #[error("cannot use the certificate {path} with its key")]
    Unusable {
        path: String,
        #[source]
        source: rustls::Error,
    },
    #[error("cannot use the authorities {path}: {reason}")]
    Authorities { path: String, reason: String },
}

/// TLS for the sockets of a process. Cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    acceptors: Changing<Acceptors>,
}

/// The same certificate for clients of both protocols.
#[derive(Clone)]
struct Acceptors {
    http1: TlsAcceptor,
    http2: TlsAcceptor,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Reads the files of a server.
    ///
    /// # Errors
    ///
    /// Fails if they cannot be used.
    pub fn of_files(files: TlsFiles) -> Result<Self, TlsError> {
        let acceptors = Changing::new(files.paths(), || files.read())?;
        Ok(Self(Arc::new(Inner { files, acceptors })))
    }

    /// Begins TLS on a connection. The handshake proceeds when the connection is read or written.
    pub(crate) fn begin(&self, stream: TcpStream, protocol: Protocol) -> Transport {
        let acceptors = self.current();
        let acceptor = match protocol {
            Protocol::Http1 => acceptors.http1,
            Protocol::Http2 => acceptors.http2,
        };
        Transport::Handshake(Box::new(acceptor.accept(stream)))
    }

    /// The certificate now. Files that cannot be used change nothing, and are reported once.
    fn current(&self) -> Acceptors {
        let files = &self.0.files;
        self.0.acceptors.current(|_| match files.read() {
            Ok(acceptors) => {
                tracing::info!(certificate = %files.certificate.display(), "the certificate was renewed");
                Some(acceptors)
            }
            Err(error) => {
                let error = telemetry::error_chain(&error);
                tracing::error!(error, "cannot use the changed certificate: the earlier one stays in use");
                None
            }
        })
    }
}

impl TlsFiles {
    fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.certificate), Some(&self.key), self.client_authorities.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    fn read(&self) -> Result<Acceptors, TlsError> {
        for path in self.paths() {
            let failed = |error: io::Error| TlsError::Read {
                path: path.display().to_string(),
                reason: error.to_string(),
            };
            regular_bytes(&path).map_err(failed)?;
        }
        let certificates = read_certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unreadable(&self.key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |source| TlsError::Unusable { path: self.certificate.display().to_string(), source };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(self.verifier(path, provider)?),
        };
        let config = builder.with_single_cert(certificates, key).map_err(unusable)?;
        let with = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsAcceptor::from(Arc::new(config))
        };
        Ok(Acceptors { http1: with(b"http/1.1"), http2: with(b"h2") })
    }

    fn verifier(
        &self,
        path: &Path,
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
        let unusable = |reason: String| TlsError::Authorities { path: path.display().to_string(), reason };
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(path)? {
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = if self.is_client_required { builder } else { builder.allow_unauthenticated() };
        builder.build().map(|verifier| verifier as _).map_err(|error| unusable(error.to_string()))
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unreadable(path, &error))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.display().to_string() });
    }
    Ok(certificates)
}

fn unreadable(path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Read { path: path.display().to_string(), reason: error.to_string() }
}

/// The bytes of a connection, with or without TLS.
pub enum Transport {
    Plain(TcpStream),
    /// Boxed, as the larger two are only in use with TLS.
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Handshake(_) => "Handshake",
            Self::Tls(_) => "Tls",
        })
    }
}

impl Transport {
    /// Completes the handshake if there is one, and records the names of the client in `usage`.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>, usage: &Usage) -> Poll<io::Result<()>> {
        if let Self::Handshake(accepting) = self {
            let stream = ready!(Pin::new(accepting.as_mut()).poll(cx))?;
            usage.set_certificate_names(names(&stream));
            *self = Self::Tls(Box::new(stream));
        }
        Poll::Ready(Ok(()))
    }
}

/// The DNS names and URIs of the verified certificate of a client; none without one.
fn names(stream: &TlsStream<TcpStream>) -> Vec<String> {
    let (_, connection) = stream.get_ref();
    let Some(certificate) = connection.peer_certificates().and_then(<[_]>::first) else { return Vec::new() };
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(ToOwned::to_owned).collect()
}

fn unfinished() -> io::Error {
    io::Error::other("the connection is used before its handshake")
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Self::Handshake(_) => Poll::Ready(Err(unfinished())),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Self::Handshake(_) => Poll::Ready(Err(unfinished())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
            Self::Handshake(_) => Poll::Ready(Err(unfinished())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            // Asked before the handshake, for the time after it.
            Self::Handshake(_) => true,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Self::Handshake(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Self::Handshake(_) => Poll::Ready(Ok(())),
        }
    }
}
