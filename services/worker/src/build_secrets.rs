//! The secrets of a run: resolved at its start, given to its command, and masked in all that leaves it.

use std::{borrow::Cow, collections::BTreeMap, io, path::Path, sync::Arc};

use model::{
    OutputFile, OutputNotKept, Reason, ReasonCode, SecretName, SecretRequest, TargetFacts, ToolFacts,
};
use sandbox::SecretMount;
use secrets::{Masks, Secret};
use tracing::warn;

use crate::{
    build_run::Run,
    ending::Ending,
    folder::RunFolder,
    offered,
    outputs::{MissingOutput, Outputs},
    prepare,
    secret_files::StagedSecrets,
    secret_store::{NoSecret, SecretStore},
};

/// The variable with the folder of the secrets that are files.
const FOLDER: &str = "FOREBAY_SECRETS_DIR";

/// The secrets of a run.
pub(crate) struct BuildSecrets {
    values: BTreeMap<SecretName, Secret>,
    masks: Arc<Masks>,
    /// The files that are secrets, until the sandbox has them.
    staged: Option<StagedSecrets>,
}

/// Why a run does not get its secrets.
enum NotGiven {
    /// Another worker may have it.
    NotHere(String),
    Never(String),
}

impl Run<'_> {
    /// Reads the secrets that the build asks for. A build never runs without one.
    pub(crate) async fn take_secrets(&mut self) -> Result<(), Ending> {
        let build = &self.record.build;
        if build.secrets.is_empty() {
            return Ok(());
        }
        let reason = |message: String| Reason { code: ReasonCode::SecretUnavailable, message };
        if self.sandbox().is_none() {
            // Others on the machine could read them.
            let why = "secrets: builds get them in a sandbox only, and this one runs without";
            return Err(Ending::Failed(reason(why.to_owned()), None));
        }
        let (group, asked) = (build.group.clone(), build.secrets.clone());
        let read = match self.shared.offered.secrets().cloned() {
            Some(store) => {
                let read = tokio::task::spawn_blocking(move || read(&store, &group, &asked)).await;
                read.unwrap_or_else(|error| {
                    Err(NotGiven::NotHere(format!("cannot read the secrets: {error}")))
                })
            }
            None => Err(NotGiven::NotHere("this worker has no secrets (secrets_folder)".to_owned())),
        };
        match read {
            Ok(secrets) => {
                self.console.mask(&secrets.masks);
                self.secrets = Some(secrets);
                Ok(())
            }
            Err(NotGiven::Never(why)) => Err(Ending::Failed(reason(why), None)),
            Err(NotGiven::NotHere(why)) => {
                // Before the build is offered again.
                offered::refresh(self.shared).await;
                Err(Ending::GiveBack(reason(why)))
            }
        }
    }

    /// Puts the secrets that the build asks for as files where its sandbox gets them from.
    pub(crate) fn stage_secrets(&mut self) -> Result<(), Ending> {
        let user = self.users().of_build(self.image.as_deref());
        let Some(secrets) = &mut self.secrets else { return Ok(()) };
        let unusable = |error: &io::Error| Ending::GiveBack(prepare::unusable(error));
        self.workspace.folder.make_secrets().map_err(|error| unusable(&error))?;
        let files: Vec<(&SecretName, &Secret)> = files(&self.record.build.secrets)
            .filter_map(|name| secrets.values.get(name).map(|value| (name, value)))
            .collect();
        let (Some(memory), false) = (&self.shared.secret_memory, files.is_empty()) else { return Ok(()) };
        secrets.staged = Some(memory.stage(files, user).map_err(|error| unusable(&error))?);
        Ok(())
    }
}

fn files(asked: &[SecretRequest]) -> impl Iterator<Item = &SecretName> {
    asked.iter().filter(|secret| secret.variable.is_none()).map(|secret| &secret.name)
}

fn read(
    store: &SecretStore,
    group: &model::Group,
    asked: &[SecretRequest],
) -> Result<BuildSecrets, NotGiven> {
    let mut values = BTreeMap::new();
    for SecretRequest { name, variable } in asked {
        if !values.contains_key(name) {
            let value = store.load(group, name).map_err(|why| not_read(group, name, &why))?;
            values.insert(name.clone(), value);
        }
        if variable.is_some()
            && let Some(Err(why)) = values.get(name).map(Secret::reveal_as_variable)
        {
            return Err(NotGiven::Never(format!("the secret {name} of the group {group}: {why}")));
        }
    }
    let masks = Masks::new(values.values())
        .map_err(|why| NotGiven::Never(format!("the secrets of the build cannot be masked: {why}")))?;
    Ok(BuildSecrets { values, masks, staged: None })
}

fn not_read(group: &model::Group, name: &SecretName, why: &NoSecret) -> NotGiven {
    warn!(%group, %name, %why, "a secret that this worker offered cannot be given to a build");
    NotGiven::NotHere(format!("the secret {name} of the group {group} cannot be used on this worker: {why}"))
}

impl BuildSecrets {
    /// Where the sandbox of the build gets its secrets from.
    pub(crate) fn mount(&self, folder: &RunFolder) -> SecretMount {
        let files = self.staged.as_ref().map(|staged| staged.files.clone()).unwrap_or_default();
        SecretMount { at: folder.secrets(), files }
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

    /// Removes the secrets from all that says how the run ended.
    pub(crate) fn mask_end(
        &self,
        ending: Ending,
        outputs: Outputs,
        tool: Option<Box<ToolFacts>>,
    ) -> (Ending, Outputs, Option<Box<ToolFacts>>) {
        let ending = ending.with_messages(|message| self.text(message));
        (ending, self.outputs(outputs), tool.map(|tool| Box::new(self.tool(*tool))))
    }

    fn text(&self, text: String) -> String {
        match self.masks.mask(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(masked) => masked,
        }
    }

    fn outputs(&self, outputs: Outputs) -> Outputs {
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

    fn tool(&self, tool: ToolFacts) -> ToolFacts {
        let all = |texts: std::collections::BTreeSet<String>| {
            texts.into_iter().map(|text| self.text(text)).collect()
        };
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
