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
}

/// Why a build cannot have its image.
pub(crate) struct NoImage {
    pub(crate) reason: Reason,
    /// Whether no machine could run it.
    pub(crate) is_final: bool,
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
        let (maintained, stop) = (images.clone(), context.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                never = maintained.maintain() => match never {},
            }
        });
        Ok(Some(Self { images, settings: of_images }))
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

    /// The image that a build asks for, if any.
    pub(crate) fn asked(&self, build: &Build) -> Option<ImageReference> {
        let required = |name: &str| build.requirements.0.get(name);
        let named = required(IMAGE_PROPERTY).and_then(|image| image.parse().ok());
        let environment = || self.settings.environment(&build.group, required(ENVIRONMENT)?).cloned();
        named.or_else(environment)
    }

    /// Fetches and unpacks an image.
    pub(crate) async fn get(&self, image: &ImageReference) -> Result<Arc<Image>, NoImage> {
        let get = async { self.images.get(&self.images.pin(image).await?, &PullProgress::default()).await };
        get.await.map_err(|error| refusal(image, &error))
    }
}

fn refusal(image: &ImageReference, error: &ImageError) -> NoImage {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    let is_final = match error {
        ImageError::Denied { .. }
        | ImageError::NotAllowed { .. }
        | ImageError::Invalid(_)
        | ImageError::NotFound(_) => true,
        ImageError::Unavailable { .. } | ImageError::Store(_) | ImageError::File { .. } => false,
    };
    let code = if is_final { ReasonCode::ContextUnavailable } else { ReasonCode::WorkerFault };
    NoImage { reason: Reason { code, message }, is_final }
}

/// The variables of a build in an image: the search path of the image after `programs`, and what else the image sets and
/// the build does not.
pub(crate) fn put_variables(all: &mut Vec<(String, String)>, image: &Image, asked: &Build, programs: &str) {
    for (name, value) in &image.config.env {
        let value = if name == PATH { format!("{programs}:{value}") } else { value.clone() };
        if asked.env.contains_key(name) {
            continue;
        }
        match all.iter_mut().find(|(other, _)| other == name) {
            Some((_, own)) if name == PATH => *own = value,
            // What the worker sets is about the workspace.
            Some(_) => {}
            None => all.push((name.clone(), value)),
        }
    }
}

const PATH: &str = "PATH";
