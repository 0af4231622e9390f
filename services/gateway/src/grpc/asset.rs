//! Remote Asset API: content by origin URI, pushed by clients or fetched over HTTP and HTTPS by the gateway.
//!
//! An asset is stored as an action result under an instance name that no client can use. The store's completeness
//! check and its guarantee to keep referenced blobs therefore cover assets too.

mod download;
mod fetch;
mod key;
mod push;
mod sri;

use std::{path::PathBuf, sync::Arc};

use callers::{Caller, Shares};
use cas::{Cas, TreeCheck};
use model::{BlobDigest, Millis};
use prost::Message as _;
use reapi::{
    execution::{ActionResult, ExecutedActionMetadata, OutputFile},
    protobuf::Timestamp,
    status,
};
use tokio::sync::Semaphore;
use tonic::{Request, Status};

use super::{Core, faults, state::timestamp};
use key::AssetKind;

/// Maximum number of simultaneous downloads, of all callers and of each.
const DOWNLOADS_MAX: usize = 16;
const DOWNLOADS_OF_CALLER_MAX: usize = 4;
const TIMESTAMP: &str = "google.protobuf.Timestamp";

/// Implementation of the `build.bazel.remote.asset.v1` services.
#[derive(Clone)]
pub(crate) struct AssetApi {
    core: Core,
    /// Directory for incomplete downloads.
    folder: Arc<PathBuf>,
    downloads: Arc<Semaphore>,
    shares: Arc<Shares>,
    /// Who makes the call.
    caller: Option<Arc<Caller>>,
}

impl AssetApi {
    /// Creates the services; downloads are stored in `folder` until they are complete.
    pub(crate) fn new(core: Core, folder: PathBuf) -> Self {
        Self {
            core,
            folder: Arc::new(folder),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            shares: Arc::new(Shares::new(DOWNLOADS_OF_CALLER_MAX)),
            caller: None,
        }
    }

    /// The same services, with the store as the caller of a call sees it.
    fn seen_by<T>(&self, request: &Request<T>) -> Result<Self, Status> {
        let caller = Caller::of(request.extensions());
        let core = self.core.seen_by((&caller, request.metadata()), None)?.into_owned();
        Ok(Self { core, caller: Some(caller), ..self.clone() })
    }
}

/// A pushed or fetched asset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asset {
    /// Digest of the blob or of the root directory.
    pub(crate) digest: BlobDigest,
    /// Blobs and directories that must be kept with it.
    pub(crate) references: Vec<BlobDigest>,
    /// Time of the push, or of the start of the download.
    pub(crate) since: Millis,
    /// Time after which it is no longer served.
    pub(crate) expires: Option<Timestamp>,
}

impl Asset {
    fn to_result(&self) -> ActionResult {
        let file = |path: &str, digest: &BlobDigest| OutputFile {
            path: path.to_owned(),
            digest: Some(reapi::digest::to_proto(digest)),
            ..OutputFile::default()
        };
        let mut output_files = vec![file("asset", &self.digest)];
        output_files.extend(self.references.iter().map(|digest| file("reference", digest)));
        let expires = self.expires.as_ref().map(|expires| status::any(expires, TIMESTAMP));
        let metadata = ExecutedActionMetadata {
            worker: "gateway".into(),
            worker_completed_timestamp: Some(timestamp(self.since)),
            auxiliary_metadata: expires.into_iter().collect(),
            ..ExecutedActionMetadata::default()
        };
        ActionResult { output_files, execution_metadata: Some(metadata), ..ActionResult::default() }
    }

    fn of(result: &ActionResult, function: model::DigestFunction) -> Option<Self> {
        let mut digests = result.output_files.iter().map(|file| {
            file.digest.as_ref().and_then(|digest| reapi::digest::from_proto(digest, function).ok())
        });
        let digest = digests.next()??;
        let references = digests.collect::<Option<_>>()?;
        let metadata = result.execution_metadata.as_ref()?;
        let since = millis(metadata.worker_completed_timestamp.as_ref()?);
        let expires = metadata.auxiliary_metadata.first().and_then(|any| Timestamp::decode(&*any.value).ok());
        Some(Self { digest, references, since, expires })
    }
}

/// The stored asset, if it has not expired and its content is complete.
async fn find(
    core: &Core,
    kind: AssetKind,
    instance: &str,
    key: &BlobDigest,
) -> Result<Option<Asset>, Status> {
    let cas = &core.cas;
    let found = cas.get_action(&key::instance(instance), key).await.map_err(|error| faults::store(&error))?;
    let Some(asset) = found.and_then(|result| Asset::of(&result, key.function)) else { return Ok(None) };
    if asset.expires.as_ref().is_some_and(|expires| millis(expires) <= core.bus.now()) {
        return Ok(None);
    }
    let whole = match kind {
        AssetKind::Blob => true,
        AssetKind::Directory => {
            let tree = cas.check_tree(&asset.digest).await.map_err(|error| faults::store(&error))?;
            tree == TreeCheck::Complete
        }
    };
    Ok(whole.then_some(asset))
}

async fn store_asset(cas: &Cas, instance: &str, key: &BlobDigest, asset: &Asset) -> Result<(), Status> {
    let kept = cas.put_action(&key::instance(instance), key, &asset.to_result()).await;
    kept.map_err(|error| faults::store(&error))
}

fn millis(at: &Timestamp) -> Millis {
    // Clients may send a time before 1970: it has passed, like 1970.
    let seconds = u64::try_from(at.seconds).unwrap_or(0);
    let nanos = u64::try_from(at.nanos).unwrap_or(0);
    Millis(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use model::DigestFunction;

    use super::*;

    #[test]
    fn what_is_known_of_an_asset_is_read_as_written() {
        let asset = Asset {
            digest: DigestFunction::Blake3.digest(b"x"),
            references: vec![DigestFunction::Blake3.digest(b"y")],
            since: Millis(1_700_000_000_123),
            expires: Some(Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        };
        assert_eq!(Asset::of(&asset.to_result(), DigestFunction::Blake3), Some(asset));
        assert_eq!(Asset::of(&ActionResult::default(), DigestFunction::Blake3), None);
    }
}
