//! Changes of environments: proposed, approved, built, removed; and which image a name means.

mod build;

use model::{
    AskedEnvironment, BlobDigest, BuildId, Environment, EnvironmentChange, EnvironmentDefinition,
    EnvironmentName, EnvironmentState, EnvironmentVersion, ImageReference,
};

pub use build::{BUILDS_ENVIRONMENTS, ENVIRONMENT_TOOLS, IMAGE_INDEX, build_request};

/// Maximum number of versions: all of them are in one message of at most 1 MiB, each with a definition of at most 16 KiB, and
/// up to 500 blobs or a reason.
pub const VERSIONS_MAX: usize = 15;
/// Maximum number of environments, with those whose versions are removed: their numbers are not given again.
const ENVIRONMENTS_MAX: usize = 500;
/// Maximum characters of the name of an author, and of a reason.
const AUTHOR_MAX: usize = 200;
const REASON_MAX: usize = 2000;

/// Beginning of the reason of a version whose build was not queued.
pub const REFUSED: &str = "its build was refused";

/// Why an environment cannot be changed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentFault {
    #[error("there is no environment {0}")]
    Unknown(EnvironmentName),
    #[error("the environment {name} has no version {number}; it has {has}")]
    UnknownVersion { name: EnvironmentName, number: u32, has: String },
    #[error(
        "version {number} of the environment {name} is {state}: only one that is proposed or has failed can be approved"
    )]
    NotProposed { name: EnvironmentName, number: u32, state: &'static str },
    #[error("no version of the environment {0} waits for approval")]
    NothingProposed(EnvironmentName),
    #[error(
        "the environment {0} has {VERSIONS_MAX} versions, which is the limit: remove some first (forebay env rm {0}@VERSION)"
    )]
    TooMany(EnvironmentName),
    #[error("the farm has {ENVIRONMENTS_MAX} environments, which is the limit: use an existing name")]
    TooManyNames,
    #[error("the name of an author has at most {AUTHOR_MAX} characters, and no control characters")]
    Author,
}

/// Why a name means no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEnvironment {
    #[error("the environment {name} has no version {number}; it has {has}")]
    UnknownVersion { name: EnvironmentName, number: u32, has: String },
    #[error("version {number} of the environment {name} is {state}, not ready{why}")]
    NotReady { name: EnvironmentName, number: u32, state: &'static str, why: String },
    #[error("no version of the environment {name} is ready; it has {has}")]
    NoneReady { name: EnvironmentName, has: String },
}

/// Whether a name may be added to `count` environments.
///
/// # Errors
///
/// Fails at the limit.
pub fn check_count(count: usize) -> Result<(), EnvironmentFault> {
    if count < ENVIRONMENTS_MAX { Ok(()) } else { Err(EnvironmentFault::TooManyNames) }
}

/// What was made of an approved version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its image is in the farm's store: the manifest, then everything that it names.
    Stored { image: ImageReference, blobs: Vec<BlobDigest> },
    /// It has no image.
    Failed(String),
}

/// A change with its author.
///
/// Fails if the name of the author is too long or has control characters.
pub fn change(at_ms: model::Millis, by: Option<String>) -> Result<EnvironmentChange, EnvironmentFault> {
    let is_valid = |by: &String| by.chars().count() <= AUTHOR_MAX && !by.contains(char::is_control);
    match by {
        Some(by) if !is_valid(&by) => Err(EnvironmentFault::Author),
        by => Ok(EnvironmentChange { at_ms, by }),
    }
}

/// The environment with another version, which is returned too. A repeated proposal of the newest version adds none.
///
/// Fails if there are too many versions.
pub fn propose(
    known: Option<Environment>,
    name: &EnvironmentName,
    definition: EnvironmentDefinition,
    proposed: EnvironmentChange,
) -> Result<(Environment, u32), EnvironmentFault> {
    let mut environment =
        known.unwrap_or_else(|| Environment { name: name.clone(), versions: Vec::new(), last_number: 0 });
    let is_same = |newest: &&EnvironmentVersion| {
        newest.definition == definition && newest.state == EnvironmentState::Proposed
    };
    if let Some(newest) = environment.versions.last().filter(is_same) {
        let number = newest.number;
        return Ok((environment, number));
    }
    if environment.versions.len() >= VERSIONS_MAX {
        return Err(EnvironmentFault::TooMany(name.clone()));
    }
    let number = environment.last_number.saturating_add(1);
    environment.last_number = number;
    environment.versions.push(EnvironmentVersion {
        number,
        definition,
        proposed,
        approved: None,
        state: EnvironmentState::Proposed,
    });
    Ok((environment, number))
}

