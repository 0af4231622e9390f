use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use model::{Group, ImageReference};
use serde::{Deserialize, Serialize};

use crate::{Settings, SettingsError, check::invalid};

/// What is special about a registry of images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistrySettings {
    /// URLs of servers that are asked before the registry, with the same paths.
    pub mirrors: Vec<String>,
    /// Whether it is reached without TLS.
    pub plain_http: bool,
    /// Name by which the farm identifies itself; empty for none.
    pub username: String,
    /// File with its password.
    pub password_file: PathBuf,
}

/// Where images come from, and how much of the disk they take.
#[derive(Debug, Clone)]
pub struct ImageSettings {
    /// Repositories from which images may be read; empty for all.
    pub repositories: Vec<String>,
    /// Images by name, or by group and name.
    pub environments: BTreeMap<String, ImageReference>,
    /// Whether executors fetch them when they start.
    pub prefetch: bool,
    /// Registries that need more than their name, by host.
    pub registries: BTreeMap<String, RegistrySettings>,
    pub bytes_max: u64,
    /// How long a tag that was looked up stands for the same content.
    pub tag_ttl: Duration,
}

impl ImageSettings {
    /// The images of the environments of a name that a group has, and that all have.
    pub fn environment(&self, group: &Group, name: &str) -> [Option<&ImageReference>; 2] {
        let shared = self.environments.get(name).filter(|_| !name.contains('/'));
        [self.environments.get(&format!("{group}/{name}")), shared]
    }
}

/// Whether a text can name an environment, for all groups or for one.
fn is_environment(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let mut parts = text.split('/');
    parts.clone().count() <= 2 && parts.all(|part| !part.is_empty() && part.bytes().all(is_known))
}

impl Settings {
    pub(super) fn image_settings(&self) -> ImageSettings {
        ImageSettings {
            repositories: self.image_repositories.clone(),
            environments: self
                .environments
                .iter()
                .filter_map(|(name, image)| Some((name.clone(), image.parse().ok()?)))
                .collect(),
            prefetch: self.prefetch_images,
            registries: self.registries.clone(),
            bytes_max: self.image_bytes_max,
            tag_ttl: Duration::from_secs(self.image_tag_seconds),
        }
    }

    pub(crate) fn check_images(&self) -> Result<(), SettingsError> {
        for repository in &self.image_repositories {
            if repository.contains("://")
                || repository.ends_with('/')
                || !repository.contains(['.', ':', '/'])
            {
                let wanted = "expected HOST/REPOSITORY or HOST, without a scheme, such as docker.io/library";
                return Err(invalid("image_repositories", repository, wanted));
            }
        }
        for (name, image) in &self.environments {
            if !is_environment(name) {
                let wanted = "expected NAME or GROUP/NAME of letters, digits, dots, hyphens and underscores";
                return Err(invalid("environments", name, wanted));
            }
            if let Err(error) = image.parse::<ImageReference>() {
                return Err(invalid("environments", &format!("{image} for {name}"), &error.to_string()));
            }
        }
        for (host, registry) in &self.registries {
            if host.contains('/') {
                return Err(invalid(
                    "registries",
                    host,
                    "expected a host, with its port if needed, such as ghcr.io",
                ));
            }
            let is_url = |mirror: &&String| mirror.starts_with("http://") || mirror.starts_with("https://");
            if let Some(mirror) = registry.mirrors.iter().find(|mirror| !is_url(mirror)) {
                let wanted = "expected mirrors as URLs that begin with https:// or http://";
                return Err(invalid("registries", &format!("{mirror} of {host}"), wanted));
            }
            let has_file = registry.password_file != Path::new("");
            if has_file == registry.username.is_empty() {
                let wanted = "expected both username and password_file, or neither";
                return Err(invalid("registries", host, wanted));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Settings)) -> Result<ImageSettings, String> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check_images().map_err(|error| error.to_string())?;
        Ok(settings.image_settings())
    }

    #[test]
    fn a_group_has_its_environments_and_those_of_all() {
        let images = checked(|settings| {
            settings.environments =
                [("gcc", "docker://a.b/all"), ("g/gcc", "docker://a.b/own"), ("h/only", "docker://a.b/h")]
                    .map(|(name, image)| (name.to_owned(), image.to_owned()))
                    .into();
        })
        .unwrap();
        let of = |group: &str, name: &str| {
            let found = images.environment(&group.parse().unwrap(), name);
            found.map(|image| image.map(ImageReference::repository))
        };
        assert_eq!([of("g", "gcc"), of("x", "gcc")], [[Some("own"), Some("all")], [None, Some("all")]]);
        assert_eq!([of("x", "only"), of("x", "h/only"), of("x", "none")], [[None, None]; 3]);
    }

    #[test]
    fn settings_of_images_that_mean_nothing_are_refused() {
        let registry = |change: fn(&mut RegistrySettings)| {
            let mut registry = RegistrySettings::default();
            change(&mut registry);
            checked(move |settings| settings.registries = [("a.b".to_owned(), registry)].into()).unwrap_err()
        };
        for (error, expected) in [
            (registry(|it| it.mirrors = vec!["mirror".into()]), "mirrors as URLs"),
            (registry(|it| it.username = "x".into()), "both username and password_file"),
            (registry(|it| it.password_file = "/x".into()), "both username and password_file"),
            (
                checked(|it| it.image_repositories = vec!["https://a.b/c".into()]).unwrap_err(),
                "without a scheme",
            ),
            (
                checked(|it| it.environments = [("x".into(), "gcc".into())].into()).unwrap_err(),
                "docker://HOST",
            ),
            (
                checked(|it| it.environments = [("a/b/c".into(), "docker://a.b/c".into())].into())
                    .unwrap_err(),
                "NAME or GROUP/NAME",
            ),
            (
                checked(|it| it.registries = [("a/b".into(), RegistrySettings::default())].into())
                    .unwrap_err(),
                "expected a host",
            ),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn times_and_sizes_of_images_reach_their_part() {
        let images =
            checked(|settings| (settings.image_bytes_max, settings.image_tag_seconds) = (5023, 5039))
                .unwrap();
        assert_eq!((images.bytes_max, images.tag_ttl), (5023, Duration::from_secs(5039)));
    }
}
