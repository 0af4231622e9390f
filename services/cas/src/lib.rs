//! `cas`: keeps the store within its bounds, keeps the blobs that records and environments name, makes environments, and serves the store as a
//! cache that executes nothing.
//!
//! in: bytes written to the store, lifecycle events, waiting requests, environments · out: whether the store is full, builds of
//! environments and their results · decides with `policy::{unread, environments}` · state: the folder

mod earlier_store;
mod environments;
mod keeper;

use std::{sync::Arc, time::Duration};

use callers::Guarded;
use cas::Cas;
use cas_grpc::{BlobApi, Limits, guarded, routes, serve};
use client::Client;
use listener::{ClientListener, Protocol};
use model::FetchHost;
use policy::InstanceRules;
use service::{Context, Ready, Running, ServiceError, StartError, report_disk};
use settings::{CasSettings, ImageSettings};
use store_bounds::StoreUsage;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tonic::service::Routes;

use keeper::{Keeper, Place};

/// Time from the start to the first deletion of old objects from an object store, and from each to the next.
const FIRST_SWEEP: Duration = Duration::from_secs(3600);
const SWEEP: Duration = Duration::from_secs(24 * 3600);

/// Runs the service until it is stopped.
pub fn run(context: Context, settings: CasSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: CasSettings) -> Result<(), ServiceError> {
    let instances = settings.instances.parse();
    let instances: InstanceRules = instances.map_err(|error: policy::ParseRuleError| {
        ServiceError::failed("reading the setting instances", error)
    })?;
    let cas = context.cas().await?;
    report_disk("store", cas.config().root.clone());
    let address = &settings.listen;
    let unusable = |source| StartError::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(address).await.map_err(unusable)?;
    let tls = context.tls()?;
    let scheme = if tls.is_some() { "grpcs" } else { "grpc" };
    let grpc = format!("{scheme}://{}", listener.local_addr().map_err(unusable)?);
    tracing::info!(grpc, "serving the cache");
    let listener = ClientListener::new(listener, Protocol::Http2, context.limiter.clone()).with_tls(tls);
    let callers = context.callers()?;
    // Until it holds the eviction lock, this process reports its writes like the others.
    StoreUsage::join(&cas, &context.bus, context.stop.clone()).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_cache(listener, guarded(cache(&context, &cas, instances)?, callers), context.clone()));
    if cas.has_objects() {
        tasks.spawn(bound_objects(context.clone(), cas.clone()));
    }
    let of_images = (settings.images.clone(), settings.fetch_hosts.clone());
    tasks.spawn(make_environments(context.clone(), cas.clone(), of_images));
    tasks.spawn(bound_folder(context.clone(), cas));
    context.ready(Ready { grpc: Some(grpc), ..Ready::default() }).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the cas service", error))??;
    }
    Ok(())
}

/// Evicts from the folder once no other process does, and keeps there what records name if it has no backing.
async fn bound_folder(context: Context, cas: Cas) -> Result<(), ServiceError> {
    let Some(evictor) = store_bounds::take_over(&context, &cas).await? else { return Ok(()) };
    if cas.config().backing.is_some() {
        return store_bounds::run(&context, &cas, &evictor).await;
    }
    // Nothing is evicted before it is known what records name.
    evictor.suspend(true);
    let keeper = Keeper::new(context.clone(), cas.clone(), Place::Folder(evictor.clone()));
    let keeping = async {
        tokio::join!(keeper.run(), earlier_store::move_blobs(&context, &cas, Some(&evictor)));
        Ok(())
    };
    tokio::select! {
        ended = store_bounds::run(&context, &cas, &evictor) => ended,
        ended = keeping => ended,
    }
}

/// Makes the images of environments that are approved.
async fn make_environments(
    context: Context,
    cas: Cas,
    (settings, fetch_hosts): (ImageSettings, Vec<FetchHost>),
) -> Result<(), ServiceError> {
    let folder = context.data_folder(images::FOLDER)?;
    let store = context.store_of_images(&cas)?;
    let opened = images::open(folder, settings, &fetch_hosts, store.clone()).await;
    let images = opened.map_err(|error| ServiceError::failed("preparing the folder of images", error))?;
    images.maintain_until(context.stop.clone().cancelled_owned());
    let making = environments::make(Client::new(context.bus.clone()), (cas, store), context.zones()?, images);
    context.stop.run_until_cancelled(making).await;
    Ok(())
}

/// Keeps in the object store what records name, and deletes the rest in time.
async fn bound_objects(context: Context, cas: Cas) -> Result<(), ServiceError> {
    let keeper = Keeper::new(context.clone(), cas.clone(), Place::Objects);
    let sweeping = sweep(&cas, keeper.current());
    let keeping =
        async { tokio::join!(keeper.run(), earlier_store::move_blobs(&context, &cas, None), sweeping) };
    // Boxed: its state is large.
    context.stop.run_until_cancelled(Box::pin(keeping)).await;
    Ok(())
}

/// Deletes old objects from the object store, once a day while it is known what records name. Not at once: another
/// service may have done it just before.
async fn sweep(cas: &Cas, current: watch::Receiver<Option<Duration>>) {
    loop {
        tokio::time::sleep(FIRST_SWEEP).await;
        let Some(retention) = *current.borrow() else { continue };
        match cas.sweep_objects(retention).await {
            Ok(0) => {}
            Ok(deleted) => {
                tracing::info!(deleted, "deleted objects that were not used for the retention of the store");
            }
            Err(error) => {
                let error = telemetry::error_chain(&error);
                tracing::warn!(error, "cannot delete old objects from the object store");
            }
        }
        tokio::time::sleep(SWEEP).await;
    }
}

fn cache(context: &Context, cas: &Cas, instances: InstanceRules) -> Result<Routes, StartError> {
    let bus = context.bus.clone();
    Ok(routes(BlobApi {
        cas: cas.clone(),
        instances,
        zones: context.zones()?,
        limits: Limits::default(),
        now: Arc::new(move || bus.now()),
        executes: false,
        live: None,
        log_writes: None,
    }))
}

async fn serve_cache(
    listener: ClientListener,
    routes: Guarded<Routes>,
    context: Context,
) -> Result<(), ServiceError> {
    let served = serve(listener, routes, context.stop.clone().cancelled_owned());
    tokio::select! {
        served = served => served.map_err(|error| ServiceError::failed("the gRPC server", error)),
        () = grace_period(&context) => Ok(()),
    }
}

/// Allows running calls one second after the service is stopped.
async fn grace_period(context: &Context) {
    context.stop.cancelled().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
}
