//! A server in this process, with clients.

use std::sync::Arc;

use bytes::Bytes;
use cas::{Cas, CasConfig};
use cas_grpc::{BlobApi, Limits, LiveRead, LogWrite};
use futures::{StreamExt as _, stream};
use listener::{ClientListener, Limiter, Patience, Protocol};
use model::{BlobDigest, DigestFunction};
use policy::connections::ConnectionLimits;
use reapi::{
    bytestream::{QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, WriteResponse},
    digest,
    execution::{
        self, action_cache_client::ActionCacheClient, capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
    },
    stream::{ByteStreamClient, WriteRequest},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot};
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};

pub(crate) use DigestFunction::{Blake3, Sha256};

/// The served instances: the empty name, `main`, `a/b/c`, and [`READ_ONLY`].
const INSTANCES: &str = "=default main=default a/b/c=default read-only=default;readonly";
/// The instance whose clients may not write the action cache.
pub(crate) const READ_ONLY: &str = "read-only";

pub(crate) struct Server {
    pub(crate) cas: Cas,
    pub(crate) folder: TempDir,
    channel: Channel,
    url: String,
    _stop: oneshot::Sender<()>,
}

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) executes: bool,
    pub(crate) limits: Limits,
    pub(crate) blob_bytes_max: Option<u64>,
    pub(crate) in_flight_bytes: Option<u32>,
    pub(crate) live: Option<Arc<dyn LiveRead>>,
    pub(crate) log_writes: Option<Arc<dyn LogWrite>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = CasConfig::new(folder.path().join("cas"));
        config.blob_bytes_max = options.blob_bytes_max.unwrap_or(config.blob_bytes_max);
        config.in_flight_bytes = options.in_flight_bytes.unwrap_or(config.in_flight_bytes);
        let cas = Cas::open(config).unwrap();
        let routes = cas_grpc::routes(BlobApi {
            cas: cas.clone(),
            instances: INSTANCES.parse().unwrap(),
            zones: policy::zones::Zones::default(),
            now: std::sync::Arc::new(model::Millis::of_this_machine),
            limits: options.limits,
            executes: options.executes,
            live: options.live,
            log_writes: options.log_writes,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(cas_grpc::serve(
            ClientListener::new(
                listener,
                Protocol::Http2,
                Limiter::new(ConnectionLimits { total: 1000, per_client: 1000 }, Patience::default()),
            ),
            cas_grpc::guarded(routes, callers::Callers::anyone()),
            async move {
                let _ = stopped.await;
            },
        ));
        let channel = connect(&url).await;
        Self { cas, folder, channel, url, _stop: stop }
    }

    /// URL of the server, for clients of the protocol.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The connection of the other calls.
    pub(crate) fn shared(&self) -> Channel {
        self.channel.clone()
    }

    /// Opens a separate connection to the server.
    pub(crate) async fn connect(&self) -> Channel {
        connect(&self.url).await
    }

    pub(crate) fn blobs(&self) -> ContentAddressableStorageClient<Channel> {
        ContentAddressableStorageClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn actions(&self) -> ActionCacheClient<Channel> {
        ActionCacheClient::new(self.channel.clone())
    }

    pub(crate) fn capabilities(&self) -> CapabilitiesClient<Channel> {
        CapabilitiesClient::new(self.channel.clone())
    }

    pub(crate) fn stream(&self) -> ByteStreamClient {
        ByteStreamClient::new(self.channel.clone())
    }

    pub(crate) async fn put(&self, content: &[u8]) -> BlobDigest {
        self.put_as(content, Sha256).await
    }

    pub(crate) async fn put_as(&self, content: &[u8], function: DigestFunction) -> BlobDigest {
        let digest = function.digest(content);
        self.cas.put(&digest, Bytes::copy_from_slice(content)).await.unwrap();
        digest
    }

    /// Returns the missing ones of `digests`.
    pub(crate) async fn missing(&self, digests: &[BlobDigest]) -> Vec<execution::Digest> {
        let request = execution::FindMissingBlobsRequest {
            blob_digests: digests.iter().map(digest::to_proto).collect(),
            digest_function: digests.first().map_or(0, |first| digest::value(first.function).into()),
            ..Default::default()
        };
        self.blobs().find_missing_blobs(request).await.unwrap().into_inner().missing_blob_digests
    }

    pub(crate) async fn has(&self, digest: &BlobDigest) -> bool {
        self.missing(&[*digest]).await.is_empty()
    }

    pub(crate) async fn read(&self, name: &str, offset: i64, limit: i64) -> Result<Vec<u8>, Status> {
        let request = ReadRequest { resource_name: name.into(), read_offset: offset, read_limit: limit };
        let mut pieces = self.stream().read(request).await?.into_inner();
        let mut content = Vec::new();
        while let Some(piece) = pieces.message().await? {
            assert!(piece.data.len() < 4 << 20);
            content.extend_from_slice(&piece.data);
        }
        Ok(content)
    }

    /// Writes in pieces of `piece` bytes; the last one completes the write.
    pub(crate) async fn write(&self, name: &str, content: &[u8], piece: usize) -> Result<i64, Status> {
        self.send(pieces(name, content, piece, 0, true)).await.map(|response| response.committed_size)
    }

    pub(crate) async fn send(&self, requests: Vec<WriteRequest>) -> Result<WriteResponse, Status> {
        self.send_as(Request::new(stream::iter(requests).boxed())).await
    }

    pub(crate) async fn send_as(
        &self,
        request: Request<stream::BoxStream<'static, WriteRequest>>,
    ) -> Result<WriteResponse, Status> {
        self.stream().write(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn query(&self, name: &str) -> Result<QueryWriteStatusResponse, Status> {
        let request = QueryWriteStatusRequest { resource_name: name.into() };
        self.stream().query_write_status(request).await.map(tonic::Response::into_inner)
    }
}

async fn connect(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned())
        .unwrap()
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect()
        .await
        .unwrap()
}

/// The requests of a write of `content` that starts at `offset`.
pub(crate) fn pieces(
    name: &str,
    content: &[u8],
    piece: usize,
    offset: i64,
    finish: bool,
) -> Vec<WriteRequest> {
    let mut requests = Vec::new();
    let mut at = offset;
    for data in content.chunks(piece) {
        requests.push(WriteRequest {
            resource_name: if requests.is_empty() { name.to_owned() } else { String::new() },
            write_offset: at,
            finish_write: false,
            data: Bytes::copy_from_slice(data),
        });
        at += i64::try_from(data.len()).unwrap();
    }
    if requests.is_empty() {
        requests.push(WriteRequest {
            resource_name: name.into(),
            write_offset: offset,
            ..Default::default()
        });
    }
    requests.last_mut().unwrap().finish_write = finish;
    requests
}

/// Bytes that do not repeat, but compress to about half.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&(state & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes());
    }
    content.truncate(length);
    content
}
