//! The `ExecuteResponse` of an execution that ended.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cas::Cas;
use model::{BlobDigest, Execution, ExecutionOutcome, StoredResult};
use prost::Message as _;
use reapi::{
    execution::{ActionResult, ExecuteRequest, ExecuteResponse, LogFile},
    rpc, status,
};
use telemetry::spans::TraceId;
use tonic::Code;
use trace::ExecutionTrace;

/// Maximum number of inlined bytes in a response; clients accept messages of 4 MiB.
const INLINE_MAX: usize = 3 << 20;

/// The outputs that a client wants inlined in the response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inline {
    stdout: bool,
    stderr: bool,
    files: Vec<String>,
}

impl Inline {
    /// Takes the inline fields out of an `ExecuteRequest`.
    pub(crate) fn of(request: &mut ExecuteRequest) -> Self {
        Self {
            stdout: request.inline_stdout,
            stderr: request.inline_stderr,
            files: std::mem::take(&mut request.inline_output_files),
        }
    }

    fn is_nothing(&self) -> bool {
        !self.stdout && !self.stderr && self.files.is_empty()
    }
}

/// The response for a result that was in the action cache.
pub(crate) async fn cached(
    cas: &Cas,
    result: ActionResult,
    action: &BlobDigest,
    inline: &Inline,
) -> ExecuteResponse {
    let mut result = result;
    inline_into(cas, &mut result, action, inline).await;
    ExecuteResponse {
        result: Some(result),
        cached_result: true,
        status: Some(rpc::Status::default()),
        ..ExecuteResponse::default()
    }
}

/// The response for an execution with this outcome.
pub(crate) async fn finished(
    cas: &Cas,
    execution: &Execution,
    outcome: &ExecutionOutcome,
    inline: &Inline,
) -> ExecuteResponse {
    let action = &execution.action;
    let (mut result, fault) = match read_result(cas, outcome.result.as_ref(), action).await {
        Ok(result) => (result, None),
        Err(fault) => (None, Some(fault)),
    };
    if let Some(result) = result.as_mut() {
        inline_into(cas, result, action, inline).await;
    }
    let status = fault.unwrap_or_else(|| status_of(outcome, result.is_some()));
    let log = |(name, digest): &(String, BlobDigest)| {
        let file = LogFile { digest: Some(reapi::digest::to_proto(digest)), human_readable: true };
        (name.clone(), file)
    };
    ExecuteResponse {
        result,
        cached_result: false,
        status: Some(status),
        server_logs: outcome.server_logs.iter().map(log).collect(),
        message: message(outcome, ExecutionTrace::of(execution).id()),
    }
}

/// The response for a request that failed without an execution.
pub(crate) fn failed(error: &tonic::Status) -> ExecuteResponse {
    ExecuteResponse { status: Some(status::rpc_status(error)), ..ExecuteResponse::default() }
}

fn status_of(outcome: &ExecutionOutcome, has_result: bool) -> rpc::Status {
    if !outcome.missing.is_empty() {
        return status::rpc_status(&status::missing(&outcome.missing));
    }
    if outcome.code == 0 && !has_result {
        let message = "the execution succeeded without a result".to_owned();
        return rpc::Status { code: Code::Internal.into(), message, details: Vec::new() };
    }
    if outcome.code == 0 {
        return rpc::Status::default();
    }
    let message = outcome.message.clone();
    let code = Code::from_i32(outcome.code);
    if matches!(code, Code::Unavailable | Code::ResourceExhausted) {
        return status::rpc_status(&status::retry(code, message, super::RETRY));
    }
    rpc::Status { code: code.into(), message, details: Vec::new() }
}

/// The human-readable message: that of the outcome, and the trace id.
fn message(outcome: &ExecutionOutcome, trace: TraceId) -> String {
    match outcome.message.as_str() {
        "" => format!("trace {trace}"),
        said => format!("{said}; trace {trace}"),
    }
}

