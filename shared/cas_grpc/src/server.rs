//! The gRPC server: its HTTP/2 settings and its services.

use std::{sync::Arc, time::Duration};

use callers::{Callers, Guarded};
use listener::{ClientListener, CountedCalls};
use reapi::execution::{
    action_cache_server::ActionCacheServer, capabilities_server::CapabilitiesServer,
    content_addressable_storage_server::ContentAddressableStorageServer,
};
use tonic::{service::Routes, transport::Server};

use crate::{
    actions::ActionService,
    api::{BlobApi, Shared},
    blobs::BlobService,
    budget::Metered,
    capabilities::CapabilitiesService,
    limits::{CONNECTION_WINDOW, STREAM_WINDOW},
    stream::ByteStreamService,
};

/// Maximum bytes of one frame.
const FRAME_BYTES: u32 = 256 << 10;
/// Maximum number of streams of one connection; each client that waits for an execution uses one.
const STREAMS_MAX: u32 = 10_000;
/// Interval of keep-alive pings on a quiet connection, and the time to answer one.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Methods whose requests can be silent for a long time: writes of logs, and streams of build events.
const MAY_PAUSE: &[&str] = &[reapi::stream::WRITE, build_events::service::TOOL_STREAM];

/// Creates a server with the settings that all servers of the protocol share, for [`serve_by`].
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .tcp_nodelay(true)
}

/// Returns the store's services: `ContentAddressableStorage`, `ByteStream`, `ActionCache` and `Capabilities`. Other
/// services can be added.
pub fn routes(api: BlobApi) -> Routes {
    let most = api.limits.message_bytes_max;
    let shared = Shared::new(api);
    let budget = || Arc::clone(&shared.budget);
    let blobs = ContentAddressableStorageServer::new(BlobService(Arc::clone(&shared)));
    let actions = ActionCacheServer::new(ActionService(Arc::clone(&shared)));
    Routes::new(Metered::new(blobs.max_decoding_message_size(most), budget()))
        .add_service(Metered::new(actions.max_decoding_message_size(most), budget()))
        .add_service(CapabilitiesServer::new(CapabilitiesService(Arc::clone(&shared))))
        .add_service(ByteStreamService(shared))
}

/// The services, reached only by callers who may call them.
pub fn guarded(routes: Routes, callers: Callers) -> Guarded<Routes> {
    Guarded::new(routes.prepare(), callers)
}

/// Serves `routes` until `stop` resolves and the running calls have ended.
pub async fn serve(
    listener: ClientListener,
    routes: Guarded<Routes>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve_by(server(), listener, routes, stop).await
}

/// Like [`serve`], with a server that has its own settings.
pub async fn serve_by(
    server: Server,
    listener: ClientListener,
    routes: Guarded<Routes>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let attended = CountedCalls::new(routes, listener.limiter().patience().body, MAY_PAUSE);
    server.serve_with_incoming_shutdown(attended, listener.into_incoming(), stop).await
}
