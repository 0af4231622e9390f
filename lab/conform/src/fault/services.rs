//! Capabilities, the action cache, log streams and remote assets through the proxy.

use reapi::{
    asset::{
        FetchBlobRequest, FetchBlobResponse, FetchDirectoryRequest, FetchDirectoryResponse, PushBlobRequest,
        PushBlobResponse, PushDirectoryRequest, PushDirectoryResponse, fetch_server::Fetch,
        push_server::Push,
    },
    execution::{
        ActionResult, GetActionResultRequest, GetCapabilitiesRequest, PriorityCapabilities,
        ServerCapabilities, UpdateActionResultRequest, action_cache_server::ActionCache,
        capabilities_server::Capabilities, priority_capabilities::PriorityRange,
    },
    logstream::{CreateLogStreamRequest, LogStream, log_stream_service_server::LogStreamService},
};
use tonic::{Request, Response, Status};

use super::{
    Fault,
    upstream::{Upstream, onward},
};

#[tonic::async_trait]
impl Capabilities for Upstream {
    async fn get_capabilities(
        &self,
        request: Request<GetCapabilitiesRequest>,
    ) -> Result<Response<ServerCapabilities>, Status> {
        let mut answer = self.client.capabilities().get_capabilities(onward(request)).await?;
        if self.is(Fault::PrioritiesFromZero)
            && let Some(execution) = &mut answer.get_mut().execution_capabilities
        {
            let range = PriorityRange { min_priority: 0, max_priority: i32::MAX };
            let priorities = PriorityCapabilities { priorities: vec![range] };
            execution.execution_priority_capabilities = Some(priorities);
        }
        Ok(answer)
    }
}

#[tonic::async_trait]
impl ActionCache for Upstream {
    async fn get_action_result(
        &self,
        request: Request<GetActionResultRequest>,
    ) -> Result<Response<ActionResult>, Status> {
        let action = request.get_ref().action_digest.clone().unwrap_or_default();
        let cached = self.cached.lock().get(&action.hash).cloned();
        match cached {
            Some(result) => Ok(Response::new(result)),
            None => self.client.action_cache().get_action_result(onward(request)).await,
        }
    }

    async fn update_action_result(
        &self,
        request: Request<UpdateActionResultRequest>,
    ) -> Result<Response<ActionResult>, Status> {
        self.client.action_cache().update_action_result(onward(request)).await
    }
}

/// Implements a service whose calls pass through unchanged.
macro_rules! forward {
    ($service:ident, $client:ident: $($call:ident($request:ty) -> $response:ty),+ $(,)?) => {
        #[tonic::async_trait]
        impl $service for Upstream {
            $(async fn $call(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.client.$client().$call(onward(request)).await
            })+
        }
    };
}

forward!(LogStreamService, log_streams: create_log_stream(CreateLogStreamRequest) -> LogStream);
forward!(
    Fetch, fetch:
    fetch_blob(FetchBlobRequest) -> FetchBlobResponse,
    fetch_directory(FetchDirectoryRequest) -> FetchDirectoryResponse,
);
forward!(
    Push, push:
    push_blob(PushBlobRequest) -> PushBlobResponse,
    push_directory(PushDirectoryRequest) -> PushDirectoryResponse,
);
