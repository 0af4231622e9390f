//! An action as it is in the store: its messages, and its result.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_api::Failure;
use model::{ActionView, BlobDigest, DigestFunction, ErrorCode, ExecutionKey, Group, StoredResult};
use prost::Message;
use reapi::execution::{Action, ActionResult, Command, Directory, Platform};

use crate::site::Site;

/// Maximum size of a message that a page reads.
const MESSAGE_MAX: u64 = 8 << 20;

/// An action and its command.
pub(crate) struct Content {
    pub(crate) digest: BlobDigest,
    pub(crate) action: Action,
    pub(crate) command: Command,
}

/// Reads a message of the store.
pub(crate) async fn message<M: Message + Default>(
    site: &Site,
    digest: &BlobDigest,
    what: &str,
) -> Result<M, Failure> {
    let missing = |error: cas::CasError| {
        Failure::missing(format!("{what} {digest} cannot be read: {}", telemetry::error_chain(&error)))
    };
    let bytes = site.api.cas.read_whole(digest, MESSAGE_MAX).await.map_err(missing)?;
    M::decode(bytes).map_err(|_| Failure::invalid(format!("blob {digest} is not a valid {what}")))
}

impl Content {
    /// Reads an action and its command.
    pub(crate) async fn read(site: &Site, digest: BlobDigest) -> Result<Self, Failure> {
        let action: Action = message(site, &digest, "action").await?;
        let command = part(digest.function, action.command_digest.as_ref(), "command")?;
        let command = message(site, &command, "command").await?;
        Ok(Self { digest, action, command })
    }

    /// The digest of the folder with the inputs.
    pub(crate) fn root(&self) -> Result<BlobDigest, Failure> {
        part(self.digest.function, self.action.input_root_digest.as_ref(), "input root")
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.action.timeout.as_ref().and_then(|it| u64::try_from(it.seconds).ok()).map(Duration::from_secs)
    }

    /// The properties that its executor must have.
    pub(crate) fn platform(&self) -> Vec<(String, String)> {
        let own = self.action.platform.as_ref();
        #[expect(deprecated, reason = "older clients set it")]
        let of_command = self.command.platform.as_ref();
        let platform: Option<&Platform> = own.or(of_command);
        platform.iter().flat_map(|it| &it.properties).map(|it| (it.name.clone(), it.value.clone())).collect()
    }

    /// The paths of the files and folders that it makes.
    #[expect(deprecated, reason = "older clients set them")]
    pub(crate) fn outputs(&self) -> Vec<String> {
        let Command { output_paths, output_files, output_directories, .. } = &self.command;
        output_paths.iter().chain(output_files).chain(output_directories).cloned().collect()
    }

    /// The folder with this digest.
    pub(crate) async fn folder(site: &Site, digest: &BlobDigest) -> Result<Directory, Failure> {
        message(site, digest, "folder").await
    }

    /// The result: of the last execution that the bus has, else of the action cache.
    pub(crate) async fn result(
        &self,
        site: &Site,
        digest: &BlobDigest,
        group: Option<&Group>,
        executions: &[ActionView],
    ) -> Option<ActionResult> {
        if let Some(last) = executions.iter().find(|it| it.code.is_some()) {
            let key = ExecutionKey { group: last.group.clone(), id: last.id };
            if let Ok(Some((_, record))) = site.client().bus().records().latest(&key).await
                && let Some(stored) = record.outcome().and_then(|outcome| outcome.result.as_ref())
            {
                let bytes = match stored {
                    StoredResult::Inline(text) => STANDARD.decode(text).ok().map(Into::into),
                    StoredResult::Blob(blob) => site.api.cas.read_whole(blob, MESSAGE_MAX).await.ok(),
                };
                if let Some(result) = bytes.and_then(|bytes: bytes::Bytes| ActionResult::decode(bytes).ok()) {
                    return Some(result);
                }
            }
        }
        for instance in ["", group?.as_str()] {
            if let Ok(Some(result)) = site.api.cas.get_action(instance, digest).await {
                return Some((*result).clone());
            }
        }
        None
    }
}

fn part(
    function: DigestFunction,
    digest: Option<&reapi::execution::Digest>,
    what: &str,
) -> Result<BlobDigest, Failure> {
    let wrong = || Failure::new(ErrorCode::InvalidRequest, format!("the action names no valid {what}"));
    reapi::digest::from_proto(digest.ok_or_else(wrong)?, function).map_err(|_| wrong())
}
