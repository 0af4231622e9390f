//! Executes actions on a server.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    digest::to_proto,
    execution::{
        Action, ActionResult, Command, ExecuteOperationMetadata, ExecuteRequest, ExecuteResponse,
        ExecutionPolicy, GetActionResultRequest, UpdateActionResultRequest, WaitExecutionRequest,
    },
    longrunning::{CancelOperationRequest, Operation, operation},
};
use tonic::Code;

use crate::{Remote, RemoteError, Source};

/// The outcome of an execution.
#[derive(Debug, Clone)]
pub struct Executed {
    /// Name of the operation.
    pub operation: String,
    pub response: ExecuteResponse,
}

/// Time without an answer after which an execution is given up, and the interval of the attempts until then.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(200);

impl Remote {
    /// Executes an action whose blobs are uploaded. If the stream breaks, continues with `WaitExecution`, until the
    /// server has been silent for a minute. Calls `progress` for every update.
    pub async fn execute(
        &self,
        action: &BlobDigest,
        skip_cache_lookup: bool,
        priority: i32,
        mut progress: impl FnMut(&str, &ExecuteOperationMetadata),
    ) -> Result<Executed, RemoteError> {
        let what = format!("executing {action}");
        let request = ExecuteRequest {
            instance_name: self.instance.clone(),
            skip_cache_lookup,
            action_digest: Some(to_proto(action)),
            execution_policy: Some(ExecutionPolicy { priority }),
            digest_function: self.function_value(),
            inline_stdout: true,
            inline_stderr: true,
            ..ExecuteRequest::default()
        };
        let refused =
            |status: tonic::Status| RemoteError::Refused { what: what.clone(), status: Box::new(status) };
        let mut stream =
            self.execution().execute(self.on_behalf(request)).await.map_err(refused)?.into_inner();
        let mut name = String::new();
        let mut silent_since: Option<Instant> = None;
        loop {
            let status = match stream.next().await {
                Some(Ok(operation)) => {
                    silent_since = None;
                    name.clone_from(&operation.name);
                    if let Some(metadata) = metadata(&operation) {
                        progress(&name, &metadata);
                    }
                    if operation.done {
                        // Read to the end: dropping a stream early resets it, and servers tolerate only a few resets.
                        while let Some(Ok(_)) = stream.next().await {}
                        let response = response(operation, &what)?;
                        return Ok(Executed { operation: name, response });
                    }
                    continue;
                }
                Some(Err(status)) if !is_broken(&status) || name.is_empty() => return Err(refused(status)),
                Some(Err(status)) => status,
                None => tonic::Status::unavailable("the stream ended early"),
            };
            if silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
                return Err(refused(status));
            }
            let again = WaitExecutionRequest { name: name.clone() };
            tokio::time::sleep(RETRY).await;
            match self.execution().wait_execution(self.on_behalf(again)).await {
                Ok(answer) => stream = answer.into_inner(),
                // The same error that ended the old stream.
                Err(error) if is_broken(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
    }

    /// Cancels a running execution.
    pub async fn cancel(&self, operation: &str) -> Result<(), RemoteError> {
        let request = CancelOperationRequest { name: operation.to_owned() };
        let answer = self.operations().cancel_operation(self.on_behalf(request)).await;
        answer.map(drop).map_err(RemoteError::refused(format!("cancelling {operation}")))
    }

    fn on_behalf<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request
    }

    /// Returns the cached result of an action.
    pub async fn cached(&self, action: &BlobDigest) -> Result<Option<ActionResult>, RemoteError> {
        let request = GetActionResultRequest {
            instance_name: self.instance.clone(),
            action_digest: Some(to_proto(action)),
            digest_function: self.function_value(),
            ..GetActionResultRequest::default()
        };
        match self.action_cache().get_action_result(request).await {
            Ok(answer) => Ok(Some(answer.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(RemoteError::refused(format!("requesting the result of {action}"))(status)),
        }
    }

    pub async fn update_action(&self, action: &BlobDigest, result: ActionResult) -> Result<(), RemoteError> {
        let request = UpdateActionResultRequest {
            instance_name: self.instance.clone(),
            action_digest: Some(to_proto(action)),
            action_result: Some(result),
            digest_function: self.function_value(),
            ..UpdateActionResultRequest::default()
        };
        let answer = self.action_cache().update_action_result(request).await;
        answer.map(drop).map_err(RemoteError::refused(format!("storing the result of {action}")))
    }
}

/// Builds an action of `command` over an input root, with the blobs of its messages.
pub fn action_of(
    function: DigestFunction,
    command: &Command,
    mut action: Action,
    input_root: &BlobDigest,
) -> (BlobDigest, HashMap<BlobDigest, Source>) {
    let command = command.encode_to_vec();
    let command_digest = function.digest(&command);
    action.command_digest = Some(to_proto(&command_digest));
    action.input_root_digest = Some(to_proto(input_root));
    let action = action.encode_to_vec();
    let digest = function.digest(&action);
    let blobs = [(command_digest, Source::Bytes(command.into())), (digest, Source::Bytes(action.into()))];
    (digest, blobs.into_iter().collect())
}

/// Whether a stream ended because its connection broke, and not because the server sent an error.
fn is_broken(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled)
}

fn metadata(operation: &Operation) -> Option<ExecuteOperationMetadata> {
    let any = operation.metadata.as_ref()?;
    ExecuteOperationMetadata::decode(any.value.as_slice()).ok()
}

fn response(operation: Operation, what: &str) -> Result<ExecuteResponse, RemoteError> {
    let wrong = |why: String| RemoteError::Answer { what: what.to_owned(), why };
    match operation.result {
        Some(operation::Result::Response(any)) => {
            ExecuteResponse::decode(any.value.as_slice()).map_err(|error| wrong(error.to_string()))
        }
        Some(operation::Result::Error(status)) => {
            Err(wrong(format!("an error in the operation: {}", status.message)))
        }
        None => Err(wrong("the operation is done but has no response".to_owned())),
    }
}
