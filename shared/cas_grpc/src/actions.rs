//! The action cache service: results of actions.

use std::sync::Arc;

use bytes::Bytes;
use callers::Caller;
use cas::Cas;
use model::{BlobDigest, DigestFunction, Provenance};
use policy::zones::ZoneReach;
use prost::Message as _;
use reapi::{
    digest,
    execution::{
        self, ActionResult, GetActionResultRequest, OutputFile, UpdateActionResultRequest,
        action_cache_server::ActionCache,
    },
    provenance,
};
use telemetry::metrics::{Counter, count};
use tonic::{Request, Response, Status};

use crate::{api::Shared, budget::Held, fault::bounded};

/// Name of the worker in results that do not state one.
const UNKNOWN_WORKER: &str = "unknown";

pub(crate) struct ActionService(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl ActionCache for ActionService {
    async fn get_action_result(
        &self,
        request: Request<GetActionResultRequest>,
    ) -> Result<Response<ActionResult>, Status> {
        let held = Held::of(request.extensions(), &self.0.budget);
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        let function = digest::function(request.digest_function, request.action_digest.as_ref())?;
        let action = digest::required(request.action_digest.as_ref(), function, "action_digest")?;
        let Some(found) = bounded(cas.get_action(&request.instance_name, &action)).await? else {
            count(Counter::ActionCacheMisses, &[], 1);
            return Err(Status::not_found(format!("no result for action {action}")));
        };
        count(Counter::ActionCacheHits, &[], 1);
        let mut result = ActionResult::clone(&found);
        Inlining {
            cas: &cas,
            bytes_max: self.0.api.limits.batch_bytes_max,
            held,
            function,
            request: &request,
        }
        .apply(&mut result)
        .await?;
        name_worker(&mut result);
        Ok(Response::new(result))
    }

    async fn update_action_result(
        &self,
        request: Request<UpdateActionResultRequest>,
    ) -> Result<Response<ActionResult>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let instance = self.0.instance(&request.instance_name)?;
        if !instance.writable {
            let name = &request.instance_name;
            let message = format!("clients may not write the action cache of instance {name:?}");
            return Err(Status::permission_denied(message));
        }
        let function = digest::function(request.digest_function, request.action_digest.as_ref())?;
        let action = digest::required(request.action_digest.as_ref(), function, "action_digest")?;
        let result = request.action_result;
        let mut result = result.ok_or_else(|| Status::invalid_argument("action_result is not set"))?;
        check(&result, function)?;
        store_inlined(&cas, function, &mut result).await?;
        name_worker(&mut result);
        if cas.zone().is_some() && !bounded(cas.has_outputs_of(&result, &action)).await? {
            let message =
                "action_result names blobs that the zone of the caller does not have; upload them first";
            return Err(Status::failed_precondition(message));
        }
        self.sign(&caller, &cas, (&request.instance_name, &action), &mut result);
        bounded(cas.put_action(&request.instance_name, &action, &result)).await?;
        Ok(Response::new(result))
    }
}

impl ActionService {
    /// Says that a client wrote the result, whatever the client says. Executors behind the API reach all zones, and know better.
    fn sign(
        &self,
        caller: &Caller,
        cas: &Cas,
        (instance, action): (&str, &BlobDigest),
        result: &mut ActionResult,
    ) {
        if caller.rights.zone == ZoneReach::All && provenance::of(result).is_some() {
            return;
        }
        let of_client = Provenance {
            caller: caller.name.clone(),
            build: String::new(),
            zone: cas.zone().cloned(),
            instance: instance.to_owned(),
            action: *action,
            command: String::new(),
            target: String::new(),
            execution: String::new(),
            executor: String::new(),
            home: String::new(),
            host: String::new(),
            sandbox: String::new(),
            image: None,
            at_ms: (self.0.api.now)(),
        };
        provenance::set(result, &of_client);
    }
}

/// Sets a worker name if it is absent: otherwise the result could encode to zero bytes, which
/// clients treat as missing.
fn name_worker(result: &mut ActionResult) {
    let metadata = result.execution_metadata.get_or_insert_default();
    if metadata.worker.is_empty() {
        UNKNOWN_WORKER.clone_into(&mut metadata.worker);
    }
}

/// Contents that the client wants inline in the answer.
struct Inlining<'a> {
    cas: &'a Cas,
    /// Maximum bytes of the answer.
    bytes_max: u64,
    held: Held,
    function: DigestFunction,
    request: &'a GetActionResultRequest,
}

impl Inlining<'_> {
    /// Adds the requested contents while the answer stays within the message size that clients accept,
    /// and removes all others.
    async fn apply(&self, result: &mut ActionResult) -> Result<(), Status> {
        if result.stdout_digest.is_some() {
            result.stdout_raw.clear();
        }
        if result.stderr_digest.is_some() {
            result.stderr_raw.clear();
        }
        let wanted = &self.request.inline_output_files;
        for file in result.output_files.iter_mut().filter(|file| file.digest.is_some()) {
            file.contents.clear();
        }
        if !self.request.inline_stdout && !self.request.inline_stderr && wanted.is_empty() {
            return Ok(());
        }
        let mut room = self.bytes_max.saturating_sub(result.encoded_len() as u64);
        if self.request.inline_stdout {
            self.fill(result.stdout_digest.as_ref(), &mut result.stdout_raw, &mut room).await?;
        }
        if self.request.inline_stderr {
            self.fill(result.stderr_digest.as_ref(), &mut result.stderr_raw, &mut room).await?;
        }
        for OutputFile { path, digest, contents, .. } in &mut result.output_files {
            if wanted.contains(path) {
                self.fill(digest.as_ref(), contents, &mut room).await?;
            }
        }
        Ok(())
    }

    async fn fill(
        &self,
        digest: Option<&execution::Digest>,
        place: &mut Vec<u8>,
        room: &mut u64,
    ) -> Result<(), Status> {
        /// Overhead of a field in bytes, in addition to its content.
        const FIELD: u64 = 8;
        let Some(Ok(blob)) = digest.map(|digest| digest::from_proto(digest, self.function)) else {
            return Ok(());
        };
        if blob.size + FIELD > *room {
            return Ok(());
        }
        self.held.grow(blob.size * 2).await?;
        if let Some(content) = bounded(self.cas.get(&blob)).await? {
            *room -= content.len() as u64 + FIELD;
            count(Counter::CasBytesRead, &[], content.len() as u64);
            *place = content.into();
        }
        Ok(())
    }
}

