//! The image of an action, as a platform property.
//!
//! `container-image = docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]` (also `oci:`) runs the command in that image;
//! `none` and an empty value ask for none. Other values are ordinary properties, which the properties of a pool must
//! contain: executors that run in an image themselves offer its name so.

use model::{ImageReference, ParseImageError};

use super::invalid_need::InvalidNeed;

/// The property that asks for an image.
pub const IMAGE_PROPERTY: &str = "container-image";
/// The property and value by which executors offer to run actions in images.
pub const IMAGE_OFFER: (&str, &str) = ("images", "on");

/// The property and value by which actions ask for an image whose folders they can write to, and executors offer it.
pub const WRITABLE_ROOT: (&str, &str) = ("writable-root", "true");

/// Schemes of values that name an image of a registry.
const SCHEMES: [&str; 3] = ["docker://", "oci://", "oci:"];

fn asks(name: &str, value: &str) -> Option<Result<ImageReference, ParseImageError>> {
    let is_image = name.eq_ignore_ascii_case(IMAGE_PROPERTY);
    (is_image && SCHEMES.iter().any(|scheme| value.starts_with(scheme))).then(|| value.parse())
}

/// Whether a value of the property is the name of an image of a registry.
pub fn names_image(value: &str) -> bool {
    matches!(asks(IMAGE_PROPERTY, value), Some(Ok(_)))
}

/// The image that an action with these properties asks for.
///
/// Fails if the value names no image, or if there are two different ones.
pub fn asked_image(platform: &[(String, String)]) -> Result<Option<ImageReference>, InvalidNeed> {
    let mut found: Option<ImageReference> = None;
    for (name, value) in platform {
        let Some(parsed) = asks(name, value) else { continue };
        let image = parsed.map_err(|_| {
            InvalidNeed::of(name, value, "expected docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]")
        })?;
        if found.as_ref().is_some_and(|other| *other != image) {
            return Err(InvalidNeed::of(name, value, "expected one image, but there are two"));
        }
        found = Some(image);
    }
    Ok(found)
}

/// Whether an action with these properties asks for an image whose folders it can write to.
pub fn asks_writable_root(platform: &[(String, String)]) -> bool {
    let asks = |(name, value): &(String, String)| {
        name.eq_ignore_ascii_case(WRITABLE_ROOT.0) && value.eq_ignore_ascii_case(WRITABLE_ROOT.1)
    };
    platform.iter().any(asks)
}

/// The property that asks for an image by the name of an environment.
pub const ENVIRONMENT_PROPERTY: &str = "env";

/// Whether an action with these properties may run in an image, which has its own search path.
pub fn may_have_image<'a>(mut properties: impl Iterator<Item = &'a str>) -> bool {
    properties.any(|name| name.eq_ignore_ascii_case(IMAGE_PROPERTY) || name == ENVIRONMENT_PROPERTY)
}

/// The names of environments that these properties may mean.
pub fn asked_environments(platform: &[(String, String)]) -> impl Iterator<Item = &str> {
    platform.iter().filter(|(name, _)| name == ENVIRONMENT_PROPERTY).map(|(_, value)| value.as_str())
}

/// The same properties with the image of each environment that `find` knows in place of its name; `None` if there is no such
/// environment. Other values of `env` stay ordinary properties.
pub fn with_environments(
    platform: &[(String, String)],
    find: impl Fn(&str) -> Option<ImageReference>,
) -> Option<Vec<(String, String)>> {
    let mut found = false;
    let replaced = platform.iter().map(|(name, value)| {
        match Some(value).filter(|_| name == ENVIRONMENT_PROPERTY).and_then(|value| find(value)) {
            Some(image) => {
                found = true;
                (IMAGE_PROPERTY.to_owned(), image.to_string())
            }
            None => (name.clone(), value.clone()),
        }
    });
    let replaced = replaced.collect();
    found.then_some(replaced)
}

