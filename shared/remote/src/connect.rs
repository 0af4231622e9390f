//! The connection to a server.

use std::{fmt, sync::Arc, time::Duration};

use model::{DigestFunction, Group, StoreId, Zone};
use reapi::{
    execution::{
        GetCapabilitiesRequest, ServerCapabilities, action_cache_client::ActionCacheClient,
        capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
        execution_client::ExecutionClient,
    },
    longrunning::operations_client::OperationsClient,
    metadata::{GROUP, STORE_ID, ZONE},
    stream::ByteStreamClient,
};
use tokio::time::Instant;
use tonic::{
    Response,
    metadata::MetadataMap,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use crate::{
    RemoteError,
    login::{self, Credentials},
};

/// A connection whose calls have the credentials of this process.
pub type Connection = InterceptedService<Channel, Credentials>;

/// A server of the Remote Execution API and one of its instances. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) channel: Connection,
    /// The channel without credentials.
    bare: Channel,
    pub(crate) instance: String,
    pub(crate) function: DigestFunction,
    /// Headers of the calls that concern executions.
    pub(crate) headers: MetadataMap,
    /// How downloads continue after a lost connection; without it they fail.
    pub(crate) resume: Option<Arc<dyn Resume>>,
}

/// Finds a server for a download whose connection was lost.
pub trait Resume: fmt::Debug + Send + Sync {
    /// Waits a moment and connects to a server that answers; `None` if the time to wait, which began at
    /// `lost_at`, ends before.
    fn reconnect(&self, lost_at: Instant) -> futures::future::BoxFuture<'_, Option<Remote>>;
}

const CONNECT: Duration = Duration::from_secs(5);
/// While a call waits, the server is pinged after this time without data from it. A server that is stopped, or
/// unreachable, does not answer.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Time to answer a ping; without an answer the calls fail.
const PING_ANSWER: Duration = Duration::from_secs(10);
const WINDOW: u32 = 8 << 20;
/// Maximum bytes of one frame. With the default of 16 KiB each needs its own system call.
const FRAME: u32 = 256 << 10;
/// Maximum size of one answer in bytes.
const MESSAGE_MAX: usize = 64 << 20;

impl Remote {
    /// Connects to `url`: `grpc://HOST:PORT`, `http://HOST:PORT` or `HOST:PORT`; with TLS to
    /// `grpcs://HOST:PORT` or `https://HOST:PORT`.
    pub async fn connect(url: &str, instance: &str, function: DigestFunction) -> Result<Self, RemoteError> {
        let unreachable = |source| RemoteError::Unreachable { url: url.to_owned(), source };
        let channel = endpoint(url)?.connect().await.map_err(unreachable)?;
        Ok(Self::over(channel, instance, function))
    }

    /// Like [`Remote::connect`], but connects with the first call, and again whenever the connection is lost. Must be
    /// called within a Tokio runtime.
    pub fn lazily(url: &str, instance: &str, function: DigestFunction) -> Result<Self, RemoteError> {
        let channel = endpoint(url)?.connect_lazy();
        Ok(Self::over(channel, instance, function))
    }

    fn over(channel: Channel, instance: &str, function: DigestFunction) -> Self {
        let bare = channel.clone();
        let channel = InterceptedService::new(channel, Credentials::of_process());
        Self {
            channel,
            bare,
            instance: instance.to_owned(),
            function,
            headers: MetadataMap::new(),
            resume: None,
        }
    }

    /// The same connection, whose downloads continue as `resume` says when the connection is lost.
    #[must_use]
    pub fn resuming(&self, resume: Arc<dyn Resume>) -> Self {
        Self { resume: Some(resume), ..self.clone() }
    }

    /// The same connection with another digest function.
    #[must_use]
    pub fn with_function(&self, function: DigestFunction) -> Self {
        Self { function, ..self.clone() }
    }

    /// The same connection, whose calls are for a trust zone. The server must allow this process all zones.
    #[must_use]
    pub fn in_zone(&self, zone: &Zone) -> Self {
        self.acting_for(ZONE, zone.as_str())
    }

    /// The same connection, whose calls are for a quota group: what they upload is for its trust zone.
    #[must_use]
    pub fn in_group(&self, group: &Group) -> Self {
        self.acting_for(GROUP, group.as_str())
    }

    fn acting_for(&self, header: &'static str, name: &str) -> Self {
        let credentials = Credentials::of_process().acting_for(header, name);
        Self { channel: InterceptedService::new(self.bare.clone(), credentials), ..self.clone() }
    }

    /// The same connection with another instance name.
    #[must_use]
    pub fn with_instance(&self, instance: &str) -> Self {
        Self { instance: instance.to_owned(), ..self.clone() }
    }

    /// The same connection with other headers on the calls that execute actions, wait for them and cancel them. The
    /// headers identify the client on whose behalf the calls are made.
    #[must_use]
    pub fn with_headers(&self, headers: MetadataMap) -> Self {
        Self { headers, ..self.clone() }
    }

    pub fn function(&self) -> DigestFunction {
        self.function
    }

    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Requests the capabilities of the server.
    pub async fn capabilities(&self) -> Result<ServerCapabilities, RemoteError> {
        Ok(self.ask_capabilities().await?.into_inner())
    }

    /// Requests the id of the server's store; `None` if the server does not report one.
    pub async fn store_id(&self) -> Result<Option<StoreId>, RemoteError> {
        let answer = self.ask_capabilities().await?;
        let id = answer.metadata().get(STORE_ID).and_then(|value| value.to_str().ok());
        Ok(id.and_then(|text| text.parse().ok()))
    }

    async fn ask_capabilities(&self) -> Result<Response<ServerCapabilities>, RemoteError> {
        let request = GetCapabilitiesRequest { instance_name: self.instance.clone() };
        let answer = CapabilitiesClient::new(self.channel.clone()).get_capabilities(request).await;
        answer.map_err(RemoteError::refused("requesting the capabilities"))
    }

    pub fn cas(&self) -> ContentAddressableStorageClient<Connection> {
        ContentAddressableStorageClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub fn bytes(&self) -> ByteStreamClient<Connection> {
        ByteStreamClient::new(self.channel.clone())
    }

    pub fn action_cache(&self) -> ActionCacheClient<Connection> {
        ActionCacheClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub fn execution(&self) -> ExecutionClient<Connection> {
        ExecutionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub fn operations(&self) -> OperationsClient<Connection> {
        OperationsClient::new(self.channel.clone())
    }

    /// The digest function as a value of the protocol.
    pub(crate) fn function_value(&self) -> i32 {
        reapi::digest::value(self.function).into()
    }
}

fn endpoint(url: &str) -> Result<Endpoint, RemoteError> {
    let unreachable = |source| RemoteError::Unreachable { url: url.to_owned(), source };
    let secure = url.strip_prefix("grpcs://").or_else(|| url.strip_prefix("https://"));
    let plain = url.strip_prefix("grpc://").or_else(|| url.strip_prefix("http://"));
    let address = match secure {
        Some(address) => format!("https://{address}"),
        None => format!("http://{}", plain.unwrap_or(url)),
    };
    let mut endpoint = Endpoint::from_shared(address).map_err(unreachable)?;
    if secure.is_some() {
        endpoint = endpoint.tls_config(login::tls()?).map_err(unreachable)?;
    }
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER))
}
