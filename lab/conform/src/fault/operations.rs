//! Execution and operations through the proxy.

#![expect(deprecated, reason = "clients of older versions use these fields")]

use futures::{StreamExt as _, stream};
use prost::Message as _;
use reapi::{
    execution::{
        Action, ActionResult, Command, ExecuteOperationMetadata, ExecuteRequest, ExecuteResponse, OutputFile,
        OutputSymlink, WaitExecutionRequest, execution_server::Execution, execution_stage,
    },
    longrunning::{
        CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
        ListOperationsResponse, Operation, WaitOperationRequest, operation, operations_server::Operations,
    },
    protobuf::{Any, Empty},
    rpc,
    status::{PreconditionFailure, any, unpack, with_details},
};
use tonic::{Code, Request, Response, Status};

use super::{
    Fault,
    upstream::{Answers, Upstream, onward},
};

const METADATA: &str = "build.bazel.remote.execution.v2.ExecuteOperationMetadata";
const RESPONSE: &str = "build.bazel.remote.execution.v2.ExecuteResponse";
const PRECONDITION: &str = "google.rpc.PreconditionFailure";

/// The parts of a requested action that a fault needs.
#[derive(Debug, Clone, Default)]
struct RequestedAction {
    hash: String,
    action: Action,
    command: Command,
}

impl RequestedAction {
    fn outputs(&self) -> Vec<&String> {
        let command = &self.command;
        command.output_paths.iter().chain(&command.output_files).chain(&command.output_directories).collect()
    }

    fn properties(&self) -> impl Iterator<Item = &str> {
        let platforms = [&self.action.platform, &self.command.platform];
        let properties = platforms.into_iter().flatten().flat_map(|platform| &platform.properties);
        properties.map(|property| &*property.name)
    }
}

fn names_missing(status: &rpc::Status) -> bool {
    status.details.iter().any(|detail| unpack::<PreconditionFailure>(detail, PRECONDITION).is_some())
}

/// Applies the fault to an error about missing blobs.
fn alter_status(fault: Fault, status: &mut rpc::Status) {
    if fault == Fault::MissingIsNotFound && names_missing(status) {
        status.code = Code::NotFound.into();
    }
    if fault == Fault::FirstMissingOnly {
        for detail in &mut status.details {
            if let Some(mut failure) = unpack::<PreconditionFailure>(detail, PRECONDITION) {
                failure.violations.truncate(1);
                *detail = any(&failure, PRECONDITION);
            }
        }
    }
}

/// Applies the fault to the error of a call.
fn alter_error(fault: Fault, status: Status) -> Status {
    let Ok(mut whole) = rpc::Status::decode(status.details()) else { return status };
    if whole.details.is_empty() {
        return status;
    }
    alter_status(fault, &mut whole);
    with_details(Code::from(whole.code), whole.message, whole.details)
}

fn as_file(link: OutputSymlink) -> OutputFile {
    let digest = reapi::execution::Digest {
        hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".into(),
        size_bytes: 0,
    };
    OutputFile { path: link.path, digest: Some(digest), ..OutputFile::default() }
}

/// Applies the fault to a result.
fn alter_result(fault: Fault, requested: &RequestedAction, result: &mut ActionResult) {
    if fault == Fault::SignalIsNine && (129..=192).contains(&result.exit_code) {
        result.exit_code = 9;
    }
    if fault == Fault::NoParents && requested.outputs().iter().any(|path| path.contains('/')) {
        *result = ActionResult {
            exit_code: 1,
            stderr_raw: b"cannot create the output: No such file or directory".to_vec(),
            execution_metadata: result.execution_metadata.take(),
            ..ActionResult::default()
        };
    }
    if matches!(fault, Fault::SymlinksFollowed | Fault::AbsoluteSymlinksFollowed) {
        let is_followed =
            |link: &OutputSymlink| fault == Fault::SymlinksFollowed || link.target.starts_with('/');
        let links = std::mem::take(&mut result.output_symlinks);
        let (followed, others): (Vec<_>, Vec<_>) = links.into_iter().partition(is_followed);
        result.output_symlinks = others;
        result.output_file_symlinks.retain(|link| !is_followed(link));
        result.output_directory_symlinks.retain(|link| !is_followed(link));
        result.output_files.extend(followed.into_iter().map(as_file));
    }
    if fault == Fault::TreesOnly {
        for directory in &mut result.output_directories {
            directory.root_directory_digest = None;
        }
    }
}

