//! The API `google.longrunning.Operations`, for clients that poll instead of waiting in a stream.

use std::time::Duration;

use callers::Caller;
use model::AuditKind;
use reapi::{
    longrunning::{
        CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
        ListOperationsResponse, Operation, WaitOperationRequest, operations_server::Operations,
    },
    protobuf,
};
use tonic::{Request, Response, Status};

use super::{
    Core,
    cancel::{self, Cancelled},
    execution, faults,
    interest::{Invocation, Role},
    watch_stream::{Watching, current_operation},
};

/// Default timeout of `WaitOperation` requests.
const WAIT: Duration = Duration::from_secs(60);

/// Implementation of the `google.longrunning.Operations` service.
pub(crate) struct OperationsApi {
    core: Core,
}

impl OperationsApi {
    pub(crate) fn new(core: Core) -> Self {
        Self { core }
    }
}

#[tonic::async_trait]
impl Operations for OperationsApi {
    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        let caller = Caller::of(request.extensions());
        let name = execution::visible(&caller, &request.into_inner().name)?;
        let known = execution::current_state(&self.core, &name).await?;
        Ok(Response::new(current_operation(&self.core, &name, &known).await))
    }

    async fn wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        let role = Role::Waits(Invocation::of(request.metadata()));
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let limit = request.timeout.as_ref().map_or(WAIT, span);
        let name = execution::visible(&caller, &request.name)?;
        let waiter = execution::find(&self.core, &name, role).await?;
        let mut watching = Watching::new(&self.core, name.clone(), waiter);
        let done = async {
            while let Some(next) = watching.next().await {
                let operation = next?;
                if operation.done {
                    return Ok(operation);
                }
            }
            Err(Status::internal("the stream ended before the operation was done"))
        };
        // After the timeout, the API requires the current state.
        if let Ok(done) = tokio::time::timeout(limit, done).await {
            return done.map(Response::new);
        }
        let known = execution::current_state(&self.core, &name).await?;
        Ok(Response::new(current_operation(&self.core, &name, &known).await))
    }

    /// See [`cancel`]: an execution that other clients want continues, which the caller can see in its operation.
    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<protobuf::Empty>, Status> {
        let invocation = Invocation::of(request.metadata());
        let caller = Caller::of(request.extensions());
        let name = execution::visible(&caller, &request.into_inner().name)?;
        // The operation must belong to this instance.
        execution::current_state(&self.core, &name).await?;
        match cancel::cancel(&self.core, &name.key, &invocation).await.map_err(faults::bus)? {
            Cancelled::Now => {
                caller.did(AuditKind::Cancel, name.to_string(), None);
                Ok(Response::new(protobuf::Empty {}))
            }
            Cancelled::Over | Cancelled::Wanted => Ok(Response::new(protobuf::Empty {})),
            Cancelled::Unknown => Err(Status::not_found(format!("operation {name} not found"))),
        }
    }

    /// The client is no longer interested. Nothing is stored for it, so there is nothing to delete.
    async fn delete_operation(
        &self,
        request: Request<DeleteOperationRequest>,
    ) -> Result<Response<protobuf::Empty>, Status> {
        let caller = Caller::of(request.extensions());
        let name = execution::visible(&caller, &request.into_inner().name)?;
        execution::current_state(&self.core, &name).await?;
        Ok(Response::new(protobuf::Empty {}))
    }

    async fn list_operations(
        &self,
        _: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        Err(Status::unimplemented("listing operations is not supported; get an operation by its name"))
    }
}

fn span(duration: &protobuf::Duration) -> Duration {
    // A negative time limit is over at once.
    let seconds = u64::try_from(duration.seconds).unwrap_or(0).min(24 * 3600);
    Duration::new(seconds, u32::try_from(duration.nanos).unwrap_or(0).min(999_999_999))
}
