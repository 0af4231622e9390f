//! Puts the digests of images into an action in place of names, so that it runs in the same image on every executor.

use ::images::ImageError;
use model::{BlobDigest, Group, ImageReference, PinnedImage, ServiceRequest};
use policy::actions::{
    InvalidNeed, asked_environments, asked_image, asked_services, with_environments, with_image,
    with_services,
};
use prost::Message as _;
use reapi::{
    execution::{Action, Platform, platform::Property},
    status,
};
use service::EnvironmentError;
use tonic::{Code, Status};

use super::{Core, RETRY, faults};

/// An action with its image, if it asks for one.
pub(crate) struct WithImage {
    pub(crate) digest: BlobDigest,
    pub(crate) action: Action,
    pub(crate) image: Option<PinnedImage>,
}

/// Finds the images that an action with these platform properties, and its services, ask for. If a tag or the name of an
/// environment means one, the result is another action, which names it by digest: results are cached for that action, and a
/// moved tag never gives the result of an older image.
pub(crate) async fn with_pinned_image(
    core: &Core,
    group: &Group,
    (digest, action): (BlobDigest, Action),
    platform: Vec<(String, String)>,
) -> Result<WithImage, Status> {
    let invalid = |error: InvalidNeed| Status::invalid_argument(error.to_string());
    let environments = core.environments.images(group, asked_environments(&platform)).await;
    let environments = environments.map_err(|error| of_environment(&error))?;
    let mut pinned_platform = with_environments(&platform, |name| environments.get(name).cloned());
    let named = pinned_platform.as_ref().unwrap_or(&platform);
    let image = match asked_image(named).map_err(invalid)? {
        None => None,
        Some(asked) => {
            let pinned = core.images.pin(&asked).await.map_err(|error| refusal(&asked, &error))?;
            if asked.digest().is_none() {
                pinned_platform = Some(with_image(named, &pinned.reference));
            }
            Some(pinned)
        }
    };
    let services = asked_services(&platform).map_err(invalid)?;
    if let Some(services) = with_pinned_images(core, group, &services).await? {
        let named = pinned_platform.as_ref().unwrap_or(&platform);
        pinned_platform = Some(with_services(named, &services));
    }
    let Some(platform) = pinned_platform else { return Ok(WithImage { digest, action, image }) };
    let properties = platform.into_iter().map(|(name, value)| Property { name, value }).collect();
    let action = Action { platform: Some(Platform { properties }), ..action };
    let content = action.encode_to_vec();
    let digest = core.cas.put_bytes(digest.function, content.into()).await;
    let digest = digest.map_err(|error| faults::store(&error))?;
    Ok(WithImage { digest, action, image })
}

/// The same services with images by digest; `None` if they have no other images.
async fn with_pinned_images(
    core: &Core,
    group: &Group,
    services: &[ServiceRequest],
) -> Result<Option<Vec<ServiceRequest>>, Status> {
    let mut changed = services.to_vec();
    for service in &mut changed {
        if let Some(name) = service.environment.take() {
            let image = core.environments.image(group, &name).await;
            let image = image.map_err(|error| of_environment(&error))?;
            service.image = Some(image.ok_or_else(|| {
                let message =
                    format!("the service {} asks for the environment {name}, which is unknown", service.name);
                Status::failed_precondition(message)
            })?);
        }
        if let Some(asked) = &service.image {
            let pinned = core.images.pin(asked).await.map_err(|error| refusal(asked, &error))?;
            service.image = Some(pinned.reference);
        }
    }
    Ok((changed != services).then_some(changed))
}

fn of_environment(error: &EnvironmentError) -> Status {
    match error {
        EnvironmentError::None(none) => Status::failed_precondition(none.to_string()),
        EnvironmentError::Bus(error) => {
            status::retry(Code::Unavailable, telemetry::error_chain(error), RETRY)
        }
    }
}

fn refusal(image: &ImageReference, error: &ImageError) -> Status {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    match error {
        ImageError::Invalid(_) | ImageError::NotFound(_) | ImageError::Gone => {
            Status::failed_precondition(message)
        }
        ImageError::Denied { .. } | ImageError::NotAllowed { .. } => Status::permission_denied(message),
        ImageError::Unavailable { retry_after, .. } => {
            status::registry_unavailable(message, retry_after.unwrap_or(RETRY))
        }
        ImageError::Store(_) | ImageError::File { .. } => status::retry(Code::Unavailable, message, RETRY),
    }
}
