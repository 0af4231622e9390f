//! Decides which workers can run a build, and whether any ever can.

use std::collections::BTreeSet;

use model::{
    Build, BuildRequirements, Heartbeat, SECRETS_PROPERTY, SecretRequest, ServiceRequest, WorkerProperties,
    WorkerStatus, WorkspaceState, secrets_property,
};

use crate::{
    actions::{
        ENVIRONMENT_PROPERTY, IMAGE_OFFER, IMAGE_PROPERTY, SERVICES_OFFER, WRITABLE_ROOT, names_image,
    },
    environments::BUILDS_ENVIRONMENTS,
    requirements::{matches, names_of_secrets, secrets_value, value_matches},
};

/// Maximum number of characters of a client's text that a message repeats.
const SHOWN: usize = 200;

/// A build that no worker can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWorker {
    #[error("requirements: no worker has offered the property {name}{hint}; known properties: {known}")]
    UnknownProperty { name: String, known: String, hint: &'static str },
    #[error("requirements: no worker has offered {name} = {value:?}; offered: {offered}{hint}")]
    UnknownValue { name: String, value: String, offered: String, hint: &'static str },
    /// The secrets of other groups are as unknown as those that do not exist.
    #[error(
        "secrets: no worker has the secret {name} for the group {group}; it has {offered} (setting of workers: secrets_folder)"
    )]
    UnknownSecret { name: String, group: String, offered: String },
    #[error("requirements: no worker has offered all of {required}")]
    NotTogether { required: String },
}

/// Adds what a worker must offer to run these services of a build.
pub fn require_services(requirements: &mut BuildRequirements, services: &[ServiceRequest]) {
    let has_image = services.iter().any(|service| service.image.is_some() || service.environment.is_some());
    let offers = [(!services.is_empty(), SERVICES_OFFER), (has_image, IMAGE_OFFER)];
    for (_, (name, value)) in offers.into_iter().filter(|(is_required, _)| *is_required) {
        requirements.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

/// Adds what a worker must offer to run a build with secrets.
pub fn require_secrets(build: &mut Build) {
    if !build.secrets.is_empty() {
        let value = secrets_value(build.secrets.iter().map(|SecretRequest { name, .. }| name.as_str()));
        build.requirements.0.insert(secrets_property(&build.group), value);
    }
}

/// Whether a build with these requirements writes to the folders of its image.
pub fn writes_to_image(requirements: &BuildRequirements) -> bool {
    let (name, value) = WRITABLE_ROOT;
    requirements.0.get(name).is_some_and(|asked| asked == value)
}

/// Checks that a build that requires to write to its image has one, after the names of environments were replaced.
///
/// The error says what is wrong.
pub fn check_writable_root(requirements: &BuildRequirements, is_job: bool) -> Result<(), &'static str> {
    match (writes_to_image(requirements), is_job) {
        (true, true) => {
            Err("the tasks of a job ask for a writable root themselves (writable-root in platform)")
        }
        (true, false) if !requirements.0.get(IMAGE_PROPERTY).is_some_and(|image| names_image(image)) => {
            Err("writable-root needs an image (container-image, or env)")
        }
        (true | false, _) => Ok(()),
    }
}

/// Whether a worker that offers `properties` can run a build that requires `requirements`.
pub fn can_run(properties: &WorkerProperties, requirements: &BuildRequirements) -> bool {
    matches(requirements.iter(), |name| properties.values(name))
}

/// The workspaces of a worker that accept builds now or after the builds that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkspaceCounts {
    /// Number of idle workspaces of a ready worker.
    pub idle: usize,
    /// Number of workspaces with a build.
    pub busy: usize,
}

/// Counts the workspaces of a worker; those of a draining worker accept no further build, and broken ones none at all.
pub fn workspace_counts(heartbeat: &Heartbeat) -> WorkspaceCounts {
    let count =
        |is: fn(&WorkspaceState) -> bool| heartbeat.workspaces.iter().filter(|state| is(state)).count();
    let idle = || count(|state| matches!(state, WorkspaceState::Idle { .. }));
    let busy = || count(|state| matches!(state, WorkspaceState::Busy { .. }));
    match heartbeat.status {
        WorkerStatus::Ready => WorkspaceCounts { idle: idle(), busy: busy() },
        WorkerStatus::Full => WorkspaceCounts { idle: 0, busy: busy() },
        WorkerStatus::Draining | WorkerStatus::Gone => WorkspaceCounts::default(),
    }
}

