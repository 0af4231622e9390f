//! The baseline of streams: a server of the same protocol that hashes its input and stores nothing.

use model::DigestFunction;
use reapi::bytestream::WriteResponse;
use remote::Remote;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Response, Status, Streaming, service::Routes};

use crate::error::BenchError;

/// Size in bytes of each piece that a baseline server sends.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Maximum size in bytes of a message that a baseline server accepts.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The server, which stops when dropped.
pub(crate) struct BareStream {
    url: String,
    task: tokio::task::JoinHandle<()>,
}

impl BareStream {
    /// Starts a server of `routes` on a free port.
    pub(crate) async fn start(routes: Routes) -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| BenchError::new("starting the baseline server", &error);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let url = format!("grpc://{}", listener.local_addr().map_err(failed)?);
        let server = cas_grpc::server().add_routes(routes);
        let task = tokio::spawn(async move {
            // If the server ends early, the requests of the benchmark fail.
            let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Ok(Self { url, task })
    }

    /// Opens a connection to the server.
    pub(crate) async fn remote(&self) -> Result<Remote, BenchError> {
        Ok(Remote::connect(&self.url, "", DigestFunction::Sha256).await?)
    }
}

impl Drop for BareStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The number of pieces of the blob called `name`, which ends with its size.
pub(crate) fn pieces_of(name: &str) -> usize {
    let size: usize = name.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(0);
    size / PIECE_BYTES
}

/// Answers `Write` after hashing the data of all `messages`.
pub(crate) async fn hash_all<M>(
    mut messages: Streaming<M>,
    data: fn(&M) -> &[u8],
) -> Result<Response<WriteResponse>, Status> {
    let mut hasher = DigestFunction::Sha256.hasher();
    while let Some(message) = messages.message().await? {
        hasher.update(data(&message));
    }
    let committed_size = i64::try_from(hasher.finish().size).unwrap_or(i64::MAX);
    Ok(Response::new(WriteResponse { committed_size }))
}
