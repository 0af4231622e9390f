//! `cas`: keeps the store of a data folder within its bounds, and serves it as a cache without execution.
//!
//! in: bytes written to the store · out: whether the store is full · decides nothing · state: the folder

use std::{fs::OpenOptions, path::PathBuf, sync::Arc};

use ::service::{Context, Ready, Running, ServiceError, StartError};
use cas::{Cas, CasError, Evictor, EvictorConfig};
use disk::{Reserve, Space};
use listener::{ClientListener, Protocol};
use nix::fcntl::{Flock, FlockArg};
use policy::InstanceRules;
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};
use tonic::service::Routes;

use crate::{
    api::{BlobApi, Instance, Instances, Limits},
    server::{routes, serve},
    usage::{self, StoreUsage},
};

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

/// For a service that may be the only process on its store's folder: reports its writes and learns whether the store
/// is full. If the store has a backing, this process also evicts, or waits while another process does.
pub async fn keep_bounds(context: &Context, cas: &Cas) -> Result<(), ServiceError> {
    StoreUsage::join(cas, &context.bus, context.stop.clone()).await?;
    if cas.config().backing.is_some() {
        let (context, cas) = (context.clone(), cas.clone());
        tokio::spawn(async move {
            if let Err(error) = evict(context, cas).await {
                tracing::error!(
                    error = telemetry::error_chain(&error),
                    "eviction failed; the store may grow beyond its bounds"
                );
            }
        });
    }
    Ok(())
}

struct Rules(InstanceRules);

impl Instances for Rules {
    fn find(&self, name: &str) -> Option<Instance> {
        let rule = self.0.rule(name).ok()?;
        Some(Instance { update_actions: rule.writable })
    }
}

fn cache(cas: &Cas, instances: InstanceRules) -> Routes {
    routes(BlobApi {
        cas: cas.clone(),
        instances: Arc::new(Rules(instances)),
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

async fn evict(context: Context, cas: Cas) -> Result<(), ServiceError> {
    let root = &cas.config().root;
    let failed = |source| StartError::Write { path: root.display().to_string(), source };
    let bytes = Space::of(root).map_err(failed)?.bytes;
    let free_bytes_min = Reserve::new(context.settings.disk_left_percent).for_stores(bytes);
    let bounds = EvictorConfig { bytes_max: context.settings.cas_bytes_max, free_bytes_min };
    let evictor = tokio::select! {
        evictor = open(&cas, bounds) => evictor?,
        () = context.stop.cancelled() => return Ok(()),
    };
    let governed = async { usage::govern(&evictor, &cas.config().root, &context.bus, &context.stop).await };
    let (governed, ()) = tokio::join!(governed, evictor.run(context.stop.cancelled()));
    governed
}

/// Takes over eviction from the folder; waits while another process evicts.
async fn open(cas: &Cas, room: EvictorConfig) -> Result<Evictor, StartError> {
    loop {
        match Evictor::open(cas, room) {
            Ok(evictor) => return Ok(evictor),
            Err(CasError::EvictorRuns { path }) => {
                tracing::info!(path, "another process evicts from this folder; waiting for it to end");
                wait_for_lock(cas.config().root.join("evictor.lock")).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for the lock. Uses a separate thread, because the process may end before the lock is free.
async fn wait_for_lock(path: PathBuf) -> Result<(), StartError> {
    let (sender, receiver) = oneshot::channel();
    let failed = |source| StartError::Write { path: path.display().to_string(), source };
    let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
    std::thread::spawn(move || {
        let lock = Flock::lock(file, FlockArg::LockExclusive).map(drop).map_err(|(_, error)| error);
        // The receiver is gone if the service was stopped.
        let _ = sender.send(lock);
    });
    match receiver.await {
        Ok(Err(error)) => Err(failed(error.into())),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}
