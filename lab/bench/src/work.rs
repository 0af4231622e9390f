//! Unique actions of `/bin/true`.

use std::{collections::HashMap, time::Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use reapi::execution::{Action, Command, Platform, platform::Property};
use remote::{Executed, Remote, Source, action_of};

use crate::{error::BenchError, rounds::Load, statistics::Percentiles};

/// Executes unique actions of `/bin/true`.
pub(crate) struct Work {
    pub(crate) remote: Remote,
    command: Command,
}

impl Work {
    /// Uploads the command of the actions.
    pub(crate) async fn new(remote: Remote) -> Result<Self, BenchError> {
        let command = Command { arguments: vec!["/bin/true".to_owned()], ..Command::default() };
        let work = Self { remote, command };
        let (_, blobs) = work.action(Vec::new(), &DigestFunction::Sha256.empty(), "");
        work.remote.upload(&blobs).await?;
        Ok(work)
    }

    /// An action with input root `root`, in `pool` unless it is empty.
    pub(crate) fn action(
        &self,
        salt: Vec<u8>,
        root: &BlobDigest,
        pool: &str,
    ) -> (BlobDigest, HashMap<BlobDigest, Source>) {
        let property = Property { name: "Pool".to_owned(), value: pool.to_owned() };
        let platform = (!pool.is_empty()).then(|| Platform { properties: vec![property] });
        let action = Action { salt, platform, ..Action::default() };
        action_of(DigestFunction::Sha256, &self.command, action, root)
    }

    /// Uploads new actions, in as few calls as possible.
    pub(crate) async fn upload_new(&self, count: u64) -> Result<Vec<BlobDigest>, BenchError> {
        let (mut actions, mut uploads) = (Vec::new(), HashMap::new());
        for _ in 0..count {
            let salt = uuid::Uuid::new_v4().as_bytes().to_vec();
            let (digest, mut blobs) = self.action(salt, &DigestFunction::Sha256.empty(), "");
            // The command is already stored, which real clients also know after their first look-up.
            blobs.retain(|blob, _| *blob == digest);
            uploads.extend(blobs);
            actions.push(digest);
        }
        self.remote.put_many(&uploads).await?;
        Ok(actions)
    }

    /// Executes an action. It is an error if the action fails.
    pub(crate) async fn execute(&self, action: &BlobDigest) -> Result<Executed, BenchError> {
        let executed = self.remote.execute(action, false, 0, |_, _| ()).await?;
        let status = executed.response.status.as_ref().map_or(0, |status| status.code);
        let exit = executed.response.result.as_ref().map(|result| result.exit_code);
        if status != 0 || exit != Some(0) {
            let message = executed.response.status.unwrap_or_default().message;
            return Err(BenchError::plain(format!(
                "an action failed: exit {exit:?}, status {status} {message}"
            )));
        }
        Ok(executed)
    }

    /// Latency of single actions from upload to result.
    pub(crate) async fn latency(&self, samples: usize) -> Result<Percentiles, BenchError> {
        let mut found = Vec::with_capacity(samples);
        for number in 0..samples + 20 {
            let begun = Instant::now();
            for action in self.upload_new(1).await? {
                self.execute(&action).await?;
            }
            if number >= 20 {
                found.push(begun.elapsed().as_secs_f64() * 1000.0);
            }
        }
        Ok(Percentiles::of(&mut found))
    }
}

/// Actions with this many concurrent requests. They are uploaded before they are measured: clients upload the inputs
/// of many actions in one call, and Forebay does nothing for an upload that it does not do for any other blob.
pub(crate) struct ActionLoad<'a> {
    pub(crate) work: &'a Work,
    pub(crate) in_flight: usize,
}

impl Load for ActionLoad<'_> {
    type Batch = Vec<BlobDigest>;

    async fn prepare(&self, items: u64) -> Result<Self::Batch, BenchError> {
        self.work.upload_new(items).await
    }

    async fn run(&self, batch: Self::Batch) -> Result<(), BenchError> {
        let all = futures::stream::iter(&batch).map(|action| self.work.execute(action));
        all.buffer_unordered(self.in_flight).try_for_each(|_| futures::future::ready(Ok(()))).await
    }
}
