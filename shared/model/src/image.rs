//! Names of container images.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BlobDigest, Digest};

/// The registry of images whose names have no host.
const DOCKER_HUB: &str = "docker.io";
/// The folder of Docker Hub for repositories without one.
const LIBRARY: &str = "library";
/// The tag of images that are named without a tag and digest.
const LATEST: &str = "latest";
/// The registry in the names of images that are only in the farm's store. The domain is reserved for private use (ICANN, 2024).
const FARM: &str = "forebay.internal";
/// Maximum characters of a repository and of a tag (OCI Distribution Specification 1.1, "Pulling manifests").
const REPOSITORY_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Maximum characters of a host with its port.
const HOST_MAX: usize = 255;

/// The name of an image in a registry, written `docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]`. `oci://` and `oci:` mean
/// the same as `docker://`; without a host it is Docker Hub.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct ImageReference(#[schemars(with = "String")] Parts);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Parts {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A text that is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image {text:?}: {expected}")]
pub struct ParseImageError {
    text: String,
    expected: &'static str,
}

impl ImageReference {
    /// An image that is only in the farm's store. `repository` must have the form of one, as names of environments have.
    pub(crate) fn of_farm(repository: &str, manifest: Digest) -> Self {
        let (registry, repository) = (FARM.to_owned(), repository.to_owned());
        Self(Parts { registry, repository, tag: None, digest: Some(manifest) })
    }

    /// Whether it is only in the farm's store, and in no registry.
    pub fn is_of_farm(&self) -> bool {
        self.0.registry == FARM
    }

    /// The host of the registry, with its port if the name has one.
    pub fn registry(&self) -> &str {
        &self.0.registry
    }

    /// The repository in the registry, such as `library/debian`.
    pub fn repository(&self) -> &str {
        &self.0.repository
    }

    /// The tag, unless the name has only a digest.
    pub fn tag(&self) -> Option<&str> {
        self.0.tag.as_deref()
    }

    /// The digest of the manifest, if the name has one: then the content of the image never changes.
    pub fn digest(&self) -> Option<&Digest> {
        self.0.digest.as_ref()
    }

    /// The digest or the tag, as registries find manifests by it.
    pub fn version(&self) -> &str {
        match (&self.0.digest, &self.0.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, Some(tag)) => tag,
            (None, None) => LATEST,
        }
    }

    /// The same image by the digest of its manifest instead of a tag.
    #[must_use]
    pub fn pinned(&self, digest: Digest) -> Self {
        Self(Parts { tag: None, digest: Some(digest), ..self.0.clone() })
    }

    /// The name without tag and digest, such as `docker.io/library/debian`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.0.registry, self.0.repository)
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "docker://{}/{}", self.0.registry, self.0.repository)?;
        if let Some(tag) = &self.0.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.0.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for ImageReference {
    type Err = ParseImageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).map_err(|expected| ParseImageError {
            text: text.chars().take(HOST_MAX + REPOSITORY_MAX).collect(),
            expected,
        })
    }
}

fn parse(text: &str) -> Result<Parts, &'static str> {
    let schemes = ["docker://", "oci://", "oci:"];
    let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    let rest = rest.ok_or("expected docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]")?;
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => {
            let wrong = "expected a digest of 64 hex digits after @sha256:";
            let digest = digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
            (rest, Some(digest.ok_or(wrong)?))
        }
        None => (rest, None),
    };
    let (registry, path) = match rest.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        Some(_) | None => (DOCKER_HUB, rest),
    };
    let (repository, tag) = match path.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (path, None),
    };
    if !is_host(registry) {
        return Err(
            "expected a host of letters, digits, dots and hyphens, with a port after a colon if needed",
        );
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("expected a tag of at most 128 letters, digits, dots, hyphens and underscores");
    }
    let is_official = registry == DOCKER_HUB && !repository.contains('/');
    let repository = if is_official { format!("{LIBRARY}/{repository}") } else { repository.to_owned() };
    if repository.len() > REPOSITORY_MAX || !repository.split('/').all(is_part) {
        return Err("expected a repository of lower-case letters, digits, and single . _ - between them");
    }
    let tag = tag.or(digest.is_none().then_some(LATEST)).map(str::to_owned);
    Ok(Parts { registry: registry.to_ascii_lowercase(), repository, tag, digest })
}

fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    text.len() <= HOST_MAX
        && is_name(name)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|it| it > 0))
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = text.bytes();
    text.len() <= TAG_MAX
        && bytes.next().is_some_and(is_word)
        && bytes.all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

/// A part of a repository: letters and digits with `.`, `_`, `__` or hyphens between them.
fn is_part(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    let separators = text.split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit());
    ends.into_iter().all(|byte| byte.is_some_and(is_plain))
        && separators.into_iter().all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
        })
}

impl Serialize for ImageReference {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageReference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An image whose content is known: it is read from the store of the farm, or else from its registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinnedImage {
    /// Its name, with the digest of its manifest.
    pub reference: ImageReference,
    /// The manifest, or the index of manifests for several machine types, as a blob of the store.
    pub manifest: BlobDigest,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn shown(text: &str) -> Result<String, String> {
        let parsed: Result<ImageReference, _> = text.parse();
        parsed.map(|image| image.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_way_to_name_an_image_has_one_form() {
        for (text, wanted) in [
            ("docker://debian", "docker://docker.io/library/debian:latest".to_owned()),
            ("docker://bazel/tools:1", "docker://docker.io/bazel/tools:1".to_owned()),
            ("oci:localhost:5000/a/b:x.y", "docker://localhost:5000/a/b:x.y".to_owned()),
            ("oci://GHCR.io/a/b__c:V-1", "docker://ghcr.io/a/b__c:V-1".to_owned()),
            (&format!("docker://h.example/a@sha256:{HEX}"), format!("docker://h.example/a@sha256:{HEX}")),
            (&format!("docker://h.example/a:1@sha256:{HEX}"), format!("docker://h.example/a:1@sha256:{HEX}")),
        ] {
            assert_eq!(shown(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_names_no_image_is_refused_with_what_was_expected() {
        for (text, expected) in [
            ("debian:12", "docker://HOST"),
            ("docker://", "repository"),
            ("docker://h.example/", "repository"),
            ("docker://h.example/A", "repository"),
            ("docker://h.example/a//b", "repository"),
            ("docker://h.example/../etc", "repository"),
            ("docker://h.example/a..b", "repository"),
            ("docker://h.example:0/a", "host"),
            ("docker://user@h.example/a", "digest"),
            ("docker://h.exa mple/a", "host"),
            ("docker://h.example/a:", "tag"),
            ("docker://h.example/a:-x", "tag"),
            ("docker://h.example/a@sha256:12", "64 hex digits"),
            ("docker://h.example/a@sha512:12", "sha256"),
            ("docker://h.example/a?x=1", "repository"),
        ] {
            let error = shown(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_is_read_is_read_the_same_again(text in "(docker|oci)://[a-z.:0-9]{1,20}/[a-z/_.-]{1,20}(:[a-zA-Z0-9.]{1,5})?") {
            if let Ok(image) = text.parse::<ImageReference>() {
                prop_assert_eq!(image.to_string().parse::<ImageReference>(), Ok(image));
            }
        }

        #[test]
        fn nothing_that_is_read_can_leave_the_paths_of_a_registry(text in "docker://.{0,40}") {
            if let Ok(image) = text.parse::<ImageReference>() {
                let is_safe = |part: &str| part != ".." && !part.contains(['?', '#', '%', '@', ' ', '\\']);
                let parts = image.repository().split('/').chain([image.registry(), image.version()]);
                prop_assert!(parts.into_iter().all(is_safe));
            }
        }
    }
}
