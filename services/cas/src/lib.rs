//! `cas`: keeps the store of a data folder within its bounds, and serves it as a cache without execution.
//!
//! in: bytes written to the store · out: whether the store is full · decides nothing · state: the folder

use cas::Cas;
use cas_grpc::{BlobApi, Limits, routes, serve};
use listener::{ClientListener, Protocol};
use policy::InstanceRules;
use service::{Context, Ready, Running, ServiceError, StartError};
use store_bounds::{StoreUsage, evict};
use tokio::{net::TcpListener, task::JoinSet};
use tonic::service::Routes;

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
    tasks.spawn(evict(context.clone(), cas));
    context.ready(Ready { grpc: Some(grpc), ..Ready::default() }).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the cas service", error))??;
    }
    Ok(())
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
