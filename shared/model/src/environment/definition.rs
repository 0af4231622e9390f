//! Definitions of environments: a recipe that a build follows, or an image that exists.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BlobDigest, ImageReference};

/// Limits of a definition: it is kept in a message with its other versions.
const PACKAGES_MAX: usize = 500;
const RUN_MAX: usize = 50;
const TEXT_MAX: usize = 4096;
const DEFINITION_BYTES_MAX: usize = 16 << 10;

/// How the image of a version is made, or where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Fields", into = "Fields")]
#[schemars(with = "Fields")]
pub enum EnvironmentDefinition {
    /// A build makes it.
    Recipe(EnvironmentRecipe),
    /// It is in a registry.
    Image(ImageReference),
    /// It is in the farm's store, in which this is its manifest.
    Stored(BlobDigest),
}

/// What a build puts into an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRecipe {
    pub base: EnvironmentBase,
    /// Packages to install, by the names of the base's package manager.
    pub packages: Vec<String>,
    /// Shell commands to run in the image after that, as its user 0.
    pub run: Vec<String>,
    /// Variables of the image, in addition to those of the base.
    pub env: BTreeMap<String, String>,
    /// Program and arguments of a service that runs the image without a command.
    pub command: Vec<String>,
}

/// What an image begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentBase {
    /// A release of Debian, from a mirror; `None`: the mirror that mmdebstrap uses without one.
    Debian { release: String, mirror: Option<String> },
    /// An image of a registry.
    Image(ImageReference),
}

/// Definition of an environment, as authors write it: exactly one of `debian`, `base`, `image` and `manifest`. With `debian` or `base`, a
/// build makes the image.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EnvironmentDefinition")]
struct Fields {
    /// Release of Debian that it begins with, such as `bookworm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    debian: Option<String>,
    /// Mirror from which packages of `debian` come. Default: that of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    mirror: Option<String>,
    /// Image of a registry that it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<ImageReference>,
    /// Packages to install: at most 500.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packages: Vec<String>,
    /// Shell commands to run in the image after that, as its user 0: at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    run: Vec<String>,
    /// Variables of the image, in addition to those of its base.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    /// Program and arguments of a service that runs the image without a command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    /// Image of a registry to use as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageReference>,
    /// Manifest of an image in the farm's store, `HASH/SIZE`, to use as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<BlobDigest>,
}

impl TryFrom<Fields> for EnvironmentDefinition {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        let bytes = serde_json::to_string(&fields).map_or(usize::MAX, |json| json.len());
        if bytes > DEFINITION_BYTES_MAX {
            return Err(format!(
                "the definition has {bytes} bytes as JSON, the limit is {DEFINITION_BYTES_MAX}: put long texts into a package or base image"
            ));
        }
        let Fields { debian, mirror, base, packages, run, env, command, image, manifest } = fields;
        let base = match (debian, base, image, manifest) {
            (Some(release), None, None, None) => {
                check_release(&release, mirror.as_deref())?;
                EnvironmentBase::Debian { release, mirror }
            }
            (None, Some(_) | None, _, _) if mirror.is_some() => {
                return Err("mirror is only for debian".to_owned());
            }
            (None, Some(base), None, None) => EnvironmentBase::Image(base),
            (None, None, image, manifest) if image.is_some() != manifest.is_some() => {
                if !(packages.is_empty() && run.is_empty() && env.is_empty() && command.is_empty()) {
                    return Err("packages, run, env and command need debian or base".to_owned());
                }
                return match (image, manifest) {
                    (Some(image), _) => Ok(Self::Image(image)),
                    (None, Some(manifest)) => Ok(Self::Stored(manifest)),
                    (None, None) => Err(one_of()),
                };
            }
            (_, _, _, _) => return Err(one_of()),
        };
        let recipe = EnvironmentRecipe { base, packages, run, env, command };
        recipe.check()?;
        Ok(Self::Recipe(recipe))
    }
}

fn one_of() -> String {
    "expected exactly one of debian, base, image and manifest".to_owned()
}

