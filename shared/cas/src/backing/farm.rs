//! The store of a farm behind the local tier, over the Remote Execution API.
//!
//! The farm evicts, so a file in the local tier proves nothing about the farm. A blob counts as stored if the farm
//! confirmed or received it within an eighth of `keep`.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction, StoreId, Zone};
use reapi::execution::ActionResult;
use remote::{Remote, RemoteError, Source};
use tokio::{runtime::Handle, sync::watch};

use crate::{
    CasConfig, CasError,
    empty_blob::is_empty,
    known::{Known, LastUse},
    pieces::BlobStream,
    put_progress::PutProgress,
};

/// Schemes of the address of a farm, without and with TLS.
const SCHEMES: [&str; 2] = ["grpc://", "grpcs://"];
/// Delays before an unanswered call is repeated.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// Up to this many bytes (and `UNASKED` blobs) are sent without first asking whether the farm needs them.
const UNASKED_BYTES: u64 = 128 << 10;
const UNASKED: usize = 32;

/// A failed call, shared by all the blobs that it concerned.
type Failure = Arc<RemoteError>;

#[derive(Debug)]
pub(crate) struct Farm {
    url: String,
    remote: Remote,
    /// Blobs that the farm recently confirmed or received.
    known: Known,
    /// Whether the last call, or an attempt of it, remained without an answer.
    away: watch::Sender<bool>,
}

impl Farm {
    pub(crate) fn is_farm_url(url: &str) -> bool {
        SCHEMES.iter().any(|scheme| url.starts_with(scheme))
    }

    /// Opens the instance `main` of the server at `grpc://HOST:PORT/main`. Connects with the first call.
    pub(crate) fn open(url: &str, config: &CasConfig) -> Result<Self, CasError> {
        let unsupported = |why: String| CasError::Unsupported { url: url.to_owned(), why };
        let found = SCHEMES.iter().find_map(|scheme| Some((scheme, url.strip_prefix(scheme)?)));
        let (scheme, rest) = found.present_or((&"grpc://", url), "the address of a farm's store");
        let rest = rest.trim_end_matches('/');
        let (address, instance) = rest.split_once('/').unwrap_or((rest, ""));
        let port = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        if port.is_none_or(|(host, _)| host.is_empty()) {
            return Err(unsupported("it must be grpc://HOST:PORT or grpc://HOST:PORT/INSTANCE".to_owned()));
        }
        if Handle::try_current().is_err() {
            return Err(unsupported("a grpc:// store must be opened within a Tokio runtime".to_owned()));
        }
        let remote = Remote::lazily(&format!("{scheme}{address}"), instance, DigestFunction::Sha256)
            .map_err(|error| unsupported(error.to_string()))?;
        Ok(Self {
            url: url.to_owned(),
            remote,
            known: Known::new(config.known_max, config.keep, config.floor()),
            away: watch::Sender::new(false),
        })
    }

    /// The same farm, asked on behalf of a zone.
    pub(crate) fn in_zone(&self, zone: &Zone, config: &CasConfig) -> Self {
        Self {
            url: self.url.clone(),
            remote: self.remote.in_zone(zone),
            known: Known::new(config.known_max, config.keep, config.floor()),
            away: self.away.clone(),
        }
    }

    /// Returns the id that the farm's store reports.
    pub(crate) async fn id(&self) -> Result<Option<StoreId>, CasError> {
        self.with_retries(|| self.remote.store_id()).await.map_err(|failure| self.failed(&failure))
    }

    /// Publishes whether the last call remained without an answer.
    pub(crate) fn away(&self) -> watch::Receiver<bool> {
        self.away.subscribe()
    }

    /// Records that a call was given up without an answer.
    pub(crate) fn report_no_answer(&self) {
        self.set_away(true);
    }

    fn set_away(&self, is_away: bool) {
        self.away.send_if_modified(|away| std::mem::replace(away, is_away) != is_away);
    }

