//! Gets the secrets of a build from the files of the worker, at the start of a run.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use model::{Group, Reason, ReasonCode, SecretName, SecretRequest};
use secrets::Secret;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    build_run::Run,
    build_secrets::BuildSecrets,
    ending::Ending,
    prepare,
    secret_store::{NoSecret, SecretStore},
    secret_watch,
};

/// How much longer than the build its token is accepted.
const TOKEN_RESERVE: Duration = Duration::from_secs(60);

/// Why a run does not get its secrets.
enum NotGiven {
    /// Another worker may have it.
    NotHere(String),
    Never(String),
}

impl Run<'_> {
    /// Reads the secrets that the build asks for, and makes its token for gateways. A build never runs without one of these.
    pub(crate) async fn take_secrets(&mut self) -> Result<(), Ending> {
        let build = &self.record.build;
        let token = self.shared.build_tokens.as_ref().map(|tokens| {
            // The build ends before, with its time limit.
            let lasts = self.timeout_at.saturating_duration_since(Instant::now()) + TOKEN_RESERVE;
            // By the time of the farm: the clock of this machine may be wrong.
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.shared.context.bus.now().0);
            tokens.issue(&build.key(), now + lasts)
        });
        if build.secrets.is_empty() && token.is_none() {
            return Ok(());
        }
        let reason = |message: String| Reason { code: ReasonCode::SecretUnavailable, message };
        if self.sandbox().is_none() && !build.secrets.is_empty() {
            // Others on the machine could read them.
            let why = "secrets: builds get them in a sandbox only, and this one runs without";
            return Err(Ending::Failed(reason(why.to_owned()), None));
        }
        let (group, asked) = (build.group.clone(), build.secrets.clone());
        let read = match self.shared.offered.secrets().cloned() {
            _ if asked.is_empty() => Ok(BTreeMap::new()),
            Some(store) => {
                let read = tokio::task::spawn_blocking(move || read(&store, &group, &asked)).await;
                read.unwrap_or_else(|error| {
                    Err(NotGiven::NotHere(format!("cannot read the secrets: {error}")))
                })
            }
            None => Err(NotGiven::NotHere("this worker has no secrets (secrets_folder)".to_owned())),
        };
        let unmasked = |why| NotGiven::Never(format!("the secrets of the build cannot be masked: {why}"));
        match read.and_then(|values| BuildSecrets::new(values, token).map_err(unmasked)) {
            Ok(secrets) => {
                self.console.mask(secrets.masks());
                self.secrets = Some(secrets);
                Ok(())
            }
            Err(NotGiven::Never(why)) => Err(Ending::Failed(reason(why), None)),
            Err(NotGiven::NotHere(why)) => {
                // Before the build is offered again.
                secret_watch::refresh(self.shared).await;
                Err(Ending::GiveBack(reason(why)))
            }
        }
    }

    /// Puts the secrets that the build asks for as files where its sandbox gets them from.
    #[expect(clippy::result_large_err, reason = "at most one is made for a run")]
    pub(crate) fn stage_secrets(&mut self) -> Result<(), Ending> {
        let user = self.users().of_build(self.image.as_deref());
        let (Some(secrets), Some(memory)) = (&mut self.secrets, &self.shared.secret_memory) else {
            return Ok(());
        };
        let made = self.workspace.folder.make_secrets();
        let staged = made.and_then(|()| secrets.stage(&self.record.build.secrets, memory, user));
        staged.map_err(|error| Ending::GiveBack(prepare::unusable(&error)))
    }
}

fn read(
    store: &SecretStore,
    group: &Group,
    asked: &[SecretRequest],
) -> Result<BTreeMap<SecretName, Secret>, NotGiven> {
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
    Ok(values)
}

fn not_read(group: &Group, name: &SecretName, why: &NoSecret) -> NotGiven {
    warn!(%group, %name, %why, "a secret that this worker offered cannot be given to a build");
    NotGiven::NotHere(format!("the secret {name} of the group {group} cannot be used on this worker: {why}"))
}