/// Approves a version, or the newest one that waits for it, or else the newest one if it has failed: it is made again. `build` is the id of its build, if it needs one. Returns the number.
///
/// Fails if that version is approved already.
pub fn approve(
    environment: &mut Environment,
    number: Option<u32>,
    build: BuildId,
    approved: EnvironmentChange,
) -> Result<u32, EnvironmentFault> {
    let name = environment.name.clone();
    let proposed = |version: &EnvironmentVersion| version.state == EnvironmentState::Proposed;
    let newest = environment.versions.iter().rev().find(|version| proposed(version));
    let failed = |version: &&EnvironmentVersion| matches!(version.state, EnvironmentState::Failed { .. });
    let newest = newest.or(environment.versions.last().filter(failed));
    let number = number.or(newest.map(|version| version.number));
    let number = number.ok_or_else(|| EnvironmentFault::NothingProposed(name.clone()))?;
    let version = version_of(environment, number)?;
    if !(proposed(version) || matches!(version.state, EnvironmentState::Failed { .. })) {
        let state = version.state.as_str();
        return Err(EnvironmentFault::NotProposed { name, number, state });
    }
    version.approved = Some(approved);
    version.state = match &version.definition {
        EnvironmentDefinition::Recipe(_) => EnvironmentState::Approved { build: Some(build) },
        EnvironmentDefinition::Stored(_) => EnvironmentState::Approved { build: None },
        EnvironmentDefinition::Image(image) => {
            EnvironmentState::Ready { image: image.clone(), blobs: Vec::new(), build: None }
        }
    };
    Ok(number)
}

/// Records what was made of an approved version. Returns whether it changed: it may be removed, or finished by another process.
pub fn finish(environment: &mut Environment, number: u32, build: Option<BuildId>, outcome: Outcome) -> bool {
    let approved = EnvironmentState::Approved { build };
    let version = environment.versions.iter_mut().find(|it| it.number == number && it.state == approved);
    let Some(version) = version else { return false };
    version.state = match outcome {
        Outcome::Stored { image, blobs } => EnvironmentState::Ready { image, blobs, build },
        Outcome::Failed(reason) => {
            EnvironmentState::Failed { reason: reason.chars().take(REASON_MAX).collect(), build }
        }
    };
    true
}

/// Removes a version, or all. The numbers of removed versions are not used again. An environment without versions can be deleted.
///
/// Fails if there is no such version.
pub fn remove(environment: &mut Environment, number: Option<u32>) -> Result<(), EnvironmentFault> {
    match number {
        None => environment.versions.clear(),
        Some(number) => {
            version_of(environment, number)?;
            environment.versions.retain(|version| version.number != number);
        }
    }
    Ok(())
}

/// The image that a name means.
///
/// Fails if that version, or all versions, are not ready.
pub fn image<'a>(
    environment: &'a Environment,
    asked: &AskedEnvironment<'_>,
) -> Result<&'a ImageReference, NoEnvironment> {
    let name = || environment.name.clone();
    let Some(number) = asked.version else {
        let current = environment.current().map(|(_, image)| image);
        return current.ok_or_else(|| NoEnvironment::NoneReady { name: name(), has: listed(environment) });
    };
    let version = environment.version(number);
    let version = version.ok_or_else(|| NoEnvironment::UnknownVersion {
        name: name(),
        number,
        has: listed(environment),
    })?;
    let why = match &version.state {
        EnvironmentState::Ready { image, .. } => return Ok(image),
        EnvironmentState::Proposed => ": it waits for approval (forebay env approve)".to_owned(),
        EnvironmentState::Approved { .. } => String::new(),
        EnvironmentState::Failed { reason, .. } => format!(": {reason}"),
    };
    Err(NoEnvironment::NotReady { name: name(), number, state: version.state.as_str(), why })
}

fn version_of(
    environment: &mut Environment,
    number: u32,
) -> Result<&mut EnvironmentVersion, EnvironmentFault> {
    let (name, has) = (environment.name.clone(), listed(environment));
    let version = environment.versions.iter_mut().find(|version| version.number == number);
    version.ok_or(EnvironmentFault::UnknownVersion { name, number, has })
}