/// Moves the inline contents of a client's result to the store.
async fn store_inlined(cas: &Cas, function: DigestFunction, result: &mut ActionResult) -> Result<(), Status> {
    let mut blobs: Vec<(BlobDigest, Bytes)> = Vec::new();
    let outputs = [
        (&mut result.stdout_raw, &mut result.stdout_digest),
        (&mut result.stderr_raw, &mut result.stderr_digest),
    ];
    let files = result.output_files.iter_mut().map(|file| (&mut file.contents, &mut file.digest));
    for (content, digest) in outputs.into_iter().chain(files).filter(|(content, _)| !content.is_empty()) {
        let content = Bytes::from(std::mem::take(content));
        let blob = match digest {
            Some(digest) => digest::required(Some(digest), function, "action_result")?,
            None => function.digest(&content),
        };
        *digest = Some(digest::to_proto(&blob));
        blobs.push((blob, content));
    }
    if blobs.is_empty() {
        return Ok(());
    }
    bounded(async { cas.put_many(blobs).await.into_iter().collect() }).await
}

/// Checks the form of a client's result.
fn check(result: &ActionResult, function: DigestFunction) -> Result<(), Status> {
    for file in &result.output_files {
        check_path("output_files.path", &file.path)?;
        let digest = file.digest.as_ref();
        if digest.is_some() || file.contents.is_empty() {
            digest::required(digest, function, "output_files.digest")?;
        }
    }
    for directory in &result.output_directories {
        // An empty path stands for the whole working directory.
        if !directory.path.is_empty() {
            check_path("output_directories.path", &directory.path)?;
        }
        let tree = directory.tree_digest.as_ref();
        let root = directory.root_directory_digest.as_ref();
        if tree.is_none() && root.is_none() {
            return Err(Status::invalid_argument(
                "output_directories: neither tree_digest nor root_directory_digest is set",
            ));
        }
        for digest in [tree, root].into_iter().flatten() {
            digest::required(Some(digest), function, "output_directories.tree_digest")?;
        }
    }
    check_symlinks(result)?;
    for (digest, field) in
        [(&result.stdout_digest, "stdout_digest"), (&result.stderr_digest, "stderr_digest")]
    {
        if digest.is_some() {
            digest::required(digest.as_ref(), function, field)?;
        }
    }
    Ok(())
}

#[expect(deprecated, reason = "older clients fill these fields")]
fn check_symlinks(result: &ActionResult) -> Result<(), Status> {
    let lists = [&result.output_symlinks, &result.output_file_symlinks, &result.output_directory_symlinks];
    for symlink in lists.into_iter().flatten() {
        check_path("output_symlinks.path", &symlink.path)?;
        if symlink.target.is_empty() {
            return Err(Status::invalid_argument("output_symlinks.target is empty"));
        }
    }
    Ok(())
}

/// Output paths are relative to the working directory, and may lie outside of it.
fn check_path(field: &str, path: &str) -> Result<(), Status> {
    let wrong = |what: &str| Err(Status::invalid_argument(format!("{field} {path:?}: {what}")));
    if path.is_empty() {
        return wrong("it is empty");
    }
    if path.starts_with('/') {
        return wrong("it is absolute; paths are relative to the working directory");
    }
    if path.contains('\0') || path.split('/').any(|segment| segment.is_empty() || segment == ".") {
        return wrong("it is not a normalized path");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_are_none() {
        let digest = Some(digest::to_proto(&DigestFunction::Sha256.digest(b"x")));
        let file = |path: &str, digest| ActionResult {
            output_files: vec![OutputFile { path: path.into(), digest, ..OutputFile::default() }],
            ..ActionResult::default()
        };
        check(&file("a/b.o", digest.clone()), DigestFunction::Sha256).unwrap();
        check(&file("../b.o", digest.clone()), DigestFunction::Sha256).unwrap();
        check(&ActionResult::default(), DigestFunction::Sha256).unwrap();
        let bad = execution::Digest { hash: "no".into(), size_bytes: 1 };
        for wrong in [
            file("/abs", digest.clone()),
            file("", digest.clone()),
            file("a//b", digest.clone()),
            file("a/./b", digest.clone()),
            file("a\0", digest),
            file("a", None),
            file("a", Some(bad.clone())),
            ActionResult { stdout_digest: Some(bad), ..ActionResult::default() },
            ActionResult {
                output_directories: vec![execution::OutputDirectory::default()],
                ..Default::default()
            },
            ActionResult { output_symlinks: vec![execution::OutputSymlink::default()], ..Default::default() },
        ] {
            let error = check(&wrong, DigestFunction::Sha256).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument, "{wrong:?}");
        }
    }
}
