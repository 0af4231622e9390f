//! Reads the version of Bazel that the folder of a build asks for.

use model::{BlobDigest, Build, DigestFunction};
use policy::states_version;
use prost::Message as _;
use reapi::{digest::from_proto, execution::Directory};
use tracing::debug;

use crate::store::{Store, StoreError};

/// File in which Bazelisk finds the version, in the root of the workspace.
const NAME: &str = ".bazelversion";
/// Maximum size of that file in bytes.
const FILE_BYTES_MAX: u64 = 1024;
/// Maximum size of the root folder's message in bytes.
const FOLDER_BYTES_MAX: u64 = 1 << 20;

/// The content of the file `.bazelversion`, if the folder of `build` is in the store and the version matters: for the choice
/// of a warm workspace, where another version would restart the server.
pub(crate) async fn version_file(store: &Store, build: &Build) -> Option<String> {
    let root = build.context.tree()?;
    let calls_bazel = build.command.iter().any(|word| word.contains("bazel"));
    if build.workspace.is_fresh() || !calls_bazel || states_version(build) {
        return None;
    }
    match read(store, &root).await {
        Ok(content) => content,
        Err(error) => {
            debug!(build = %build.id, error = telemetry::error_chain(&error), "cannot read {NAME}");
            None
        }
    }
}

async fn read(store: &Store, root: &BlobDigest) -> Result<Option<String>, StoreError> {
    let content = store.read_whole(root, FOLDER_BYTES_MAX).await?;
    let Some(file) = named(&content, root.function) else { return Ok(None) };
    let content = store.read_whole(&file, FILE_BYTES_MAX).await?;
    Ok(String::from_utf8(content.to_vec()).ok())
}

/// The digest of the file in a `Directory` message.
fn named(content: &[u8], function: DigestFunction) -> Option<BlobDigest> {
    let directory = Directory::decode(content).ok()?;
    let file = directory.files.into_iter().find(|file| file.name == NAME)?;
    from_proto(&file.digest?, function).ok()
}
