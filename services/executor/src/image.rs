//! The images that actions run in.

use std::{collections::BTreeMap, sync::Arc};

use cas::Cas;
use images::{Image, ImageError, Images, PullProgress};
use model::{Execution, ImageReference};
use service::{Context, ServiceError};
use settings::ExecutorSettings;
use telemetry::metrics::{Histogram, observe};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{outcome::Fault, shared::Shared};

/// Opens the images of this machine; `None` if the settings allow none.
pub(crate) async fn open(
    context: &Context,
    settings: &ExecutorSettings,
    cas: &Cas,
) -> Result<Option<Images>, ServiceError> {
    let Some(of_images) = settings.images.clone() else { return Ok(None) };
    let folder = context.data_folder(::images::FOLDER)?;
    let (prefetch, environments) = (of_images.prefetch, of_images.environments.clone());
    let images = ::images::open(folder, of_images, &settings.fetch_hosts, cas.clone()).await;
    let images = images.map_err(|error| ServiceError::failed("preparing the folder of images", error))?;
    info!(overlays = images.overlays(), "actions may run in images");
    if prefetch {
        tokio::spawn(fetch_ahead(images.clone(), environments, context.stop.clone()));
    }
    images.maintain_until(context.stop.clone().cancelled_owned());
    Ok(Some(images))
}

/// Fetches the images of environments before actions ask for them.
async fn fetch_ahead(
    images: Images,
    environments: BTreeMap<String, ImageReference>,
    stop: CancellationToken,
) {
    for (name, image) in environments {
        let fetch = async { images.get(&images.pin(&image).await?, &PullProgress::default()).await };
        let fetched = tokio::select! {
            () = stop.cancelled() => return,
            fetched = fetch => fetched,
        };
        match fetched {
            Ok(_) => info!(name, %image, "fetched the image of an environment"),
            Err(error) => {
                let error = telemetry::error_chain(&error);
                warn!(name, %image, error, "cannot fetch the image of an environment");
            }
        }
    }
}

/// The image of an execution, fetched and unpacked; `None` if its command sees the files of the machine.
pub(crate) async fn get(
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
pub(crate) async fn named(
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

/// Whether the image of an execution has to be fetched or unpacked first.
pub(crate) fn is_missing(shared: &Shared, execution: &Execution) -> bool {
    let images = shared.images.as_ref().zip(execution.image.as_ref());
    images.is_some_and(|(images, pinned)| !images.is_ready(pinned))
}

fn fault(image: &ImageReference, error: &ImageError) -> Fault {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    match error {
        ImageError::Denied { .. } | ImageError::NotAllowed { .. } => Fault::denied(message),
        ImageError::Invalid(_) | ImageError::NotFound(_) => Fault::precondition(message),
        ImageError::Unavailable { .. } | ImageError::Store(_) | ImageError::File { .. } => {
            Fault::Machine { reason: message }
        }
    }
}

/// The environment of a command in an image: its own variables, then those of the image that it does not set.
pub(crate) fn environment(own: Vec<(String, String)>, image: &Image) -> Vec<(String, String)> {
    let is_set = |name: &str| own.iter().any(|(other, _)| other == name);
    let missing = image.config.env.iter().filter(|(name, _)| !is_set(name));
    let missing: Vec<_> = missing.cloned().collect();
    own.into_iter().chain(missing).collect()
}
