//! The images that builds run in.

use std::sync::Arc;

use cas::Cas;
use images::{Image, ImageError, Images, PullProgress};
use model::{Build, ImageReference, Reason, ReasonCode, WorkerProperties};
use policy::{
    actions::{IMAGE_OFFER, IMAGE_PROPERTY, WRITABLE_ROOT},
    requirements::ANY_IMAGE,
};
use service::{Context, ServiceError};
use settings::WorkerSettings;
use tracing::info;

/// The images of this machine, in which builds may run.
pub(crate) struct BuildImages {
    images: Images,
}

/// Why a build cannot have its image.
pub(crate) enum NoImage {
    /// No machine could run it.
    Never(Reason),
    /// Its registry does not answer here; it may answer another machine.
    NotHere(Reason),
    /// This machine is at fault.
    Fault(Reason),
}

impl BuildImages {
    /// Opens the images, if the settings allow them and this machine mounts them; otherwise there would be no folders for
    /// the files of a build.
    pub(crate) async fn open(
        context: &Context,
        settings: &WorkerSettings,
        cas: &Cas,
    ) -> Result<Option<Self>, ServiceError> {
        let Some(of_images) = settings.images.clone() else { return Ok(None) };
        let folder = context.data_folder(images::FOLDER)?;
        let store = context.store_of_images(cas)?;
        let opened = images::open(folder, of_images, &settings.contexts.fetch_hosts, store).await;
        let images = opened.map_err(|error| ServiceError::failed("preparing the folder of images", error))?;
        if !images.overlays() {
            return Ok(None);
        }
        info!("builds may run in images");
        images.maintain_until(context.stop.clone().cancelled_owned());
        Ok(Some(Self { images }))
    }

    /// Adds what builds can ask for to the properties of the worker.
    pub(crate) fn offer(properties: &mut WorkerProperties) {
        for (name, value) in [(IMAGE_PROPERTY, ANY_IMAGE), IMAGE_OFFER, WRITABLE_ROOT] {
            let offered = properties.0.entry(name.to_owned()).or_default();
            if !offered.iter().any(|offer| offer == value) {
                offered.push(value.to_owned());
            }
        }
    }

    /// The image that a build asks for; `None` if it sees the files of the machine. The tasks of a job ask for their own.
    pub(crate) fn asked(build: &Build) -> Option<ImageReference> {
        let required = build.requirements.0.get(IMAGE_PROPERTY).filter(|_| build.job.is_none());
        required.and_then(|image| image.parse().ok())
    }

    /// Fetches and unpacks an image.
    pub(crate) async fn get(
        &self,
        image: &ImageReference,
        progress: &PullProgress,
    ) -> Result<Arc<Image>, NoImage> {
        let get = async { self.images.get(&self.images.pin(image).await?, progress).await };
        get.await.map_err(|error| refusal(image, &error))
    }
}

fn refusal(image: &ImageReference, error: &ImageError) -> NoImage {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    let unavailable = |message| Reason { code: ReasonCode::ContextUnavailable, message };
    match error {
        ImageError::Denied { .. }
        | ImageError::NotAllowed { .. }
        | ImageError::Invalid(_)
        | ImageError::NotFound(_)
        | ImageError::Gone => NoImage::Never(unavailable(message)),
        ImageError::Unavailable { .. } => NoImage::NotHere(unavailable(message)),
        ImageError::Store(_) | ImageError::File { .. } => {
            NoImage::Fault(Reason { code: ReasonCode::WorkerFault, message })
        }
    }
}
