//! The connection.

use std::time::Duration;

use model::DigestFunction;
use reapi::{
    execution::{
        GetCapabilitiesRequest, ServerCapabilities, action_cache_client::ActionCacheClient,
        capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
        execution_client::ExecutionClient,
    },
    longrunning::operations_client::OperationsClient,
    stream::ByteStreamClient,
};
use tonic::{
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use crate::RemoteError;

/// A server of the Remote Execution API and one of its instances. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) channel: Channel,
    pub(crate) instance: String,
    pub(crate) function: DigestFunction,
    /// Sent with what concerns executions.
    pub(crate) headers: MetadataMap,
}

const CONNECT: Duration = Duration::from_secs(5);
const WINDOW: u32 = 8 << 20;
/// Bytes of one frame: the default of 16 KiB takes a call into the kernel for each.
const FRAME: u32 = 256 << 10;
/// Bytes of one answer at most.
const MESSAGE_MAX: usize = 64 << 20;

impl Remote {
    /// Connects to `url`: `grpc://HOST:PORT` or `http://HOST:PORT`, or `HOST:PORT`.
    pub async fn connect(url: &str, instance: &str, function: DigestFunction) -> Result<Self, RemoteError> {
        let unreachable = |source| RemoteError::Unreachable { url: url.to_owned(), source };
        let channel = endpoint(url).map_err(unreachable)?.connect().await.map_err(unreachable)?;
        Ok(Self { channel, instance: instance.to_owned(), function, headers: MetadataMap::new() })
    }

    /// As [`Remote::connect`], but connects with the first call, and again whenever the connection is gone. Must be called
    /// within a Tokio runtime.
    pub fn lazily(url: &str, instance: &str, function: DigestFunction) -> Result<Self, RemoteError> {
        let unreachable = |source| RemoteError::Unreachable { url: url.to_owned(), source };
        let channel = endpoint(url).map_err(unreachable)?.connect_lazy();
        Ok(Self { channel, instance: instance.to_owned(), function, headers: MetadataMap::new() })
    }

    /// The same connection with another digest function.
    #[must_use]
    pub fn with_function(&self, function: DigestFunction) -> Self {
        Self { function, ..self.clone() }
    }

    /// The same connection with another instance name.
    #[must_use]
    pub fn with_instance(&self, instance: &str) -> Self {
        Self { instance: instance.to_owned(), ..self.clone() }
    }

    /// The same connection with other headers on the calls that execute actions, wait for them and cancel them: on whose
    /// behalf they are made.
    #[must_use]
    pub fn with_headers(&self, headers: MetadataMap) -> Self {
        Self { headers, ..self.clone() }
    }

    /// The digest function that it uses.
    pub fn function(&self) -> DigestFunction {
        self.function
    }

    /// The instance name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// What the server can do.
    pub async fn capabilities(&self) -> Result<ServerCapabilities, RemoteError> {
        let request = GetCapabilitiesRequest { instance_name: self.instance.clone() };
        let answer = CapabilitiesClient::new(self.channel.clone()).get_capabilities(request).await;
        Ok(answer.map_err(RemoteError::refused("asking for capabilities"))?.into_inner())
    }

    /// The content-addressable store.
    pub fn cas(&self) -> ContentAddressableStorageClient<Channel> {
        ContentAddressableStorageClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// The byte streams.
    pub fn bytes(&self) -> ByteStreamClient {
        ByteStreamClient::new(self.channel.clone())
    }

    /// The action cache.
    pub fn action_cache(&self) -> ActionCacheClient<Channel> {
        ActionCacheClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Execution.
    pub fn execution(&self) -> ExecutionClient<Channel> {
        ExecutionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Operations.
    pub fn operations(&self) -> OperationsClient<Channel> {
        OperationsClient::new(self.channel.clone())
    }

    /// The function as requests carry it.
    pub(crate) fn function_value(&self) -> i32 {
        reapi::digest::value(self.function).into()
    }
}

fn endpoint(url: &str) -> Result<Endpoint, tonic::transport::Error> {
    let address = url.strip_prefix("grpc://").or_else(|| url.strip_prefix("http://")).unwrap_or(url);
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(Duration::from_secs(20)))
}