/// Checks that one of the `known` kinds of workers can run what requires `requirements`, whether or not one of them is
/// live. While no worker is known, it is unknown what the farm can run, and everything passes.
pub fn check_requirements(
    requirements: &BuildRequirements,
    known: &[WorkerProperties],
) -> Result<(), NoWorker> {
    if known.is_empty() || known.iter().any(|properties| can_run(properties, requirements)) {
        return Ok(());
    }
    let offers =
        |name: &str| known.iter().flat_map(|properties| properties.values(name)).collect::<BTreeSet<_>>();
    if let Some(unknown) = unknown_secret(requirements, known) {
        return Err(unknown);
    }
    let unmet = requirements.iter().find(|(name, value)| {
        !known.iter().any(|properties| value_matches(name, value, properties.values(name)))
    });
    let Some((name, value)) = unmet.filter(|(name, _)| is_public(name)) else {
        return Err(NoWorker::NotTogether { required: shortened(&requirements.to_string()) });
    };
    let offered = offers(name);
    let hint = hint(name);
    if offered.is_empty() {
        let names: BTreeSet<&str> =
            known.iter().flat_map(|known| known.0.keys()).map(String::as_str).filter(is_public).collect();
        return Err(NoWorker::UnknownProperty { name: shortened(name), known: listed(names), hint });
    }
    let (name, value, offered) = (shortened(name), shortened(value), listed(offered));
    Err(NoWorker::UnknownValue { name, value, offered, hint })
}

/// The first secret that a build requires and no worker has.
fn unknown_secret(requirements: &BuildRequirements, known: &[WorkerProperties]) -> Option<NoWorker> {
    let (property, value) = requirements.iter().find(|(name, _)| !is_public(name))?;
    let offered: BTreeSet<&str> = known.iter().flat_map(|properties| properties.values(property)).collect();
    let name = names_of_secrets(value).find(|name| !offered.contains(name))?;
    let group = property.strip_prefix(SECRETS_PROPERTY).unwrap_or(property);
    Some(NoWorker::UnknownSecret { name: shortened(name), group: shortened(group), offered: listed(offered) })
}

/// Whether a property is for all groups to see.
fn is_public(name: &&str) -> bool {
    !name.starts_with(SECRETS_PROPERTY)
}

/// What a client or an operator can do if no worker offers what a build requires of this property.
fn hint(name: &str) -> &'static str {
    match name {
        "sandbox" | "network" => {
            " (settings of workers: build_sandbox, build_network, and build_sandbox_by_request for less isolation)"
        }
        IMAGE_PROPERTY => " (expected docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST])",
        ENVIRONMENT_PROPERTY => {
            ", and there is no environment of this name (setting environments, or forebay env list)"
        }
        name if name == WRITABLE_ROOT.0 => {
            " (workers run builds in images with a writable root if they are root, on machines that support sandboxes and \
             overlay mounts)"
        }
        name if name == BUILDS_ENVIRONMENTS.0 => " (setting of workers: build_environments)",
        name if name == SERVICES_OFFER.0 => {
            " (workers run builds with services on machines that support the sandbox bubblewrap)"
        }
        name if name == IMAGE_OFFER.0 => {
            " (workers run services in images if they are root, on machines that support sandboxes and overlay mounts)"
        }
        _ => "",
    }
}

