//! `enqueuer`: turns requests into durable builds, and answers the request/reply API.
//!
//! in: `forebay.build.request.<group>.<priority>` (work queue), `forebay.api.*` · out: BUILD_ENQUEUED, rejections,
//! FINISHED (cancelled) · Redis: lists only · decides with `model` (validation)

mod api;
mod archived;
mod cancel;
mod enqueue;
mod estimate;
mod expected;
mod failure;
mod jobs;
mod known_workers;
mod list;
mod models;
mod queues;
mod reject;
mod repeats;
mod request_trace;
mod requests;
mod store;
mod version_file;
mod why;

use futures::FutureExt as _;
use index::Index;
use model::Priority;
use service::{Context, Environments, Ready, Running, ServiceError, follow_governance};
use settings::EnqueuerSettings;
use telemetry::metrics::{Counter, Label, expect};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: EnqueuerSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: EnqueuerSettings) -> Result<(), ServiceError> {
    for call in ["create", "get", "cancel"] {
        expect(Counter::ApiRequests, &[(Label::Endpoint, call), (Label::Status, "unavailable")]);
    }
    let index = context.index().await?;
    let (sender, governance) = watch::channel(None);
    let models = models::Models::default();
    let expected = expected::Expected::new(settings.estimator);
    let estimator = estimate::Estimator::new(&settings, governance, models.clone(), expected.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_governance(context.clone(), sender, || ()));
    // Well before this service is ready: other nodes of a cluster learn of a subscription a moment later.
    let published = context.bus.published_requests().await;
    let published = published.map_err(|error| ServiceError::failed("subscribing to requests", error))?;
    let cas = context.cas_with_small_caches().await?;
    store_bounds::keep_bounds(&context, &cas).await?;
    tasks.spawn(models::follow(context.clone(), cas.clone(), models));
    tasks.spawn(expected::follow(context.clone(), expected));
    let store = store::Store::new(cas, context.zones()?);
    let environments = Environments::new(context.bus.clone(), settings.images.clone());
    let of_jobs = (settings.job_limits, environments.clone());
    let jobs = jobs::Jobs::new(context.bus.clone(), store.clone(), of_jobs);
    let queues = queues::Queues::new(context.bus.clone(), &settings);
    tasks.spawn(measure(queues.clone(), index.clone(), context.stop.clone()).map(Ok));
    let checks = (jobs, environments, queues);
    let intake = enqueue::Intake::new(context.bus.clone(), store, estimator, checks);
    for priority in Priority::ALL {
        tasks.spawn(requests::serve(context.clone(), intake.clone(), priority));
    }
    tasks.spawn(repeats::watch(context.clone(), published, intake.clone()));
    let api = api::start(&context, index, intake, settings.emergency_workspaces).await?;
    context.ready(Ready::default()).await?;
    tokio::select! {
        // Checked first: on a stop the loops end as well, and that is not a failure.
        biased;
        () = context.stop.cancelled() => {}
        Some(ended) = tasks.join_next() => {
            ended.map_err(|error| ServiceError::failed("a request loop", error))??;
            return Err(ServiceError::failed("the enqueuer", "a request loop ended unexpectedly"));
        }
    }
    api.drain().await;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a request loop", error))??;
    }
    Ok(())
}

/// Measures queues until the service stops.
async fn measure(queues: queues::Queues, index: Index, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = queues.measure(index) => {}
    }
}
