//! The Fetch service of the Remote Asset API.

use std::time::Duration;

use ::download::Downloader;
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use reapi::{
    asset::{
        FetchBlobRequest, FetchBlobResponse, FetchDirectoryRequest, FetchDirectoryResponse, Qualifier,
        fetch_server::Fetch,
    },
    protobuf::{self, Timestamp},
    rpc, status,
};
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use super::{
    Asset, AssetApi,
    download::{self, fault},
    find,
    key::{self, AssetKind, DownloadOptions},
    millis,
    sri::Checksum,
    store_asset,
};
use crate::grpc::{RETRY, faults};

/// The common fields of both kinds of requests.
struct FetchFields {
    kind: AssetKind,
    instance: String,
    function: DigestFunction,
    timeout: Option<protobuf::Duration>,
    oldest: Option<Timestamp>,
    uris: Vec<String>,
    qualifiers: Vec<Qualifier>,
}

/// The URI and its asset, or the last URI that failed and its status.
type FetchOutcome = Result<(String, Asset), (String, rpc::Status)>;

#[tonic::async_trait]
impl Fetch for AssetApi {
    async fn fetch_blob(
        &self,
        request: Request<FetchBlobRequest>,
    ) -> Result<Response<FetchBlobResponse>, Status> {
        self.seen_by(&request)?.answer(AssetKind::Blob, request.into_inner()).await.map(Response::new)
    }

    async fn fetch_directory(
        &self,
        request: Request<FetchDirectoryRequest>,
    ) -> Result<Response<FetchDirectoryResponse>, Status> {
        let api = self.seen_by(&request)?;
        let request = request.into_inner();
        // Both kinds of requests have the same fields.
        let request = FetchBlobRequest {
            instance_name: request.instance_name,
            timeout: request.timeout,
            oldest_content_accepted: request.oldest_content_accepted,
            uris: request.uris,
            qualifiers: request.qualifiers,
            digest_function: request.digest_function,
        };
        let response = api.answer(AssetKind::Directory, request).await?;
        Ok(Response::new(FetchDirectoryResponse {
            status: response.status,
            uri: response.uri,
            qualifiers: response.qualifiers,
            expires_at: response.expires_at,
            root_directory_digest: response.blob_digest,
            digest_function: response.digest_function,
        }))
    }
}

impl AssetApi {
    /// Answers a request for an asset of `kind`. In the answer for a directory, `blob_digest` is that of its root.
    async fn answer(&self, kind: AssetKind, request: FetchBlobRequest) -> Result<FetchBlobResponse, Status> {
        let function = reapi::digest::function(request.digest_function, None)?;
        let qualifiers = request.qualifiers.clone();
        let wanted = FetchFields {
            kind,
            instance: request.instance_name,
            function,
            timeout: request.timeout,
            oldest: request.oldest_content_accepted,
            uris: request.uris,
            qualifiers: request.qualifiers,
        };
        let digest_function = reapi::digest::value(function).into();
        Ok(match self.find_or_fetch(&wanted).await? {
            Ok((uri, asset)) => FetchBlobResponse {
                status: Some(rpc::Status::default()),
                uri,
                qualifiers,
                expires_at: asset.expires,
                blob_digest: Some(reapi::digest::to_proto(&asset.digest)),
                digest_function,
            },
            Err((uri, status)) => FetchBlobResponse {
                status: Some(status),
                uri,
                digest_function,
                ..FetchBlobResponse::default()
            },
        })
    }

    async fn find_or_fetch(&self, wanted: &FetchFields) -> Result<FetchOutcome, Status> {
        reapi::instance::check(&wanted.instance)?;
        let rule = self.core.config.instances.rule(&wanted.instance);
        rule.map_err(|refusal| Status::invalid_argument(refusal.to_string()))?;
        key::check(&wanted.uris, &wanted.qualifiers)?;
        let limit = self.limit(wanted.timeout.as_ref())?;
        if let Some(found) = self.known(wanted).await? {
            return Ok(Ok(found));
        }
        // Qualifiers are checked only for content that must be fetched, not for known assets.
        let mut last = None;
        for (index, uri) in wanted.uris.iter().enumerate() {
            let options = key::download_options(&wanted.qualifiers, index)?;
            match self.fetch(wanted, uri, &options, limit).await? {
                Ok(asset) => return Ok(Ok((uri.clone(), asset))),
                Err(status) => last = Some((uri.clone(), status)),
            }
        }
        let none = (String::new(), fault(Code::NotFound, "no URI was given"));
        Ok(Err(last.present_or(none, "a checked request has no URI")))
    }