/// Applies the fault to a response.
fn alter_response(fault: Fault, requested: &RequestedAction, response: &mut ExecuteResponse) {
    let code = response.status.as_ref().map_or(Code::Ok, |status| Code::from(status.code));
    let is_missing = response.status.as_ref().is_some_and(names_missing);
    if let Some(status) = &mut response.status {
        alter_status(fault, status);
    }
    if fault == Fault::TimeoutWithoutOutput && code == Code::DeadlineExceeded {
        response.result = None;
    }
    if fault == Fault::NoServerLogs {
        response.server_logs.clear();
    }
    if fault == Fault::AbsoluteSymlinksFollowed && code == Code::FailedPrecondition && !is_missing {
        response.status = None;
        let files = requested
            .outputs()
            .into_iter()
            .map(|path| as_file(OutputSymlink { path: path.clone(), ..OutputSymlink::default() }));
        response.result = Some(ActionResult { output_files: files.collect(), ..ActionResult::default() });
    }
    if let Some(result) = &mut response.result {
        alter_result(fault, requested, result);
    }
}

/// Applies the fault to a message of a stream.
fn alter(fault: Fault, requested: &RequestedAction, mut operation: Operation) -> Operation {
    if fault == Fault::NoLiveOutput
        && let Some(mut metadata) = operation
            .metadata
            .as_ref()
            .and_then(|metadata| unpack::<ExecuteOperationMetadata>(metadata, METADATA))
    {
        metadata.stdout_stream_name.clear();
        metadata.stderr_stream_name.clear();
        operation.metadata = Some(any(&metadata, METADATA));
    }
    if let Some(mut response) = response(&operation) {
        alter_response(fault, requested, &mut response);
        operation.result = Some(match response.status {
            Some(status) if fault == Fault::OperationError && status.code != 0 => {
                operation::Result::Error(status)
            }
            status => {
                let response = ExecuteResponse { status, ..response };
                operation::Result::Response(any(&response, RESPONSE))
            }
        });
    }
    operation
}

fn response(operation: &Operation) -> Option<ExecuteResponse> {
    match &operation.result {
        Some(operation::Result::Response(response)) => unpack(response, RESPONSE),
        Some(operation::Result::Error(_)) | None => None,
    }
}

/// Returns the stream of an operation that waits forever.
fn waiting(request: &ExecuteRequest) -> Answers<Operation> {
    let metadata = ExecuteOperationMetadata {
        stage: execution_stage::Value::Queued.into(),
        action_digest: request.action_digest.clone(),
        digest_function: request.digest_function,
        ..ExecuteOperationMetadata::default()
    };
    let metadata: Any = any(&metadata, METADATA);
    let operation = Operation {
        name: "operations/waits-for-ever".into(),
        metadata: Some(metadata),
        ..Operation::default()
    };
    stream::iter([Ok(operation)]).chain(stream::pending()).boxed()
}

impl Upstream {
    async fn requested(&self, request: &ExecuteRequest) -> RequestedAction {
        let (instance, function) = (&request.instance_name, request.digest_function);
        let digest = request.action_digest.as_ref();
        let action: Action = self.message(instance, function, digest).await.unwrap_or_default();
        let command = self.message(instance, function, action.command_digest.as_ref()).await;
        let hash = digest.map(|digest| digest.hash.clone()).unwrap_or_default();
        RequestedAction { hash, action, command: command.unwrap_or_default() }
    }

