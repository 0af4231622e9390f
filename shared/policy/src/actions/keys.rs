//! By what earlier actions like one are found: for what they used, and for where they left something warm.

use model::{ActionKey, ActionKeys, BlobDigest, Group};

use crate::hash::Hasher;

/// Where CI systems name the repository and the branch of a run, in the environment of its command or its platform:
/// variables of git tools, GitHub, GitLab, Buildkite and others. The first that is set counts.
const REPOSITORY: [&str; 6] = [
    "GIT_REPO_URL",
    "GIT_URL",
    "GITHUB_REPOSITORY",
    "CI_REPOSITORY_URL",
    "CI_PROJECT_PATH",
    "BUILDKITE_REPO",
];
/// See [`REPOSITORY`].
const BRANCH: [&str; 6] = [
    "GIT_BRANCH",
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_COMMIT_BRANCH",
    "CI_COMMIT_REF_NAME",
    "BUILDKITE_BRANCH",
];

/// What the keys of an action are made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyedAction<'a> {
    /// The quota group. Nothing is shared with another.
    pub group: &'a Group,
    /// The instance name of the client.
    pub instance: &'a str,
    /// The command.
    pub command: &'a BlobDigest,
    /// Its arguments.
    pub arguments: &'a [String],
    /// Its environment, as pairs of name and value.
    pub environment: &'a [(String, String)],
    /// The platform asked for; its order does not matter.
    pub platform: &'a [(String, String)],
    /// Its `output_paths`, `output_files` and `output_directories`.
    pub outputs: [&'a [String]; 3],
    /// The target, as its client says; may be empty.
    pub target: &'a str,
    /// What kind of action it is, as its client says; may be empty.
    pub mnemonic: &'a str,
}

/// The keys of `action`.
///
/// What it uses is looked up by its exact command, then by its target and kind, then by its kind alone. Its kind is its
/// mnemonic, or the name of its program where its client says none.
///
/// Where it is warm is looked up by its first output, which names it best, then by its target, on the same platform in the
/// same instance. A CI run, which is what names a repository and belongs to no target, is looked up by its repository and
/// branch, then by its repository: that build tools pass the variables of the CI run that they are part of must not draw
/// all of its actions to one machine. What has none of all this is warm nowhere.
pub fn action_keys(action: &KeyedAction<'_>) -> ActionKeys {
    ActionKeys { history: history(action), affinity: affinity(action) }
}

fn history(action: &KeyedAction<'_>) -> Vec<ActionKey> {
    let of = |purpose: &str| Hasher::new(purpose).text(action.group.as_str());
    let mut keys = vec![ActionKey(of("action command").text(&action.command.to_string()).key())];
    let kind = kind(action);
    if !action.target.is_empty() {
        keys.push(ActionKey(of("action target").text(action.target).text(kind).key()));
    }
    if !kind.is_empty() {
        keys.push(ActionKey(of("action kind").text(kind).key()));
    }
    keys
}

/// The mnemonic, or else the name of the program.
fn kind<'a>(action: &KeyedAction<'a>) -> &'a str {
    if !action.mnemonic.is_empty() {
        return action.mnemonic;
    }
    let program = action.arguments.first().map_or("", String::as_str);
    program.rsplit(['/', '\\']).next().unwrap_or(program)
}

fn affinity(action: &KeyedAction<'_>) -> Vec<ActionKey> {
    let mut platform: Vec<&(String, String)> = action.platform.iter().collect();
    platform.sort();
    let texts: Vec<&str> =
        platform.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]).collect();
    let here = |purpose: &str| {
        Hasher::new(purpose).text(action.group.as_str()).text(action.instance).all(texts.iter().copied())
    };
    let repository = named(action, &REPOSITORY).filter(|_| action.target.is_empty());
    if let Some(repository) = repository {
        let branch = named(action, &BRANCH);
        let both = branch.map(|branch| here("warm branch").text(repository).text(branch).key());
        let alone = here("warm repository").text(repository).key();
        return both.into_iter().chain([alone]).map(ActionKey).collect();
    }
    let output = action.outputs.iter().find_map(|outputs| outputs.first());
    let output = output.map(|output| here("warm output").text(output).key());
    let target = (!action.target.is_empty()).then(|| here("warm target").text(action.target).key());
    output.into_iter().chain(target).map(ActionKey).collect()
}

/// The value of the first of `names` that is set.
fn named<'a>(action: &KeyedAction<'a>, names: &[&str]) -> Option<&'a str> {
    let of = |name: &&str| {
        let pairs = action.environment.iter().chain(action.platform);
        pairs.filter(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str()).next()
    };
    names.iter().find_map(of)
}

#[cfg(test)]
mod tests;
