//! Keys by which earlier similar actions are found: for their usage, and for where they are warm.

use invariant::Present as _;
use model::{ActionKey, ActionKeys, BlobDigest, Group};

use super::image_fetch::image_key;
use crate::hash::Hasher;

/// Variables in the environment of the command or in its platform by which CI systems name the repository of a run:
/// those of git tools, GitHub, GitLab, Buildkite and others. The first one that is set counts.
const REPOSITORY: [&str; 6] = [
    "GIT_REPO_URL",
    "GIT_URL",
    "GITHUB_REPOSITORY",
    "CI_REPOSITORY_URL",
    "CI_PROJECT_PATH",
    "BUILDKITE_REPO",
];
/// Variables for the branch of a run, used like [`REPOSITORY`].
const BRANCH: [&str; 6] = [
    "GIT_BRANCH",
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_COMMIT_BRANCH",
    "CI_COMMIT_REF_NAME",
    "BUILDKITE_BRANCH",
];

/// The parts of an action that its keys are made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyedAction<'a> {
    /// The quota group. Keys of different groups never match.
    pub group: &'a Group,
    /// The instance name of the client.
    pub instance: &'a str,
    /// Digest of the command.
    pub command: &'a BlobDigest,
    /// Arguments of the command.
    pub arguments: &'a [String],
    /// Environment of the command, as pairs of name and value.
    pub environment: &'a [(String, String)],
    /// Requested platform properties; their order does not matter.
    pub platform: &'a [(String, String)],
    /// The image that its command runs in.
    pub image: Option<&'a BlobDigest>,
    /// Its `output_paths`, `output_files` and `output_directories`.
    pub outputs: [&'a [String]; 3],
    /// The target as reported by the client; may be empty.
    pub target: &'a str,
    /// The kind of action as reported by the client; may be empty.
    pub mnemonic: &'a str,
}

/// Computes the keys of `action`.
///
/// Usage is looked up by the exact command, then by target and kind, then by kind alone. The kind is the mnemonic, or
/// the name of the program if the client reports none.
///
/// Warmth is looked up by the first output, which identifies an action best, then by the target, on the same platform
/// in the same instance. A CI run, that is, an action that names a repository and belongs to no target, is looked up by
/// its repository and branch, then by its repository: build tools pass on the variables of the CI run that they are
/// part of, and that must not send all of its actions to one machine. After these, an action in an image is warm where the
/// image is. An action without any of these is warm nowhere.
pub fn action_keys(action: &KeyedAction<'_>) -> ActionKeys {
    ActionKeys { history: history(action), affinity: affinity(action) }
}

fn history(action: &KeyedAction<'_>) -> Vec<ActionKey> {
    let hasher_for = |purpose: &str| Hasher::new(purpose).text(action.group.as_str());
    let mut keys = vec![ActionKey(hasher_for("action command").text(&action.command.to_string()).key())];
    let kind = kind(action);
    if !action.target.is_empty() {
        keys.push(ActionKey(hasher_for("action target").text(action.target).text(kind).key()));
    }
    if !kind.is_empty() {
        keys.push(ActionKey(hasher_for("action kind").text(kind).key()));
    }
    keys
}

/// The mnemonic, or else the name of the program.
fn kind<'a>(action: &KeyedAction<'a>) -> &'a str {
    if !action.mnemonic.is_empty() {
        return action.mnemonic;
    }
    let program = action.arguments.first().map_or("", String::as_str);
    program.rsplit(['/', '\\']).next().present_or(program, "the last name of a path")
}

fn affinity(action: &KeyedAction<'_>) -> Vec<ActionKey> {
    let mut platform: Vec<&(String, String)> = action.platform.iter().collect();
    platform.sort();
    let texts: Vec<&str> =
        platform.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]).collect();
    let here = |purpose: &str| {
        Hasher::new(purpose).text(action.group.as_str()).text(action.instance).all(texts.iter().copied())
    };
    // Images have no secrets of a group that their users could see in each other's start time.
    let image = action.image.map(image_key);
    let repository = named(action, &REPOSITORY).filter(|_| action.target.is_empty());
    if let Some(repository) = repository {
        let branch = named(action, &BRANCH);
        let both = branch.map(|branch| here("warm branch").text(repository).text(branch).key());
        let alone = here("warm repository").text(repository).key();
        return both.into_iter().chain([alone]).map(ActionKey).chain(image).collect();
    }
    let output = action.outputs.iter().find_map(|outputs| outputs.first());
    let output = output.map(|output| here("warm output").text(output).key());
    let target = (!action.target.is_empty()).then(|| here("warm target").text(action.target).key());
    output.into_iter().chain(target).map(ActionKey).chain(image).collect()
}

/// The value of the first of `names` that is set.
fn named<'a>(action: &KeyedAction<'a>, names: &[&str]) -> Option<&'a str> {
    let value_of = |name: &&str| {
        let pairs = action.environment.iter().chain(action.platform);
        pairs.filter(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str()).next()
    };
    names.iter().find_map(value_of)
}

#[cfg(test)]
mod tests;