/// The versions with their states, for messages.
fn listed(environment: &Environment) -> String {
    let of = |version: &EnvironmentVersion| format!("{} ({})", version.number, version.state.as_str());
    let all: Vec<String> = environment.versions.iter().map(of).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use model::{Digest, Millis};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_number_of_environments_is_limited() {
        assert_eq!(check_count(ENVIRONMENTS_MAX - 1), Ok(()));
        assert_eq!(check_count(ENVIRONMENTS_MAX), Err(EnvironmentFault::TooManyNames));
    }

    fn by() -> EnvironmentChange {
        EnvironmentChange { at_ms: Millis(1), by: None }
    }

    fn recipe(release: &str) -> EnvironmentDefinition {
        serde_json::from_str(&format!(r#"{{"debian":"{release}"}}"#)).unwrap()
    }

    fn name() -> EnvironmentName {
        "gcc".parse().unwrap()
    }

    fn image_of(number: u32) -> ImageReference {
        name().stored_image(Digest::of(&number.to_le_bytes()))
    }

    fn stored(number: u32) -> Outcome {
        Outcome::Stored { image: image_of(number), blobs: vec![Digest::of(b"x").of_size(1)] }
    }

    fn asked(text: &str) -> AskedEnvironment<'_> {
        AskedEnvironment::parse(text).unwrap()
    }

    #[test]
    fn a_version_is_used_only_once_it_is_approved_and_built() {
        let (mut environment, number) = propose(None, &name(), recipe("bookworm"), by()).unwrap();
        assert!(image(&environment, &asked("gcc")).unwrap_err().to_string().contains("1 (proposed)"));
        assert!(image(&environment, &asked("gcc@1")).unwrap_err().to_string().contains("waits for approval"));
        let build = BuildId::generate();
        assert_eq!(approve(&mut environment, None, build, by()), Ok(number));
        assert!(!finish(&mut environment, number, Some(BuildId::generate()), stored(1)), "of another build");
        assert!(finish(&mut environment, number, Some(build), stored(1)));
        assert_eq!(image(&environment, &asked("gcc")), Ok(&image_of(1)));
        assert!(!finish(&mut environment, number, Some(build), Outcome::Failed("late".into())));
        let error = approve(&mut environment, Some(1), build, by()).unwrap_err();
        assert!(error.to_string().contains("is ready"), "{error}");
    }

    #[test]
    fn a_failed_version_leaves_the_one_before_it_in_use() {
        let (mut environment, _) = propose(None, &name(), recipe("bookworm"), by()).unwrap();
        let build = BuildId::generate();
        approve(&mut environment, None, build, by()).unwrap();
        finish(&mut environment, 1, Some(build), stored(1));
        let (mut environment, number) = propose(Some(environment), &name(), recipe("sid"), by()).unwrap();
        assert_eq!(number, 2);
        approve(&mut environment, None, build, by()).unwrap();
        finish(&mut environment, 2, Some(build), Outcome::Failed("no such package".into()));
        assert_eq!(image(&environment, &asked("gcc")), Ok(&image_of(1)));
        assert_eq!(approve(&mut environment.clone(), Some(2), build, by()), Ok(2), "it is tried again");
        assert!(image(&environment, &asked("gcc@2")).unwrap_err().to_string().contains("no such package"));
        assert!(
            image(&environment, &asked("gcc@3")).unwrap_err().to_string().contains("1 (ready), 2 (failed)")
        );
    }

    #[test]
    fn what_needs_no_build_is_ready_when_it_is_approved() {
        let definition = EnvironmentDefinition::Image("docker://a.b/c:1".parse().unwrap());
        let (mut environment, _) = propose(None, &name(), definition, by()).unwrap();
        approve(&mut environment, None, BuildId::generate(), by()).unwrap();
        assert_eq!(image(&environment, &asked("gcc@1")).unwrap().to_string(), "docker://a.b/c:1");
        assert_eq!(
            approve(&mut environment, None, BuildId::generate(), by()),
            Err(EnvironmentFault::NothingProposed(name()))
        );
    }

    #[test]
    fn authors_have_short_names() {
        assert!(change(Millis(1), Some("x".repeat(201))).is_err());
        assert!(change(Millis(1), Some("a\nb".into())).is_err());
        assert_eq!(change(Millis(1), Some("Ada".into())).unwrap().by.as_deref(), Some("Ada"));
    }

    /// A change by a client or the farm; numbers choose a version.
    #[derive(Debug, Clone)]
    enum Step {
        Propose(bool),
        Approve(Option<u32>),
        Finish(u32, bool),
        Remove(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Propose),
            proptest::option::of(1..9_u32).prop_map(Step::Approve),
            (1..9_u32, any::<bool>()).prop_map(|(number, good)| Step::Finish(number, good)),
            (1..9_u32).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn no_number_is_used_twice_and_what_is_ready_was_approved(steps in proptest::collection::vec(step(), 0..60)) {
            let mut environment = Environment { name: name(), versions: Vec::new(), last_number: 0 };
            let mut seen = std::collections::BTreeMap::new();
            for step in steps {
                match step {
                    Step::Propose(first) => {
                        let definition = recipe(if first { "bookworm" } else { "sid" });
                        if let Ok((changed, _)) = propose(Some(environment.clone()), &name(), definition, by()) {
                            environment = changed;
                        }
                    }
                    Step::Approve(number) => {
                        let _ = approve(&mut environment, number, BuildId::generate(), by());
                    }
                    Step::Finish(number, good) => {
                        let build = environment.version(number).and_then(|version| version.state.build());
                        let outcome = if good { stored(number) } else { Outcome::Failed("no".into()) };
                        finish(&mut environment, number, build, outcome);
                    }
                    Step::Remove(number) => drop(remove(&mut environment, Some(number))),
                }
                let numbers: Vec<u32> = environment.versions.iter().map(|version| version.number).collect();
                prop_assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.len() <= VERSIONS_MAX);
                for version in &environment.versions {
                    let proposed = seen.entry(version.number).or_insert_with(|| version.definition.clone());
                    prop_assert_eq!(&*proposed, &version.definition);
                    let waits = version.state == EnvironmentState::Proposed;
                    prop_assert_eq!(waits, version.approved.is_none());
                }
                let newest = environment.versions.iter().rev().find(|it| it.state.as_str() == "ready");
                let found = image(&environment, &asked("gcc")).ok();
                let wanted = newest.map(|version| image_of(version.number));
                prop_assert_eq!(found, wanted.as_ref());
            }
        }
    }
}
