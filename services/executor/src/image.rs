//! The images that actions run in.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bus::{Bus, EnvironmentChanged};
use cas::Cas;
use images::{Image, ImageError, Images, PullProgress};
use model::{ActionKey, Claimed, Environment, Execution, ImageReference};
use policy::actions::{has_images_of_services, image_demand, image_key};
use service::{Context, ServiceError};
use settings::ExecutorSettings;
use telemetry::metrics::{Histogram, observe};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    needed_images::{ActionImages, NeededImages},
    outcome::Fault,
    shared::Shared,
    spec::Spec,
};

/// Time after which environments are looked at again if none changed.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// Opens the images of this machine; `None` if the settings allow none.
pub(crate) async fn open(
    context: &Context,
    settings: &ExecutorSettings,
    cas: &Cas,
) -> Result<Option<Images>, ServiceError> {
    let Some(of_images) = settings.images.clone() else { return Ok(None) };
    let folder = context.data_folder(::images::FOLDER)?;
    let (prefetch, environments) = (of_images.prefetch, of_images.environments.clone());
    let store = context.store_of_images(cas)?;
    let images = ::images::open(folder, of_images, &settings.fetch_hosts, store).await;
    let images = images.map_err(|error| ServiceError::failed("preparing the folder of images", error))?;
    info!(overlays = images.overlays(), "actions may run in images");
    if prefetch {
        // Boxed: its state is large.
        let ahead = Box::pin(fetch_ahead(context.bus.clone(), images.clone(), environments));
        let stop = context.stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(ahead).await });
    }
    images.maintain_until(context.stop.clone().cancelled_owned());
    Ok(Some(images))
}

/// Fetches the images of environments before actions ask for them: those of the settings, and what the newest versions of those of the
/// farm are from now on.
async fn fetch_ahead(bus: Bus, images: Images, of_settings: BTreeMap<String, ImageReference>) {
    for (name, image) in &of_settings {
        fetch(&images, name, image).await;
    }
    let mut fetched = HashSet::new();
    loop {
        // First, so that no change is missed.
        let changes = bus.buckets().changes::<EnvironmentChanged>().await;
        let environments = bus.buckets().all::<Environment>().await.unwrap_or_else(|error| {
            let error = telemetry::error_chain(&error);
            warn!(error, "cannot read the environments to fetch their images, retrying");
            BTreeMap::new()
        });
        for environment in environments.values() {
            if let Some((_, image)) = environment.current()
                && !fetched.contains(image)
                && fetch(&images, &environment.name.to_string(), image).await
            {
                fetched.insert(image.clone());
            }
        }
        let next = async {
            match changes {
                Ok(mut changes) => drop(changes.next().await),
                Err(_) => std::future::pending().await,
            }
        };
        // A change may be lost with the connection.
        let _ = tokio::time::timeout(LOOK_AGAIN, next).await;
    }
}

/// Fetches an image. Returns whether it is here.
async fn fetch(images: &Images, name: &str, image: &ImageReference) -> bool {
    let fetching = async { images.get(&images.pin(image).await?, &PullProgress::default()).await };
    match fetching.await {
        Ok(_) => {
            info!(name, %image, "fetched the image of an environment");
            true
        }
        Err(error) => {
            let error = telemetry::error_chain(&error);
            warn!(name, %image, error, "cannot fetch the image of an environment");
            false
        }
    }
}

/// Whether the images of a claimed action are here.
pub(crate) fn needed(shared: &Shared, claimed: &Claimed) -> NeededImages {
    let execution = &claimed.record.execution;
    let Some(demand) = image_demand(execution) else { return NeededImages::Here(ActionImages::default()) };
    let of_services = demand.image.is_none();
    let own = shared.images.as_ref().zip(execution.image.as_ref()).filter(|_| !of_services);
    if let Some(image) = own.and_then(|(images, pinned)| images.in_use(pinned)) {
        return NeededImages::Here(ActionImages { own: Some(image), ..ActionImages::default() });
    }
    let unpacked = own.is_some_and(|(images, pinned)| images.has_unpacked(pinned));
    NeededImages::Missing { demand, unpacked }
}

/// The images of an execution and of its services, fetched and unpacked.
pub(crate) async fn all(
    shared: &Shared,
    execution: &Execution,
    progress: &PullProgress,
) -> Result<ActionImages, Fault> {
    let mut all = ActionImages { own: get(shared, execution, progress).await?, ..ActionImages::default() };
    if has_images_of_services(&execution.requirements) {
        let spec = Spec::read(&shared.cas, execution, &shared.settings.pool_properties).await?;
        for reference in spec.services.iter().filter_map(|service| service.image.as_ref()) {
            if !all.services.contains_key(reference) {
                all.services.insert(reference.clone(), named(shared, reference, progress).await?);
            }
        }
    }
    Ok(all)
}

/// Reports other images as soon as they are unpacked, or removed, until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let Some(images) = &shared.images else { return std::future::pending().await };
    let mut changes = images.changes();
    while changes.changed().await.is_ok() {
        // Schedulers prefer executors that have an image, and the lease names it.
        shared.actions.announce.notify_one();
        shared.changed.notify_one();
    }
    Ok(())
}

/// The keys of the images that are unpacked here, for heartbeats.
pub(crate) fn keys(shared: &Shared) -> Vec<ActionKey> {
    let unpacked = shared.images.as_ref().map(Images::unpacked).unwrap_or_default();
    unpacked.iter().map(|image| image_key(&image.manifest)).collect()
}

/// The names of these images.
pub(crate) fn names(shared: &Shared) -> Vec<ImageReference> {
    let unpacked = shared.images.as_ref().map(Images::unpacked).unwrap_or_default();
    unpacked.into_iter().map(|image| image.reference).collect()
}

/// The image of an execution, fetched and unpacked; `None` if its command sees the files of the machine.
async fn get(
    shared: &Shared,
    execution: &Execution,
    progress: &PullProgress,
) -> Result<Option<Arc<Image>>, Fault> {
    let Some(pinned) = &execution.image else { return Ok(None) };
    let Some(images) = &shared.images else {
        // Schedulers do not send it here.
        return Err(Fault::precondition("this executor runs no actions in images (images)".to_owned()));
    };
    let begun = Instant::now();
    let was_ready = images.is_ready(pinned);
    let image = images.get(pinned, progress).await.map_err(|error| fault(&pinned.reference, &error))?;
    if !was_ready {
        observe(Histogram::ImageSeconds, &[], begun.elapsed());
    }
    Ok(Some(image))
}

/// The image with this name, fetched and unpacked.
async fn named(
    shared: &Shared,
    reference: &ImageReference,
    progress: &PullProgress,
) -> Result<Arc<Image>, Fault> {
    let Some(images) = &shared.images else {
        return Err(Fault::precondition("this executor runs no services in images (images)".to_owned()));
    };
    let get = async { images.get(&images.pin(reference).await?, progress).await };
    get.await.map_err(|error| fault(reference, &error))
}

fn fault(image: &ImageReference, error: &ImageError) -> Fault {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    match error {
        ImageError::Denied { .. } | ImageError::NotAllowed { .. } => Fault::denied(message),
        ImageError::Invalid(_) | ImageError::NotFound(_) | ImageError::Gone => Fault::precondition(message),
        ImageError::Unavailable { .. } | ImageError::Store(_) | ImageError::File { .. } => {
            Fault::Machine { reason: message }
        }
    }
}