    pub(crate) fn failed(&self, failure: &Failure) -> CasError {
        if let RemoteError::Refused { status, .. } = &**failure
            && status.code() == tonic::Code::ResourceExhausted
        {
            if reapi::status::is_zone_limit(status) {
                return CasError::RefusedForZone { message: status.message().to_owned() };
            }
            return CasError::Full;
        }
        let (url, source) = (self.url.clone(), Arc::clone(failure));
        if failure.is_unreachable() {
            CasError::Unreachable { url, source }
        } else {
            CasError::Remote { url, source }
        }
    }

    /// Makes a call and repeats it while the server does not answer: a server that is being replaced is soon back.
    async fn with_retries<T, F>(&self, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, RemoteError>>,
    {
        for wait in WAITS {
            match call().await {
                Err(error) if error.is_unreachable() => {
                    // The caller may give up the call before its last attempt.
                    self.set_away(true);
                    tracing::debug!(url = self.url, error = &error as &dyn std::error::Error, "retrying");
                    tokio::time::sleep(wait).await;
                }
                outcome => return self.noted(outcome),
            }
        }
        self.noted(call().await)
    }

    /// Records whether the farm answered a call.
    fn noted<T>(&self, outcome: Result<T, RemoteError>) -> Result<T, Failure> {
        self.set_away(outcome.as_ref().is_err_and(RemoteError::is_unreachable));
        outcome.map_err(Arc::new)
    }

    /// Returns those of `digests` that the farm lacks, each once, in their order. The farm keeps
    /// the others for its `keep`.
    pub(crate) async fn missing(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        self.find_missing(digests).await.map_err(|failure| self.failed(&failure))
    }

    async fn find_missing(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, Failure> {
        let at = self.known.now();
        let mut mentioned = HashSet::new();
        let is_cold = |digest: &&BlobDigest| !is_empty(digest) && self.known.fresh(digest, at).is_none();
        let mut cold: Vec<BlobDigest> = digests.iter().filter(is_cold).copied().collect();
        cold.retain(|digest| mentioned.insert(*digest));
        let mut missing = HashSet::new();
        for (remote, part) in self.by_function(&cold) {
            missing.extend(self.with_retries(|| remote.missing(&part)).await?);
        }
        cold.retain(|digest| {
            let lacks = missing.contains(digest);
            if !lacks {
                self.note(digest, at);
            }
            lacks
        });
        Ok(cold)
    }

    fn note(&self, digest: &BlobDigest, at: u64) {
        self.known.note(digest, LastUse { at, local: false, twin: false });
    }

    /// Groups digests by function: each request is about one function.
    fn by_function(&self, digests: &[BlobDigest]) -> Vec<(Remote, Vec<BlobDigest>)> {
        let of = |function: DigestFunction| {
            let part: Vec<_> = digests.iter().filter(|digest| digest.function == function).copied().collect();
            (self.remote.with_function(function), part)
        };
        DigestFunction::ALL.into_iter().map(of).filter(|(_, part)| !part.is_empty()).collect()
    }

    /// Sends those blobs that the farm lacks. Afterwards the farm has all of them.
    pub(crate) async fn put_all(
        &self,
        blobs: Vec<(BlobDigest, Source)>,
        progress: &PutProgress,
    ) -> Result<(), Failure> {
        let at = self.known.now();
        let mut blobs: HashMap<BlobDigest, Source> = blobs.into_iter().collect();
        blobs.retain(|digest, _| !is_empty(digest) && self.known.fresh(digest, at).is_none());
        let bytes: u64 = blobs.keys().map(|digest| digest.size).sum();
        if blobs.len() > UNASKED || bytes > UNASKED_BYTES {
            let digests: Vec<BlobDigest> = blobs.keys().copied().collect();
            let missing: HashSet<BlobDigest> = self.find_missing(&digests).await?.into_iter().collect();
            blobs.retain(|digest, _| missing.contains(digest));
        }
        let digests: Vec<BlobDigest> = blobs.keys().copied().collect();
        for (remote, part) in self.by_function(&digests) {
            let part: HashMap<BlobDigest, Source> =
                part.into_iter().filter_map(|digest| blobs.remove_entry(&digest)).collect();
            let upload = progress.begin_upload();
            let send = || {
                let (remote, part, meter) = (&remote, &part, progress.begin_attempt(upload));
                async move { remote.put_many_with_progress(part, &meter).await }
            };
            self.with_retries(send).await?;
        }
        for digest in &digests {
            self.note(digest, at);
        }
        Ok(())
    }

    pub(crate) async fn put_file(&self, digest: BlobDigest, path: PathBuf) -> Result<(), CasError> {
        let sent = self.put_all(vec![(digest, Source::File(path))], &PutProgress::default()).await;
        sent.map_err(|failure| self.failed(&failure))
    }

    /// Streams a blob from `start`, unverified; `None` if the farm does not have it.
    pub(crate) async fn open_at(
        &self,
        digest: &BlobDigest,
        start: u64,
    ) -> Result<Option<BlobStream>, CasError> {
        let remote = self.remote.with_function(digest.function);
        let opened = self.with_retries(|| open_checked(&remote, digest, start)).await;
        let Some(pieces) = opened.map_err(|failure| self.failed(&failure))? else {
            self.known.forget(digest);
            return Ok(None);
        };
        let url = self.url.clone();
        let failed = move |error| CasError::Remote { url: url.clone(), source: Arc::new(error) };
        Ok(Some(pieces.map_err(failed).boxed()))
    }

    /// Reads small blobs of one function, unverified.
    pub(crate) async fn read_batch(&self, digests: &[BlobDigest]) -> Result<Vec<Option<Bytes>>, CasError> {
        let function = digests.first().map_or(DigestFunction::Sha256, |digest| digest.function);
        let remote = self.remote.with_function(function);
        let read = self.with_retries(|| remote.read_batch(digests)).await;
        read.map_err(|failure| self.failed(&failure))
    }

    pub(crate) async fn get_action(
        &self,
        instance: &str,
        action: &BlobDigest,
    ) -> Result<Option<ActionResult>, CasError> {
        let remote = self.remote.with_function(action.function).with_instance(instance);
        let found = self.with_retries(|| remote.cached(action)).await;
        found.map_err(|failure| self.failed(&failure))
    }

    pub(crate) async fn put_action(
        &self,
        instance: &str,
        action: &BlobDigest,
        result: &ActionResult,
    ) -> Result<(), CasError> {
        let remote = self.remote.with_function(action.function).with_instance(instance);
        let stored = self.with_retries(|| remote.update_action(action, result.clone())).await;
        stored.map_err(|failure| self.failed(&failure))
    }

    /// The error for removing a result, which the API cannot do.
    pub(crate) fn no_removal(&self) -> CasError {
        let why = "the Remote Execution API cannot remove results; remove them on the farm".to_owned();
        CasError::Unsupported { url: self.url.clone(), why }
    }
}

type Pieces = stream::BoxStream<'static, Result<Bytes, RemoteError>>;

/// Opens a blob and waits for its first piece, which reveals whether the farm has the blob.
async fn open_checked(
    remote: &Remote,
    digest: &BlobDigest,
    start: u64,
) -> Result<Option<Pieces>, RemoteError> {
    let Some(mut pieces) = remote.open(digest, start).await? else { return Ok(None) };
    match pieces.next().await {
        Some(Err(RemoteError::Refused { status, .. })) if status.code() == tonic::Code::NotFound => Ok(None),
        Some(Err(error)) => Err(error),
        Some(Ok(piece)) => Ok(Some(stream::iter([Ok(piece)]).chain(pieces).boxed())),
        None => Ok(Some(stream::empty().boxed())),
    }
}
