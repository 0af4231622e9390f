//! `cas`: keeps the store within its bounds, keeps the blobs that records of builds name, and serves the store as a cache
//! without execution.
//!
//! in: bytes written to the store, lifecycle events · out: whether the store is full · decides nothing · state: the folder

mod earlier_store;
mod keeper;

use cas::Cas;
use cas_grpc::{BlobApi, Limits, routes, serve};
use listener::{ClientListener, Protocol};
use policy::InstanceRules;
use service::{Context, Ready, Running, ServiceError, StartError};
use store_bounds::StoreUsage;
use tokio::{net::TcpListener, task::JoinSet};
use tonic::service::Routes;

use keeper::Keeper;

/// Runs the service until it is stopped.
pub fn run(context: Context) -> Running {
    Box::pin(serve_all(context))
}

async fn serve_all(context: Context) -> Result<(), ServiceError> {
    let instances = context.settings.instances.parse();
    let instances: InstanceRules = instances.map_err(|error: policy::ParseRuleError| {
        ServiceError::failed("reading the setting instances", error)
    })?;
    let cas = context.cas().await?;
    let address = &context.settings.cas_listen;
    let unusable = |source| StartError::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(address).await.map_err(unusable)?;
    let grpc = format!("grpc://{}", listener.local_addr().map_err(unusable)?);
    tracing::info!(grpc, "serving the cache");
    let listener = ClientListener::new(listener, Protocol::Http2, context.limiter.clone());
    // Until it holds the eviction lock, this process reports its writes like the others.
    StoreUsage::join(&cas, &context.bus, context.stop.clone()).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_cache(listener, cache(&cas, instances), context.clone()));
    tasks.spawn(bound(context.clone(), cas));
    context.ready(Ready { grpc: Some(grpc), ..Ready::default() }).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the cas service", error))??;
    }
    Ok(())
}

/// Keeps what records name and evicts the rest, once no other process does this for the folder.
async fn bound(context: Context, cas: Cas) -> Result<(), ServiceError> {
    let Some(evictor) = store_bounds::take_over(&context, &cas).await? else { return Ok(()) };
    // Nothing is evicted before it is known what records name.
    evictor.suspend(true);
    let keeper = Keeper::new(context.clone(), cas.clone(), evictor.clone());
    let keeping = async {
        earlier_store::move_blobs(&context, &cas).await;
        keeper.run().await;
        Ok(())
    };
    tokio::try_join!(store_bounds::run(&context, &cas, &evictor), keeping).map(drop)
}

fn cache(cas: &Cas, instances: InstanceRules) -> Routes {
    routes(BlobApi {
        cas: cas.clone(),
        instances,
        limits: Limits::default(),
        executes: false,
        live: None,
        log_writes: None,
    })
}

async fn serve_cache(listener: ClientListener, routes: Routes, context: Context) -> Result<(), ServiceError> {
    let served = serve(listener, routes, context.stop.clone().cancelled_owned());
    tokio::select! {
        served = served => served.map_err(|error| ServiceError::failed("the gRPC server", error)),
        () = grace_period(&context) => Ok(()),
    }
}

/// Allows running calls one second after the service is stopped.
async fn grace_period(context: &Context) {
    context.stop.cancelled().await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
}
