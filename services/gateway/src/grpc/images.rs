//! Finds out which image a name means, so that an action runs in the same image on every executor.

use std::{collections::HashMap, sync::Arc};

use ::images::{ImageError, Registries};
use cas::Cas;
use download::{DownloadError, Downloader};
use model::{BlobDigest, Group, ImageReference, PinnedImage};
use parking_lot::Mutex;
use policy::actions::{InvalidNeed, asked_image, with_environments, with_image};
use prost::Message as _;
use reapi::{
    execution::{Action, Platform, platform::Property},
    status,
};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};
use tonic::{Code, Status};
use tracing::warn;

use super::{Core, RETRY, config::GrpcConfig, faults};

/// Maximum number of names that are remembered.
const KNOWN_MAX: usize = 10_000;

/// The images that names mean, looked up in their registries. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ImageNames {
    cas: Cas,
    registries: Registries,
    tag_ttl: std::time::Duration,
    known: Arc<Mutex<HashMap<ImageReference, Arc<Name>>>>,
}

/// One name. Calls that ask for it at the same time wait for one look-up.
type Name = AsyncMutex<Option<(PinnedImage, Instant)>>;

impl std::fmt::Debug for ImageNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageNames").field("registries", &self.registries).finish_non_exhaustive()
    }
}

impl ImageNames {
    pub(crate) fn new(cas: Cas, config: &GrpcConfig) -> Result<Self, DownloadError> {
        let downloader = Downloader::new(config.fetch_reach.clone())?;
        let registries = Registries::new(config.images.clone(), downloader);
        Ok(Self { cas, registries, tag_ttl: config.images.tag_ttl, known: Arc::default() })
    }

    /// The image that a name means now. A registry that does not answer does not change what a known name means.
    async fn pin(&self, image: &ImageReference) -> Result<PinnedImage, ImageError> {
        self.registries.check_allowed(image)?;
        let name = {
            let mut known = self.known.lock();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            Arc::clone(known.entry(image.clone()).or_default())
        };
        let mut known = name.lock().await;
        if let Some((pinned, at)) = &*known
            && (image.digest().is_some() || at.elapsed() < self.tag_ttl)
        {
            return Ok(pinned.clone());
        }
        let manifest = match self.manifest(image).await {
            Ok(manifest) => manifest,
            Err(error) => match &*known {
                Some((pinned, _)) if !error.is_final() => {
                    warn!(%image, error = telemetry::error_chain(&error), "using what the tag meant before");
                    return Ok(pinned.clone());
                }
                Some(_) | None => return Err(error),
            },
        };
        let pinned = PinnedImage { reference: image.pinned(model::Digest::of_blob(&manifest)), manifest };
        *known = Some((pinned.clone(), Instant::now()));
        Ok(pinned)
    }

    async fn manifest(&self, image: &ImageReference) -> Result<BlobDigest, ImageError> {
        if let Some(digest) = image.digest()
            && let Ok(blob) = self.cas.resolve(digest, None).await
        {
            return Ok(blob);
        }
        self.registries.manifest(image, &self.cas).await
    }
}

/// An action with its image, if it asks for one.
pub(crate) struct WithImage {
    pub(crate) digest: BlobDigest,
    pub(crate) action: Action,
    pub(crate) image: Option<PinnedImage>,
}

/// Finds the image that an action with these platform properties asks for. If a tag names it, the result is another action,
/// which names it by digest: results are cached for that action, and a moved tag never gives the result of an older image.
pub(crate) async fn with_pinned_image(
    core: &Core,
    group: &Group,
    (digest, action): (BlobDigest, Action),
    platform: Vec<(String, String)>,
) -> Result<WithImage, Status> {
    let find = |name: &str| core.config.images.environment(group, name).cloned();
    let named = with_environments(&platform, find);
    let is_named = named.is_some();
    let platform = named.unwrap_or(platform);
    let invalid = |error: InvalidNeed| Status::invalid_argument(error.to_string());
    let Some(asked) = asked_image(&platform).map_err(invalid)? else {
        return Ok(WithImage { digest, action, image: None });
    };
    let pinned = core.images.pin(&asked).await.map_err(|error| refusal(&asked, &error))?;
    if asked.digest().is_some() && !is_named {
        return Ok(WithImage { digest, action, image: Some(pinned) });
    }
    let properties = with_image(&platform, &pinned.reference).into_iter();
    let properties = properties.map(|(name, value)| Property { name, value }).collect();
    let action = Action { platform: Some(Platform { properties }), ..action };
    let content = action.encode_to_vec();
    let digest = core.cas.put_bytes(digest.function, content.into()).await;
    let digest = digest.map_err(|error| faults::store(&error))?;
    Ok(WithImage { digest, action, image: Some(pinned) })
}

fn refusal(image: &ImageReference, error: &ImageError) -> Status {
    let message = format!("the image {image} cannot be used: {}", telemetry::error_chain(error));
    match error {
        ImageError::Invalid(_) | ImageError::NotFound(_) => Status::failed_precondition(message),
        ImageError::Denied { .. } | ImageError::NotAllowed { .. } => Status::permission_denied(message),
        ImageError::Unavailable { retry_after, .. } => {
            status::retry(Code::Unavailable, message, retry_after.unwrap_or(RETRY))
        }
        ImageError::Store(_) | ImageError::File { .. } => status::retry(Code::Unavailable, message, RETRY),
    }
}
