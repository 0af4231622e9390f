//! The Push service of the Remote Asset API.

use cas::TreeCheck;
use model::{BlobDigest, DigestFunction};
use reapi::{
    asset::{
        PushBlobRequest, PushBlobResponse, PushDirectoryRequest, PushDirectoryResponse, Qualifier,
        push_server::Push,
    },
    execution::Digest,
    protobuf::Timestamp,
    status,
};
use tonic::{Request, Response, Status};

use super::{
    Asset, AssetApi,
    key::{self, AssetKind},
    store_asset,
};
use crate::grpc::faults;

/// The common fields of both kinds of requests.
struct PushFields {
    kind: AssetKind,
    instance: String,
    uris: Vec<String>,
    qualifiers: Vec<Qualifier>,
    expires: Option<Timestamp>,
    digest: Option<Digest>,
    field: &'static str,
    blobs: Vec<Digest>,
    directories: Vec<Digest>,
    function: i32,
}

#[tonic::async_trait]
impl Push for AssetApi {
    async fn push_blob(
        &self,
        request: Request<PushBlobRequest>,
    ) -> Result<Response<PushBlobResponse>, Status> {
        let api = self.seen_by(&request)?;
        let request = request.into_inner();
        let pushed = PushFields {
            kind: AssetKind::Blob,
            instance: request.instance_name,
            uris: request.uris,
            qualifiers: request.qualifiers,
            expires: request.expire_at,
            digest: request.blob_digest,
            field: "blob_digest",
            blobs: request.references_blobs,
            directories: request.references_directories,
            function: request.digest_function,
        };
        api.push(pushed).await?;
        Ok(Response::new(PushBlobResponse {}))
    }

    async fn push_directory(
        &self,
        request: Request<PushDirectoryRequest>,
    ) -> Result<Response<PushDirectoryResponse>, Status> {
        let api = self.seen_by(&request)?;
        let request = request.into_inner();
        let pushed = PushFields {
            kind: AssetKind::Directory,
            instance: request.instance_name,
            uris: request.uris,
            qualifiers: request.qualifiers,
            expires: request.expire_at,
            digest: request.root_directory_digest,
            field: "root_directory_digest",
            blobs: request.references_blobs,
            directories: request.references_directories,
            function: request.digest_function,
        };
        api.push(pushed).await?;
        Ok(Response::new(PushDirectoryResponse {}))
    }
}

impl AssetApi {
    async fn push(&self, pushed: PushFields) -> Result<(), Status> {
        reapi::instance::check(&pushed.instance)?;
        let rule = self.core.config.instances.rule(&pushed.instance);
        let rule = rule.map_err(|refusal| Status::invalid_argument(refusal.to_string()))?;
        if !rule.writable {
            let text = format!("clients of instance name {:?} may not push assets", pushed.instance);
            return Err(Status::permission_denied(text));
        }
        key::check(&pushed.uris, &pushed.qualifiers)?;
        let function = reapi::digest::function(pushed.function, pushed.digest.as_ref())?;
        let digest = reapi::digest::required(pushed.digest.as_ref(), function, pushed.field)?;
        let references = self.check(&pushed, function, &digest).await?;
        let asset = Asset { digest, references, since: self.core.bus.now(), expires: pushed.expires };
        for uri in &pushed.uris {
            let key = key::key(pushed.kind, function, uri, &pushed.qualifiers);
            store_asset(&self.core.cas, &pushed.instance, &key, &asset).await?;
        }
        Ok(())
    }

    /// Checks that all content is stored. Returns the digests that must be kept with the asset.
    async fn check(
        &self,
        pushed: &PushFields,
        function: DigestFunction,
        digest: &BlobDigest,
    ) -> Result<Vec<BlobDigest>, Status> {
        let mut references = reapi::digest::all(&pushed.blobs, function, "references_blobs")?;
        references.extend(reapi::digest::all(&pushed.directories, function, "references_directories")?);
        let mut all = vec![*digest];
        all.extend(&references);
        let cas = &self.core.cas;
        let mut missing = cas.missing(&all).await.map_err(|error| faults::store(&error))?;
        if pushed.kind == AssetKind::Directory && missing.is_empty() {
            match cas.check_tree(digest).await.map_err(|error| faults::store(&error))? {
                TreeCheck::Complete => {}
                TreeCheck::Missing { digests, .. } => missing = digests,
                TreeCheck::Faulty(fault) => {
                    return Err(status::bad_request(pushed.field, fault.to_string()));
                }
            }
        }
        if missing.is_empty() {
            return Ok(references);
        }
        // The trailers of a call have room for only a few digests.
        missing.truncate(30);
        Err(status::missing(&missing))
    }
}
