//! The images that builds run in.

use std::sync::Arc;

use cas::Cas;
use images::{Image, ImageError, Images, PullProgress};
use model::{Build, ImageReference, Reason, ReasonCode, WorkerProperties};
use policy::{actions::IMAGE_PROPERTY, requirements::ANY_IMAGE};
use service::{Context, ServiceError};
use settings::{ImageSettings, WorkerSettings};
use tracing::info;

/// Requirement that names an environment, which has an image.
const ENVIRONMENT: &str = "env";

/// The images of this machine, in which builds may run.
pub(crate) struct BuildImages {
    images: Images,
    settings: ImageSettings,
    /// The environments that the properties of the worker offer, which are no images.
    own_environments: Vec<String>,
}

/// What a build asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AskedImage {
    /// The files of the machine.
    None,
    Image(ImageReference),
    /// An environment that only other groups have.
    NotForGroup(String),
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
        let opened =
            images::open(folder, of_images.clone(), &settings.contexts.fetch_hosts, cas.clone()).await;
        let images = opened.map_err(|error| ServiceError::failed("preparing the folder of images", error))?;
        if !images.overlays() {
            return Ok(None);
        }
        info!("builds may run in images");
        images.maintain_until(context.stop.clone().cancelled_owned());
        let own_environments = settings.properties.0.get(ENVIRONMENT).cloned().unwrap_or_default();
        Ok(Some(Self { images, settings: of_images, own_environments }))
    }

    /// Adds what builds can ask for to the properties of the worker.
    pub(crate) fn offer(&self, properties: &mut WorkerProperties) {
        let names = self.settings.environments.keys();
        let names = names.filter_map(|name| name.rsplit('/').next()).map(str::to_owned);
        let mut add = |property: &str, values: Vec<String>| {
            let offered = properties.0.entry(property.to_owned()).or_default();
            for value in values {
                if !offered.contains(&value) {
                    offered.push(value);
                }
            }
        };
        add(IMAGE_PROPERTY, vec![ANY_IMAGE.to_owned()]);
        let names: Vec<String> = names.collect();
        if !names.is_empty() {
            add(ENVIRONMENT, names);
        }
    }

    /// The image that a build asks for. The tasks of a job ask for their own.
    pub(crate) fn asked(&self, build: &Build) -> AskedImage {
        if build.job.is_some() {
            return AskedImage::None;
        }
        let required = |name: &str| build.requirements.0.get(name);
        if let Some(image) = required(IMAGE_PROPERTY).and_then(|image| image.parse().ok()) {
            return AskedImage::Image(image);
        }
        let Some(name) = required(ENVIRONMENT) else { return AskedImage::None };
        match self.settings.environment(&build.group, name) {
            Some(image) => AskedImage::Image(image.clone()),
            None if self.own_environments.contains(name) => AskedImage::None,
            None => AskedImage::NotForGroup(name.clone()),
        }
    }

    /// Fetches and unpacks an image.
    pub(crate) async fn get(&self, image: &ImageReference) -> Result<Arc<Image>, NoImage> {
        let get = async { self.images.get(&self.images.pin(image).await?, &PullProgress::default()).await };
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
        | ImageError::NotFound(_) => NoImage::Never(unavailable(message)),
        ImageError::Unavailable { .. } => NoImage::NotHere(unavailable(message)),
        ImageError::Store(_) | ImageError::File { .. } => {
            NoImage::Fault(Reason { code: ReasonCode::WorkerFault, message })
        }
    }
}

/// The reason of a build that asks for an environment of other groups.
pub(crate) fn not_for_group(name: &str, build: &Build) -> Reason {
    let message = format!(
        "the environment {name} is not for the group {}: name another one (env), or let the setting environments have it \
         for all groups",
        build.group
    );
    Reason { code: ReasonCode::ContextUnavailable, message }
}