/// The same properties with `pinned` in place of every image.
pub fn with_image(platform: &[(String, String)], pinned: &ImageReference) -> Vec<(String, String)> {
    let pin = |(name, value): &(String, String)| match asks(name, value) {
        Some(_) => (name.clone(), pinned.to_string()),
        None => (name.clone(), value.clone()),
    };
    platform.iter().map(pin).collect()
}

/// What an executor must offer for a property of an action: `None` if anything is good enough.
pub(super) fn requirement(name: String, value: String) -> Option<(String, String)> {
    if asks(&name, &value).is_some() {
        return Some((IMAGE_OFFER.0.to_owned(), IMAGE_OFFER.1.to_owned()));
    }
    if name.eq_ignore_ascii_case(WRITABLE_ROOT.0) {
        return (!value.eq_ignore_ascii_case("false"))
            .then(|| (WRITABLE_ROOT.0.to_owned(), value.to_lowercase()));
    }
    let is_none = name.eq_ignore_ascii_case(IMAGE_PROPERTY) && matches!(value.as_str(), "" | "none");
    (!is_none).then_some((name, value))
}

/// What an operator can do if no pool offers this property.
pub(super) fn advice(property: &str) -> &'static str {
    if property == IMAGE_OFFER.0 {
        "; an executor runs actions in images (container-image) if it has a sandbox and the setting images"
    } else if property.eq_ignore_ascii_case(IMAGE_PROPERTY) {
        "; an image of a registry is written docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]"
    } else if property == WRITABLE_ROOT.0 {
        "; an executor runs actions in images with a writable root if it is root and mounts images as overlay"
    } else if property == ENVIRONMENT_PROPERTY {
        "; environments are in the setting environments, or made with `forebay env add`"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_image_is_the_same_requirement() {
        let required = |name: &str, value: &str| requirement(name.to_owned(), value.to_owned());
        let on = Some(("images".to_owned(), "on".to_owned()));
        assert_eq!(required("container-image", "docker://debian:12"), on);
        assert_eq!(required("Container-Image", "oci:localhost:5000/a"), on);
        for none in ["", "none"] {
            assert_eq!(required("container-image", none), None);
        }
        let writable = Some(("writable-root".to_owned(), "true".to_owned()));
        assert_eq!(required("Writable-Root", "True"), writable);
        assert_eq!(required("writable-root", "false"), None);
        assert!(asks_writable_root(&platform(&[("Writable-Root", "true")])));
        assert!(!asks_writable_root(&platform(&[("writable-root", "false"), ("root", "true")])));
        let plain = Some(("container-image".to_owned(), "debian-12".to_owned()));
        assert_eq!(required("container-image", "debian-12"), plain);
    }

    #[test]
    fn an_environment_is_the_image_that_its_name_means() {
        let image: ImageReference = "docker://a.b/gcc:11".parse().unwrap();
        let find = |name: &str| (name == "gcc").then(|| image.clone());
        let asked = platform(&[("env", "gcc"), ("Arch", "x")]);
        let found = with_environments(&asked, find).unwrap();
        assert_eq!(found, platform(&[("container-image", "docker://a.b/gcc:11"), ("Arch", "x")]));
        assert_eq!(with_environments(&platform(&[("env", "java"), ("Env", "gcc")]), find), None);
    }

    #[test]
    fn the_image_is_read_and_pinned_and_nothing_else_changes() {
        let asked = platform(&[("Arch", "x"), ("container-image", "docker://debian:12")]);
        let image = asked_image(&asked).unwrap().unwrap();
        let pinned = image.pinned(model::Digest::of(b"m"));
        let changed = with_image(&asked, &pinned);
        assert_eq!(changed[0], asked[0]);
        assert_eq!(asked_image(&changed).unwrap(), Some(pinned));
        assert_eq!(asked_image(&platform(&[("container-image", "debian-12")])), Ok(None));
        for wrong in [
            platform(&[("container-image", "docker://UPPER/case")]),
            platform(&[("container-image", "docker://a/b"), ("container-image", "docker://a/c")]),
        ] {
            assert!(asked_image(&wrong).is_err(), "{wrong:?}");
        }
    }
}
