//! Finds out which image a name means, so that all who ask at about the same time get the same one.

use std::{collections::HashMap, fmt, sync::Arc};

use cas::Cas;
use model::{ImageReference, PinnedImage};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};
use tracing::warn;

use crate::{error::ImageError, registry::Registries};

/// Maximum number of names that are remembered.
const KNOWN_MAX: usize = 10_000;

/// The images that names mean, looked up in their registries. Clones share what they know.
#[derive(Clone)]
pub struct ImageNames {
    cas: Cas,
    registries: Registries,
    known: Arc<Mutex<HashMap<ImageReference, Arc<Name>>>>,
}

/// One name. Calls that ask for it at the same time wait for one look-up.
type Name = AsyncMutex<Option<(PinnedImage, Instant)>>;

impl fmt::Debug for ImageNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageNames").field("registries", &self.registries).finish_non_exhaustive()
    }
}

impl ImageNames {
    /// Knows no name yet. Manifests are kept in `cas`.
    pub fn new(cas: Cas, registries: Registries) -> Self {
        Self { cas, registries, known: Arc::default() }
    }

    /// The image that a name means now. A registry that does not answer does not change what a known name means.
    ///
    /// Fails if the settings do not allow the image, or no registry gives its manifest.
    pub async fn pin(&self, image: &ImageReference) -> Result<PinnedImage, ImageError> {
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
            && (image.digest().is_some() || at.elapsed() < self.registries.tag_ttl())
        {
            return Ok(pinned.clone());
        }
        let pinned = match self.registries.pin(image, &self.cas).await {
            Ok(pinned) => pinned,
            Err(error) => match &*known {
                Some((pinned, _)) if !error.is_final() => {
                    warn!(%image, error = telemetry::error_chain(&error), "using what the tag meant before");
                    return Ok(pinned.clone());
                }
                Some(_) | None => return Err(error),
            },
        };
        *known = Some((pinned.clone(), Instant::now()));
        Ok(pinned)
    }
}