fn check_release(release: &str, mirror: Option<&str>) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if release.is_empty() || release.starts_with('-') || !release.bytes().all(is_word) {
        return Err(format!("invalid release of Debian {release:?}: expected a name such as bookworm"));
    }
    let is_url = |mirror: &str| {
        let is_web = mirror.starts_with("http://") || mirror.starts_with("https://");
        is_web && !mirror.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    };
    match mirror {
        Some(mirror) if !is_url(mirror) => {
            Err(format!("invalid mirror {mirror:?}: expected a URL that begins with http:// or https://"))
        }
        Some(_) | None => Ok(()),
    }
}

impl EnvironmentRecipe {
    fn check(&self) -> Result<(), String> {
        let bad = self.packages.iter().find(|package| !is_package(package));
        if let Some(package) = bad {
            return Err(format!(
                "invalid package {package:?}: expected a name of letters, digits and + - . : = ~, with a letter or digit first"
            ));
        }
        if self.packages.len() > PACKAGES_MAX || self.run.len() > RUN_MAX {
            return Err(format!("expected at most {PACKAGES_MAX} packages and {RUN_MAX} commands to run"));
        }
        if let Some(name) = self.env.keys().find(|name| !is_variable(name)) {
            return Err(format!("invalid variable {name:?}: expected letters, digits and underscores"));
        }
        for text in self.run.iter().chain(self.env.values()).chain(&self.command) {
            if text.len() > TEXT_MAX || text.contains('\0') {
                return Err(format!(
                    "a command or value is invalid: expected at most {TEXT_MAX} bytes without NUL, put longer ones into a \
                     package or base image"
                ));
            }
        }
        Ok(())
    }
}

/// Whether a text is the name of a package, perhaps with a version or architecture, and not an option.
fn is_package(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.:=~_".contains(&byte);
    text.len() <= 200
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(is_known)
}

fn is_variable(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.len() <= 200
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && name.bytes().all(is_known)
}

impl From<EnvironmentDefinition> for Fields {
    fn from(definition: EnvironmentDefinition) -> Self {
        match definition {
            EnvironmentDefinition::Image(image) => Self { image: Some(image), ..Self::default() },
            EnvironmentDefinition::Stored(manifest) => Self { manifest: Some(manifest), ..Self::default() },
            EnvironmentDefinition::Recipe(EnvironmentRecipe { base, packages, run, env, command }) => {
                let recipe = Self { packages, run, env, command, ..Self::default() };
                match base {
                    EnvironmentBase::Debian { release, mirror } => {
                        Self { debian: Some(release), mirror, ..recipe }
                    }
                    EnvironmentBase::Image(image) => Self { base: Some(image), ..recipe },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<EnvironmentDefinition, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_definition_stays_the_same_when_it_is_stored() {
        for json in [
            r#"{"debian":"bookworm","packages":["gcc-11","g++"],"run":["ln -s a b"],"env":{"A":"b"}}"#,
            r#"{"base":"docker://a.b/c:1","command":["serve"]}"#,
            r#"{"image":"docker://a.b/c:1"}"#,
            r#"{"debian":"sid","mirror":"http://m/debian"}"#,
        ] {
            let definition = read(json).unwrap();
            assert_eq!(serde_json::to_string(&definition).unwrap(), json);
        }
    }

    #[test]
    fn what_is_no_definition_is_refused_with_what_was_expected() {
        for (json, expected) in [
            ("{}", "exactly one of"),
            (r#"{"debian":"bookworm","base":"docker://a.b/c"}"#, "exactly one of"),
            (r#"{"image":"docker://a.b/c","packages":["x"]}"#, "need debian or base"),
            (r#"{"base":"docker://a.b/c","mirror":"http://m"}"#, "mirror is only for debian"),
            (r#"{"debian":"bookworm; rm"}"#, "release of Debian"),
            (r#"{"debian":"--help"}"#, "release of Debian"),
            (r#"{"debian":"bookworm","mirror":"file:///etc"}"#, "invalid mirror"),
            (r#"{"debian":"bookworm","packages":["--force"]}"#, "invalid package"),
            (r#"{"debian":"bookworm","packages":["a,b"]}"#, "invalid package"),
            (r#"{"debian":"bookworm","env":{"A=B":"c"}}"#, "invalid variable"),
            (r#"{"debain":"bookworm"}"#, "unknown field"),
            (&format!(r#"{{"debian":"{}"}}"#, "b".repeat(17_000)), "bytes as JSON"),
            (&format!(r#"{{"debian":"b","run":["{}"]}}"#, "\\u0001".repeat(3000)), "bytes as JSON"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