    fn limit(&self, asked: Option<&protobuf::Duration>) -> Result<Duration, Status> {
        let max = self.core.config.fetch_timeout;
        let Some(asked) = asked else { return Ok(max) };
        let (Ok(seconds), Ok(nanos @ 0..=999_999_999)) =
            (u64::try_from(asked.seconds), u32::try_from(asked.nanos))
        else {
            return Err(status::bad_request("timeout", "invalid duration: expected 0 or more"));
        };
        Ok(Duration::new(seconds, nanos).min(max))
    }

    /// An asset pushed or fetched before under any of the URIs.
    async fn known(&self, wanted: &FetchFields) -> Result<Option<(String, Asset)>, Status> {
        for uri in &wanted.uris {
            let key = key::key(wanted.kind, wanted.function, uri, &wanted.qualifiers);
            let found = find(&self.core, wanted.kind, &wanted.instance, &key).await?;
            let young =
                |asset: &Asset| wanted.oldest.as_ref().is_none_or(|oldest| asset.since >= millis(oldest));
            if let Some(asset) = found.filter(young) {
                return Ok(Some((uri.clone(), asset)));
            }
        }
        Ok(None)
    }

    /// Fetches one URI. The inner error is the origin's, the outer one the gateway's.
    async fn fetch(
        &self,
        wanted: &FetchFields,
        uri: &str,
        options: &DownloadOptions,
        limit: Duration,
    ) -> Result<Result<Asset, rpc::Status>, Status> {
        let scheme = uri.split(':').next().present("a split text has no first part").to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" => {}
            "file" => {
                return Ok(Err(fault(Code::PermissionDenied, format!("{uri}: file URIs are not supported"))));
            }
            _ => {
                return Ok(Err(fault(
                    Code::NotFound,
                    format!("{uri} was not pushed, and only http and https URIs can be fetched"),
                )));
            }
        }
        if wanted.kind == AssetKind::Directory {
            let text = format!("{uri} was not pushed, and directories cannot be fetched");
            return Ok(Err(fault(Code::NotFound, text)));
        }
        let checksum = options.checksum.as_deref().map(Checksum::parse).transpose();
        let checksum = checksum.map_err(|why| status::bad_request("qualifiers.checksum.sri", why))?;
        let until = Instant::now() + limit;
        // That of the caller first: those that wait here keep only their own caller waiting.
        let turns = async {
            match &self.caller {
                Some(caller) => (self.shares.turn(caller).await, self.downloads.acquire().await),
                None => (None, self.downloads.acquire().await),
            }
        };
        let Ok(_turns) = tokio::time::timeout_at(until, turns).await else {
            let text = "too many concurrent downloads; retry later";
            return Err(status::retry(Code::ResourceExhausted, text, RETRY));
        };
        let since = self.core.bus.now();
        let downloader = Downloader::new(self.core.config.fetch_reach.clone());
        let downloader = downloader.map_err(|error| Status::internal(telemetry::error_chain(&error)))?;
        let file = tempfile::Builder::new().prefix("fetch-").tempfile_in(&*self.folder);
        let path = file
            .map_err(|error| Status::internal(format!("cannot create a file for a download: {error}")))?
            .into_temp_path();
        let bytes_max = self.core.config.fetch_bytes_max;
        let fetched = download::download(&downloader, uri, options, checksum, bytes_max, &path);
        match tokio::time::timeout_at(until, fetched).await {
            Err(_) => {
                let text = format!("fetching {uri} took longer than {} s", limit.as_secs_f32());
                return Ok(Err(fault(Code::DeadlineExceeded, text)));
            }
            Ok(Err(status)) => return Ok(Err(status)),
            Ok(Ok(())) => {}
        }
        let digest: BlobDigest = self
            .core
            .cas
            .put_file(wanted.function, &path, true)
            .await
            .map_err(|error| faults::store(&error))?;
        let asset = Asset { digest, references: Vec::new(), since, expires: None };
        let key = key::key(wanted.kind, wanted.function, uri, &wanted.qualifiers);
        store_asset(&self.core.cas, &wanted.instance, &key, &asset).await?;
        Ok(Ok(asset))
    }
}
