//! The gRPC server and its services.

use std::time::Duration;

use callers::Callers;
use cas::Cas;
use listener::{ClientListener, Protocol};
use reapi::{
    asset::{fetch_server::FetchServer, push_server::PushServer},
    execution::execution_server::ExecutionServer,
    logstream::log_stream_service_server::LogStreamServiceServer,
    longrunning::operations_server::OperationsServer,
};
use service::{Bound, Context, ServiceError, StartError};
use tokio::net::{TcpListener, TcpSocket};
use tonic::service::Routes;

use super::{
    Core, GrpcConfig, abandoned, asset::AssetApi, build_events::BuildEvents, execution::ExecutionApi,
    log_streams::LogStreams, mount, operations::OperationsApi,
};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// Maximum number of calls that one connection may cancel at once: an interrupted build cancels all its calls.
const RESETS_MAX: usize = 16_384;
const HEADERS_MAX: u32 = 64 << 10;
/// Maximum delay of the start while Redis is unavailable.
const INDEX_PATIENCE: Duration = Duration::from_millis(250);

/// A running gRPC server.
#[derive(Debug)]
pub struct Serving {
    bound: Bound,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Serving {
    /// The address on which it listens.
    pub fn bound(&self) -> Bound {
        self.bound
    }

    /// The URL at which a client on this machine reaches it.
    pub fn url(&self) -> String {
        self.bound.local_url()
    }

    /// Waits until the server has ended.
    pub async fn ended(self) -> Result<(), ServiceError> {
        let ended = self.server.await.map_err(|error| ServiceError::failed("the gRPC server", error))?;
        ended.map_err(|error| ServiceError::failed("the gRPC server", error))
    }
}

/// Serves the Remote Execution API until the context is stopped. Returns as soon as the server accepts calls.
pub async fn serve(
    context: &Context,
    cas: Cas,
    config: GrpcConfig,
    callers: Callers,
) -> Result<Serving, ServiceError> {
    let listen = config.listen.clone();
    let unusable = |source| StartError::Listen { address: listen.clone(), source };
    let listener = bind(&listen).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    let tls = context.tls()?;
    let bound = Bound { scheme: if tls.is_some() { "grpcs" } else { "grpc" }, address };
    store_bounds::StoreUsage::join(&cas, &context.bus, context.stop.clone()).await?;
    let downloads = cas.config().root.join("tmp");
    let core = Core::new(context.bus.clone(), cas, (config, context.zones()?), context.stop.clone())
        .map_err(|error| ServiceError::failed("preparing downloads of images", error))?;
    let assets = AssetApi::new(core.clone(), downloads);
    // Everything works without the index, only less well, so the start does not wait longer for it.
    let (filled, asking) = (core.clone(), context.clone());
    let connecting = tokio::spawn(async move {
        match asking.index().await {
            Ok(index) => filled.set_index(index.actions()),
            Err(error) => {
                let error = telemetry::error_chain(&error);
                tracing::warn!(error, "cannot connect to the index: actions are not merged");
            }
        }
    });
    // After the timeout, the task continues to connect.
    let _ = tokio::time::timeout(INDEX_PATIENCE, connecting).await;
    let (pools, stopped) = (core.pools.clone(), context.stop.clone());
    tokio::spawn(async move {
        let followed = stopped.run_until_cancelled(pools.follow()).await;
        if let Some(Err(error)) = followed {
            tracing::warn!(error = telemetry::error_chain(&error), "pool changes are not followed");
        }
    });
    tokio::spawn(abandoned::answer(core.bus.clone(), core.waiters.clone(), context.stop.clone()));
    let stop = context.stop.clone();
    let server = cas_grpc::server()
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(RESETS_MAX))
        .http2_max_header_list_size(HEADERS_MAX);
    let listener = ClientListener::new(listener, Protocol::Http2, context.limiter.clone()).with_tls(tls);
    let routes = cas_grpc::guarded(routes(&core, assets), callers);
    let serving = cas_grpc::serve_by(server, listener, routes, stop.cancelled_owned());
    Ok(Serving { bound, server: tokio::spawn(serving) })
}

fn routes(core: &Core, assets: AssetApi) -> Routes {
    cas_grpc::routes(mount::blob_api(core))
        .add_service(ExecutionServer::new(ExecutionApi::new(core.clone())))
        .add_service(OperationsServer::new(OperationsApi::new(core.clone())))
        .add_service(LogStreamServiceServer::new(LogStreams::new(core.clone())))
        .add_service(FetchServer::new(assets.clone()))
        .add_service(PushServer::new(assets))
        .add_service(BuildEvents::new(core.clone()))
        // Reports that the process serves. Calls report failures of the services behind it.
        .add_service(tonic_health::server::health_reporter().1)
}

/// Binds with `SO_REUSEADDR`, so that a successor can listen at once.
fn bind(address: &str) -> std::io::Result<TcpListener> {
    use std::net::ToSocketAddrs as _;
    let none = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "the name resolves to no address");
    let address = address.to_socket_addrs()?.next().ok_or_else(none)?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
