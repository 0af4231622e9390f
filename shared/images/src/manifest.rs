//! The documents of an image: index, manifest and configuration (OCI Image Format Specification 1.1, and the
//! media types of Docker's schema 2, which have the same fields).

use model::{BlobDigest, Digest};
use serde::Deserialize;

use crate::error::ImageError;

/// Media types of manifests that a client asks a registry for.
pub(crate) const MANIFEST_TYPES: [&str; 4] =
    [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, "application/vnd.docker.distribution.manifest.v2+json"];
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Maximum bytes of a manifest, which the specification suggests, and of a configuration.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of layers: what one overlay mount takes in Linux.
const LAYERS_MAX: usize = 500;

/// A blob that a document names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    digest: Digest,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

impl Descriptor {
    pub(crate) fn blob(&self) -> BlobDigest {
        self.digest.of_size(self.size)
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

/// A manifest, or an index of manifests.
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

/// The parts of one image.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Both kinds of documents: some registries leave out their media type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Either {
    schema_version: u32,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

impl Document {
    pub(crate) fn read(content: &[u8]) -> Result<Self, ImageError> {
        let wrong = |why: String| ImageError::Invalid(format!("its manifest {why}"));
        let either: Either =
            serde_json::from_slice(content).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if either.schema_version != 2 {
            return Err(wrong(format!("has schema version {}, expected 2", either.schema_version)));
        }
        match (either.manifests, either.config, either.layers) {
            (Some(manifests), None, None) => Ok(Self::Index(manifests)),
            (None, Some(config), Some(layers)) => {
                if layers.len() > LAYERS_MAX {
                    return Err(wrong(format!(
                        "has {} layers, at most {LAYERS_MAX} can be mounted",
                        layers.len()
                    )));
                }
                Ok(Self::Manifest(Manifest { config, layers }))
            }
            _ => Err(wrong("has neither layers nor manifests, or both".to_owned())),
        }
    }
}

/// The manifest in an index for the operating system and processor of this machine.
pub(crate) fn of_this_machine(manifests: &[Descriptor]) -> Result<&Descriptor, ImageError> {
    let own = architecture();
    let fits = |it: &&Descriptor| {
        it.platform.as_ref().is_some_and(|platform| platform.os == "linux" && platform.architecture == own)
    };
    manifests.iter().find(fits).ok_or_else(|| {
        let name = |it: &Descriptor| {
            let platform = it.platform.as_ref()?;
            Some(format!("{}/{}", platform.os, platform.architecture))
        };
        let offered: Vec<String> = manifests.iter().filter_map(name).take(20).collect();
        ImageError::Invalid(format!("it has no variant for linux/{own}; it has: {}", offered.join(", ")))
    })
}

/// The name of this processor in images, which is that of Go.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// What an image says about the commands that run in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    /// Its environment variables. Those of a command come before them.
    pub env: Vec<(String, String)>,
    /// The program and arguments of a service without a command: its entry point, then its usual arguments.
    pub command: Vec<String>,
    /// The user of its commands, as the image names it: `USER[:GROUP]`, each a name or a number.
    pub user: Option<String>,
}

/// The configuration and the digests of the uncompressed layers, lowest first.
pub(crate) fn read_config(content: &[u8], layers: usize) -> Result<(ImageConfig, Vec<Digest>), ImageError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct Inner {
        env: Option<Vec<String>>,
        entrypoint: Option<Vec<String>>,
        cmd: Option<Vec<String>>,
        user: Option<String>,
    }
    #[derive(Deserialize)]
    struct RootFs {
        diff_ids: Vec<Digest>,
    }
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        config: Option<Inner>,
        rootfs: RootFs,
    }
    let wrong = |why: String| ImageError::Invalid(format!("its configuration {why}"));
    let read: Config =
        serde_json::from_slice(content).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let diff_ids = read.rootfs.diff_ids;
    if diff_ids.len() != layers {
        return Err(wrong(format!("names {} layers, its manifest {layers}", diff_ids.len())));
    }
    let inner = read.config.unwrap_or_default();
    let pair = |text: String| {
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let is_valid = !name.is_empty() && !text.contains('\0');
        is_valid.then(|| (name.to_owned(), value.to_owned()))
    };
    let env = inner.env.into_iter().flatten().filter_map(pair).collect();
    let command = [inner.entrypoint, inner.cmd].into_iter().flatten().flatten().collect();
    let user = inner.user.map(|user| user.trim().to_owned()).filter(|user| !user.is_empty());
    Ok((ImageConfig { env, command, user }, diff_ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: char) -> String {
        format!("sha256:{}", letter.to_string().repeat(64))
    }

    #[test]
    fn an_index_gives_the_variant_of_this_machine() {
        let manifests = format!(
            r#"{{"schemaVersion":2,"manifests":[
                {{"digest":"{}","size":1,"platform":{{"os":"linux","architecture":"s390x"}}}},
                {{"digest":"{}","size":2,"platform":{{"os":"linux","architecture":"{}"}}}}]}}"#,
            digest('a'),
            digest('b'),
            architecture()
        );
        let Document::Index(found) = Document::read(manifests.as_bytes()).unwrap() else {
            panic!("no index")
        };
        assert_eq!(of_this_machine(&found).unwrap().blob().size, 2);
        let error = of_this_machine(&found[..1]).unwrap_err().to_string();
        assert!(error.contains("linux/s390x"), "{error}");
    }

    #[test]
    fn documents_that_are_no_images_are_refused() {
        let layers = format!(r#"{{"digest":"{}","size":1}},"#, digest('a')).repeat(501);
        let many = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"{}","size":1}},"layers":[{}]}}"#,
            digest('a'),
            layers.trim_end_matches(',')
        );
        for (content, expected) in [
            ("<html>", "cannot be read"),
            ("{}", "cannot be read"),
            (r#"{"schemaVersion":1}"#, "schema version 1"),
            (r#"{"schemaVersion":2}"#, "neither"),
            (r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#, "both"),
            (r#"{"schemaVersion":2,"manifests":[{"digest":"md5:1","size":1}]}"#, "invalid digest"),
            (r#"{"schemaVersion":2,"manifests":[{"digest":"x","size":-1}]}"#, "cannot be read"),
            (&many, "501 layers"),
        ] {
            let error = Document::read(content.as_bytes()).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|it| it.contains(expected)), "{content:.60}: {error:?}");
        }
    }

    #[test]
    fn the_configuration_is_read_with_and_without_its_parts() {
        let content = format!(
            r#"{{"config":{{"Env":["A=1","B","=x"],"User":"7","Cmd":["a","b"],"Entrypoint":["/e"]}},"rootfs":{{"diff_ids":["{}"]}}}}"#,
            digest('a')
        );
        let (config, layers) = read_config(content.as_bytes(), 1).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(config.env, [pair("A", "1"), pair("B", "")]);
        assert_eq!(config.command, ["/e", "a", "b"]);
        assert_eq!(config.user.as_deref(), Some("7"));
        assert_eq!(layers.len(), 1);
        assert!(read_config(content.as_bytes(), 2).unwrap_err().to_string().contains("its manifest 2"));
        let bare = r#"{"rootfs":{"diff_ids":[]}}"#;
        assert_eq!(read_config(bare.as_bytes(), 0).unwrap().0, ImageConfig::default());
    }
}
