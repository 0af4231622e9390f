//! The secrets of a run: resolved at its start, given to its command, and masked in all that leaves it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

use callers::BuildTokens;
use model::{OutputFile, OutputNotKept, SecretName, SecretRequest, TargetFacts, ToolFacts};
use sandbox::SecretMount;
use secrets::{Masks, NoMasks, Secret};
use shim::User;

use crate::{
    ending::Ending,
    folder::RunFolder,
    outputs::{MissingOutput, Outputs},
    secret_files::{SecretMemory, StagedSecrets},
};

/// The variable with the folder of the secrets that are files.
const FOLDER: &str = "FOREBAY_SECRETS_DIR";

/// The secrets of a run: those that its request names, and its token for gateways.
pub(crate) struct BuildSecrets {
    values: BTreeMap<SecretName, Secret>,
    token: Option<Secret>,
    masks: Arc<Masks>,
    /// The files that are secrets, until the sandbox has them.
    staged: Option<StagedSecrets>,
}

fn files(asked: &[SecretRequest]) -> impl Iterator<Item = &SecretName> {
    asked.iter().filter(|secret| secret.variable.is_none()).map(|secret| &secret.name)
}

impl BuildSecrets {
    /// # Errors
    ///
    /// Fails if they cannot be masked.
    pub(crate) fn new(values: BTreeMap<SecretName, Secret>, token: Option<String>) -> Result<Self, NoMasks> {
        // What precedes the proof says which build it is, and stays readable. A proof is long enough to be masked.
        let proof = token
            .as_deref()
            .and_then(|token| Secret::new(BuildTokens::proof(token).as_bytes().to_vec()).ok());
        let masks = Masks::new(values.values().chain(&proof))?;
        let token = token.and_then(|token| Secret::new(token.into_bytes()).ok());
        Ok(Self { values, token, masks, staged: None })
    }

    /// The token for gateways.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_ref()?.reveal_as_variable().ok()
    }

    pub(crate) fn masks(&self) -> &Arc<Masks> {
        &self.masks
    }

    /// Puts the secrets that are asked for as files where the sandbox of the build, which runs as `user`, gets them from.
    pub(crate) fn stage(
        &mut self,
        asked: &[SecretRequest],
        memory: &SecretMemory,
        user: Option<User>,
    ) -> io::Result<()> {
        let values = files(asked).filter_map(|name| self.values.get_key_value(name));
        self.staged = Some(memory.stage(values, user)?);
        Ok(())
    }

    /// Where the sandbox of the build gets its secrets from, if its request names some.
    pub(crate) fn mount(&self, folder: &RunFolder) -> Option<SecretMount> {
        if self.values.is_empty() {
            return None;
        }
        let files = self.staged.as_ref().map(|staged| staged.files.clone()).unwrap_or_default();
        Some(SecretMount { at: folder.secrets(), files })
    }

    /// Removes the files from where the sandbox got them: only the build has them from here on.
    pub(crate) fn unstage(&mut self) {
        self.staged = None;
    }

    /// The variables of the command that have secrets, or say where these are.
    pub(crate) fn variables<'a>(
        &'a self,
        asked: &'a [SecretRequest],
        folder: &Path,
    ) -> impl Iterator<Item = (String, String)> + use<'a> {
        let has_files = files(asked).next().is_some();
        let folder = has_files.then(|| (FOLDER.to_owned(), folder.display().to_string()));
        let values = asked.iter().filter_map(|SecretRequest { name, variable }| {
            let value = self.values.get(name)?.reveal_as_variable().ok()?;
            Some((variable.as_ref()?.to_string(), value.to_owned()))
        });
        folder.into_iter().chain(values)
    }

    /// The same ending without secrets in its messages.
    pub(crate) fn mask_ending(&self, ending: Ending) -> Ending {
        ending.with_messages(|message| self.text(message))
    }

    fn text(&self, text: String) -> String {
        match self.masks.mask(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(masked) => masked,
        }
    }

    /// The same outputs without secrets in their names.
    pub(crate) fn mask_outputs(&self, outputs: Outputs) -> Outputs {
        let Outputs { mut files, missing, not_kept, not_kept_count } = outputs;
        let not_kept_one = |OutputNotKept { path, reason }| OutputNotKept {
            path: self.text(path),
            reason: self.text(reason),
        };
        let missing_one = |MissingOutput { glob, left_out }| MissingOutput {
            glob: self.text(glob),
            left_out: left_out.map(not_kept_one),
        };
        for file in &mut files {
            file.path = self.text(std::mem::take(&mut file.path));
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Outputs {
            files: with_own_paths(files),
            missing: missing.into_iter().map(missing_one).collect(),
            not_kept: not_kept.into_iter().map(not_kept_one).collect(),
            not_kept_count,
        }
    }

    /// The same facts without secrets in them.
    pub(crate) fn mask_tool(&self, tool: ToolFacts) -> ToolFacts {
        let all = |texts: BTreeSet<String>| texts.into_iter().map(|text| self.text(text)).collect();
        let facts = |TargetFacts { tags, rules }| TargetFacts { tags: all(tags), rules: all(rules) };
        let targets = tool.targets.into_iter();
        ToolFacts {
            version: self.text(tool.version),
            targets: targets.map(|(target, found)| (self.text(target), facts(found))).collect(),
        }
    }
}

/// Numbers outputs whose names differed in a secret only.
fn with_own_paths(mut sorted: Vec<OutputFile>) -> Vec<OutputFile> {
    let mut before: Option<(String, u64)> = None;
    for file in &mut sorted {
        match &mut before {
            Some((path, count)) if *path == file.path => {
                *count += 1;
                file.path = format!("{path} ({count})");
            }
            Some(_) | None => before = Some((file.path.clone(), 1)),
        }
    }
    sorted.sort_by(|one, other| one.path.cmp(&other.path));
    sorted
}