pub(crate) async fn read_result(
    cas: &Cas,
    stored: Option<&StoredResult>,
    action: &BlobDigest,
) -> Result<Option<ActionResult>, rpc::Status> {
    let internal =
        |message: String| rpc::Status { code: Code::Internal.into(), message, details: Vec::new() };
    let unreadable = |why: String| internal(format!("the result of action {action} cannot be read: {why}"));
    let decode = |bytes: &[u8]| ActionResult::decode(bytes).map_err(|error| unreadable(error.to_string()));
    match stored {
        None => Ok(None),
        Some(StoredResult::Inline(text)) => {
            let bytes = STANDARD.decode(text).map_err(|error| unreadable(error.to_string()))?;
            decode(&bytes).map(Some)
        }
        Some(StoredResult::Blob(digest)) => match cas.get(digest).await {
            Ok(Some(bytes)) => decode(&bytes).map(Some),
            // The result was evicted since, so the client must execute the action again.
            Ok(None) => Err(rpc::Status {
                code: Code::Unavailable.into(),
                message: format!(
                    "the result of action {action} is no longer stored; execute the action again"
                ),
                details: Vec::new(),
            }),
            Err(error) => Err(unreadable(telemetry::error_chain(&error))),
        },
    }
}

/// Inlines the requested outputs into `result`, as far as they fit.
async fn inline_into(cas: &Cas, result: &mut ActionResult, action: &BlobDigest, inline: &Inline) {
    if inline.is_nothing() {
        return;
    }
    let mut room = INLINE_MAX.saturating_sub(result.encoded_len());
    let function = action.function;
    if inline.stdout && result.stdout_raw.is_empty() {
        result.stdout_raw = fetch(cas, result.stdout_digest.as_ref(), function, &mut room).await;
    }
    if inline.stderr && result.stderr_raw.is_empty() {
        result.stderr_raw = fetch(cas, result.stderr_digest.as_ref(), function, &mut room).await;
    }
    let wanted = |path: &str| inline.files.iter().any(|file| file == path);
    for file in result.output_files.iter_mut().filter(|file| file.contents.is_empty() && wanted(&file.path)) {
        file.contents = fetch(cas, file.digest.as_ref(), function, &mut room).await;
    }
}

/// The content, or nothing if it does not fit: the client can still fetch it by its digest.
async fn fetch(
    cas: &Cas,
    digest: Option<&reapi::execution::Digest>,
    function: model::DigestFunction,
    room: &mut usize,
) -> Vec<u8> {
    let Some(digest) = digest.and_then(|digest| reapi::digest::from_proto(digest, function).ok()) else {
        return Vec::new();
    };
    let fits = usize::try_from(digest.size).is_ok_and(|size| size <= *room);
    if !fits || digest.is_empty_blob() {
        return Vec::new();
    }
    match cas.get(&digest).await {
        Ok(Some(content)) => {
            *room = room.saturating_sub(content.len());
            content.to_vec()
        }
        Ok(None) => Vec::new(),
        Err(error) => {
            let error = telemetry::error_chain(&error);
            tracing::debug!(%digest, error, "cannot read an output to inline");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use model::DigestFunction;

    use super::*;

    fn outcome(code: i32, message: &str) -> ExecutionOutcome {
        ExecutionOutcome::without_run(code, message.to_owned())
    }

    #[test]
    fn the_status_is_that_of_the_execution() {
        assert_eq!(status_of(&outcome(0, ""), true).code, 0);
        assert_eq!(status_of(&outcome(0, ""), false).code, i32::from(Code::Internal));
        let late = status_of(&outcome(4, "it ran 3 s"), true);
        assert_eq!((late.code, late.message.as_str()), (4, "it ran 3 s"));
        let gone = status_of(&outcome(14, "gone"), false);
        assert!(status::retry_delay(&gone).is_some());
        let blobs = vec![DigestFunction::Sha256.digest(b"x")];
        let missing = status_of(&ExecutionOutcome { missing: blobs.clone(), ..outcome(9, "") }, false);
        assert_eq!(missing.code, i32::from(Code::FailedPrecondition));
        assert_eq!(status::missing_blobs(&missing), blobs);
    }

    #[test]
    fn the_message_names_the_trace() {
        let trace = "0af7651916cd43dd8448eb211c80319c".parse().unwrap();
        let named = "trace 0af7651916cd43dd8448eb211c80319c";
        assert_eq!(message(&outcome(0, "killed"), trace), format!("killed; {named}"));
        assert_eq!(message(&outcome(0, ""), trace), named);
    }
}