    /// Returns whether an action ended because no executor has its properties.
    fn is_unmatched(&self, requested: &RequestedAction, code: Code, message: &str) -> bool {
        self.is(Fault::UnknownPropertyWaits)
            && matches!(code, Code::InvalidArgument | Code::FailedPrecondition)
            && requested.properties().any(|name| message.contains(name))
    }
}

#[tonic::async_trait]
impl Execution for Upstream {
    type ExecuteStream = Answers<Operation>;
    type WaitExecutionStream = Answers<Operation>;

    async fn execute(
        &self,
        request: Request<ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let mut request = onward(request);
        let plain = request.get_ref().clone();
        let requested = self.requested(&plain).await;
        let changed = request.get_mut();
        if self.is(Fault::SkipCacheLookupIgnored) {
            changed.skip_cache_lookup = false;
        }
        if self.is(Fault::PriorityInverted)
            && let Some(policy) = &mut changed.execution_policy
        {
            policy.priority = policy.priority.saturating_neg();
        }
        let mut updates = match self.client.execution().execute(request).await {
            Ok(updates) => updates.into_inner().peekable(),
            Err(status) if self.is_unmatched(&requested, status.code(), status.message()) => {
                return Ok(Response::new(waiting(&plain)));
            }
            Err(status) => return Err(alter_error(self.fault, status)),
        };
        if self.is(Fault::UnknownPropertyWaits)
            && let Some(Ok(first)) = std::pin::Pin::new(&mut updates).peek().await
            && let Some(status) = response(first).and_then(|response| response.status)
            && self.is_unmatched(&requested, Code::from(status.code), &status.message)
        {
            return Ok(Response::new(waiting(&plain)));
        }
        if self.is(Fault::DoNotCacheIgnored) && requested.action.do_not_cache {
            let all: Vec<_> = updates.collect().await;
            let result = all.iter().flatten().filter_map(response).find_map(|response| response.result);
            if let Some(result) = result {
                self.cached.lock().insert(requested.hash.clone(), result);
            }
            return Ok(Response::new(stream::iter(all).boxed()));
        }
        let fault = self.fault;
        let updates = updates.map(move |update| {
            update
                .map(|operation| alter(fault, &requested, operation))
                .map_err(|status| alter_error(fault, status))
        });
        Ok(Response::new(updates.boxed()))
    }

    async fn wait_execution(
        &self,
        request: Request<WaitExecutionRequest>,
    ) -> Result<Response<Self::WaitExecutionStream>, Status> {
        let updates = self.client.execution().wait_execution(onward(request)).await?.into_inner();
        let fault = self.fault;
        let updates = updates
            .map(move |update| update.map(|operation| alter(fault, &RequestedAction::default(), operation)));
        Ok(Response::new(updates.boxed()))
    }
}

impl Upstream {
    fn operations_are_there(&self) -> Result<(), Status> {
        if self.is(Fault::NoOperations) {
            return Err(Status::unimplemented("operations are not supported"));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Operations for Upstream {
    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        self.operations_are_there()?;
        self.client.operations().list_operations(onward(request)).await
    }

    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        self.operations_are_there()?;
        self.client.operations().get_operation(onward(request)).await
    }

    async fn delete_operation(
        &self,
        request: Request<DeleteOperationRequest>,
    ) -> Result<Response<Empty>, Status> {
        self.operations_are_there()?;
        self.client.operations().delete_operation(onward(request)).await
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<Empty>, Status> {
        if self.is(Fault::NoCancel) {
            return Err(Status::unimplemented("CancelOperation is not supported"));
        }
        self.client.operations().cancel_operation(onward(request)).await
    }

    async fn wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        self.operations_are_there()?;
        self.client.operations().wait_operation(onward(request)).await
    }
}