fn listed(texts: BTreeSet<&str>) -> String {
    if texts.is_empty() {
        return "none".to_owned();
    }
    shortened(&texts.into_iter().collect::<Vec<_>>().join(", "))
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(properties: &[(&str, &[&str])]) -> WorkerProperties {
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        WorkerProperties(
            properties.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect(),
        )
    }

    fn check(required: &[(&str, &str)], known: &[WorkerProperties]) -> Result<(), String> {
        let owned = required.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        check_requirements(&BuildRequirements(owned.collect()), known).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_build_in_an_image_writes_to_it() {
        let asked = |pairs: &[(&str, &str)]| {
            let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            BuildRequirements(owned.collect())
        };
        let (image, writes) = (("container-image", "docker://a/b:1"), ("writable-root", "true"));
        assert_eq!(check_writable_root(&asked(&[image, writes]), false), Ok(()));
        assert_eq!(check_writable_root(&asked(&[image]), true), Ok(()));
        assert!(!writes_to_image(&asked(&[image])) && writes_to_image(&asked(&[writes])));
        for (requirements, is_job, part) in [
            (asked(&[writes]), false, "needs an image"),
            (asked(&[("container-image", "none"), writes]), false, "needs an image"),
            (asked(&[image, writes]), true, "platform"),
        ] {
            let refused = check_writable_root(&requirements, is_job).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        let refused = check(&[image, writes], &[worker(&[("container-image", &["docker://"])])]).unwrap_err();
        assert!(refused.contains("writable-root") && refused.contains("overlay"), "{refused}");
    }

    #[test]
    fn a_refusal_states_the_property_and_what_is_on_offer() {
        let known = [
            worker(&[("hwgroup", &["g1"]), ("os", &["debian12", "debian13"])]),
            worker(&[("hwgroup", &["g2"]), ("os", &["fedora"])]),
        ];
        assert_eq!(check(&[("hwgroup", "g2|g1"), ("os", "fedora")], &known), Ok(()));
        let refused = |required, why: &str| assert_eq!(check(required, &known), Err(why.to_owned()));
        refused(
            &[("gpu", "1")],
            "requirements: no worker has offered the property gpu; known properties: hwgroup, os",
        );
        refused(
            &[("os", "arch")],
            "requirements: no worker has offered os = \"arch\"; offered: debian12, debian13, fedora",
        );
        refused(
            &[("hwgroup", "g1"), ("os", "fedora")],
            "requirements: no worker has offered all of hwgroup = \"g1\", os = \"fedora\"",
        );
    }

    #[test]
    fn services_require_a_worker_that_runs_them_and_their_images() {
        let required = |services: &str| {
            let services: Vec<ServiceRequest> = serde_json::from_str(services).unwrap();
            let mut requirements = BuildRequirements([("os".to_owned(), "fedora".to_owned())].into());
            require_services(&mut requirements, &services);
            requirements.to_string()
        };
        assert_eq!(required("[]"), r#"os = "fedora""#);
        let plain = r#"[{"name":"db","command":["x"]}]"#;
        assert_eq!(required(plain), r#"os = "fedora", services = "on""#);
        let in_image = r#"[{"name":"db","image":"docker://a.b/c"}]"#;
        assert_eq!(required(in_image), r#"images = "on", os = "fedora", services = "on""#);
        let refused = check(&[("services", "on")], &[worker(&[])]).unwrap_err();
        assert!(
            refused.contains("(workers run builds with services")
                && refused.ends_with("known properties: none"),
            "{refused}"
        );
    }

    #[test]
    fn a_secret_of_another_group_is_refused_as_one_that_does_not_exist() {
        let known = [
            worker(&[("secrets/g", &["npm", "pypi"]), ("secrets/h", &["deploy"])]),
            worker(&[("secrets/g", &["signing"])]),
        ];
        for met in ["npm", "npm,pypi", "signing"] {
            assert_eq!(check(&[("secrets/g", met)], &known), Ok(()));
        }
        let refused = |group: &str, names: &str| check(&[(group, names)], &known).unwrap_err();
        let of_other = refused("secrets/g", "deploy");
        assert_eq!(of_other, refused("secrets/g", "absent").replace("absent", "deploy"));
        assert!(
            of_other.contains("the secret deploy for the group g; it has npm, pypi, signing"),
            "{of_other}"
        );
        assert!(refused("secrets/i", "npm").contains("it has none"));
        assert!(refused("secrets/g", "npm,signing").contains("all of"), "on different workers");
        let public = refused("gpu", "1");
        assert!(public.ends_with("known properties: none"), "{public}");
    }

    #[test]
    fn everything_passes_while_no_worker_is_known_and_a_plain_build_passes_always() {
        assert_eq!(check(&[("gpu", "1")], &[]), Ok(()));
        assert_eq!(check(&[], &[worker(&[])]), Ok(()));
        let none = "requirements: no worker has offered the property gpu; known properties: none";
        assert_eq!(check(&[("gpu", "1")], &[worker(&[])]), Err(none.to_owned()));
    }
}
