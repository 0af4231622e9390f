//! The images that names of environments mean.

use std::collections::BTreeMap;

use bus::{Bus, BusError};
use model::{AskedEnvironment, Environment, EnvironmentName, Group, ImageReference};
use policy::environments::{self, NoEnvironment};
use settings::ImageSettings;

/// Finds the images of environments, in the settings and among those that the farm stores. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Environments {
    bus: Bus,
    settings: ImageSettings,
}

/// Why an environment has no image.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(transparent)]
    None(#[from] NoEnvironment),
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl Environments {
    /// Reads those of the farm from `bus`.
    pub fn new(bus: Bus, settings: ImageSettings) -> Self {
        Self { bus, settings }
    }

    /// The image that a value of the property `env` means for a group: an environment of the group before one of all, and
    /// one of the settings before one of the farm. `None` if there is no such environment.
    ///
    /// # Errors
    ///
    /// Fails if the environment or the version has no image that is ready, or if the bus does not answer.
    pub async fn image(&self, group: &Group, text: &str) -> Result<Option<ImageReference>, EnvironmentError> {
        // Its own may also be named as `forebay env list` does.
        let text = text.strip_prefix(&format!("{group}/")).unwrap_or(text);
        let Some(asked) = AskedEnvironment::parse(text) else { return Ok(None) };
        let [own, shared] = self.settings.environment(group, text);
        let stored = EnvironmentName::candidates(group, asked.name);
        let [stored_own, stored_shared] =
            stored.map(|[own, shared]| [Some(own), Some(shared)]).unwrap_or_default();
        for (of_settings, name) in [(own, stored_own), (shared, stored_shared)] {
            if let Some(image) = of_settings {
                return Ok(Some(image.clone()));
            }
            let Some(name) = name else { continue };
            let (_, found) = self.bus.buckets().get::<Environment>(&name).await?;
            if let Some(found) = found.filter(|found| !found.versions.is_empty()) {
                return Ok(Some(environments::image(&found, &asked)?.clone()));
            }
        }
        Ok(None)
    }

    /// The images of those of the `names` that are environments, by name, as [`Environments::image`] finds them.
    ///
    /// # Errors
    ///
    /// Fails if one of them has no image that is ready, or if the bus does not answer.
    pub async fn images<'a>(
        &self,
        group: &Group,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, ImageReference>, EnvironmentError> {
        let mut found = BTreeMap::new();
        for name in names {
            if !found.contains_key(name)
                && let Some(image) = self.image(group, name).await?
            {
                found.insert(name.to_owned(), image);
            }
        }
        Ok(found)
    }
}
