//! Listening, and everything that is served.

use std::{net::SocketAddr, time::Duration};

use listener::{ClientListener, Protocol};
use reapi::{
    asset::{fetch_server::FetchServer, push_server::PushServer},
    execution::execution_server::ExecutionServer,
    logstream::log_stream_service_server::LogStreamServiceServer,
    longrunning::operations_server::OperationsServer,
};
use service::{Context, ServiceError, StartError};
use tokio::net::{TcpListener, TcpSocket};
use tonic::service::Routes;

use super::{
    Core, GrpcConfig, asset::AssetApi, execution::ExecutionApi, log_streams::LogStreams, mount, nobody,
    operations::OperationsApi,
};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// Calls of one connection that its client cancels in one go: a build that is interrupted drops all it waits for.
const RESETS_MAX: usize = 16_384;
const HEADERS_MAX: u32 = 64 << 10;
/// How long a gateway begins later where Redis is away.
const INDEX_PATIENCE: Duration = Duration::from_millis(250);

/// A server that answers.
#[derive(Debug)]
pub struct Serving {
    /// Where.
    pub address: SocketAddr,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Serving {
    /// Returns when it has ended.
    pub async fn ended(self) -> Result<(), ServiceError> {
        let ended = self.server.await.map_err(|error| ServiceError::failed("the gRPC server", error))?;
        ended.map_err(|error| ServiceError::failed("the gRPC server", error))
    }
}

/// Serves the Remote Execution API until the context is told to stop. Returns as soon as it answers.
pub async fn serve(context: &Context, config: GrpcConfig) -> Result<Serving, ServiceError> {
    let listen = config.listen.clone();
    let unusable = |source| StartError::Listen { address: listen.clone(), source };
    let listener = bind(&listen).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    let cas = context.cas().await?;
    cas_service::StoreUsage::join(&cas, &context.bus, context.stop.clone()).await?;
    let core = Core::new(context.bus.clone(), cas, config, context.stop.clone());
    let assets = AssetApi::new(core.clone(), context.data_folder("cas/tmp")?);
    // Everything is answered without it, only not so well: it is not waited for longer than it takes to connect.
    let (filled, asking) = (core.clone(), context.clone());
    let connecting = tokio::spawn(async move {
        if let Ok(index) = asking.index().await {
            filled.set_index(index.actions());
        }
    });
    let _ = tokio::time::timeout(INDEX_PATIENCE, connecting).await;
    let (pools, stopped) = (core.pools.clone(), context.stop.clone());
    tokio::spawn(async move {
        let followed = stopped.run_until_cancelled(pools.follow()).await;
        if let Some(Err(error)) = followed {
            tracing::warn!(error = telemetry::error_chain(&error), "news of pools come late");
        }
    });
    tokio::spawn(nobody::answer(core.bus.clone(), core.waiters.clone(), context.stop.clone()));
    let stop = context.stop.clone();
    let server = cas_service::server()
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(RESETS_MAX))
        .http2_max_header_list_size(HEADERS_MAX);
    let listener = ClientListener::new(listener, Protocol::Http2, context.limiter.clone());
    let serving = cas_service::serve_by(server, listener, routes(&core, assets), stop.cancelled_owned());
    Ok(Serving { address, server: tokio::spawn(serving) })
}

/// All services.
fn routes(core: &Core, assets: AssetApi) -> Routes {
    cas_service::routes(mount::blob_api(core))
        .add_service(ExecutionServer::new(ExecutionApi::new(core.clone())))
        .add_service(OperationsServer::new(OperationsApi::new(core.clone())))
        .add_service(LogStreamServiceServer::new(LogStreams::new(core.clone())))
        .add_service(FetchServer::new(assets.clone()))
        .add_service(PushServer::new(assets))
        // Says that the process serves: what is behind it may be away, and calls say so.
        .add_service(tonic_health::server::health_reporter().1)
}

/// A successor can listen here at once.
fn bind(address: &str) -> std::io::Result<TcpListener> {
    use std::net::ToSocketAddrs as _;
    let none = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "no address of this name");
    let address = address.to_socket_addrs()?.next().ok_or_else(none)?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
