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
        let mut answer = self.capabilities().get_capabilities(onward(request)).await?;
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
            None => self.action_cache().get_action_result(onward(request)).await,
        }
    }

    async fn update_action_result(
        &self,
        request: Request<UpdateActionResultRequest>,
    ) -> Result<Response<ActionResult>, Status> {
        self.action_cache().update_action_result(onward(request)).await
    }
}

#[tonic::async_trait]
impl LogStreamService for Upstream {
    async fn create_log_stream(
        &self,
        request: Request<CreateLogStreamRequest>,
    ) -> Result<Response<LogStream>, Status> {
        self.log_streams().create_log_stream(onward(request)).await
    }
}

#[tonic::async_trait]
impl Fetch for Upstream {
    async fn fetch_blob(
        &self,
        request: Request<FetchBlobRequest>,
    ) -> Result<Response<FetchBlobResponse>, Status> {
        self.fetch().fetch_blob(onward(request)).await
    }

    async fn fetch_directory(
        &self,
        request: Request<FetchDirectoryRequest>,
    ) -> Result<Response<FetchDirectoryResponse>, Status> {
        self.fetch().fetch_directory(onward(request)).await
    }
}

#[tonic::async_trait]
impl Push for Upstream {
    async fn push_blob(
        &self,
        request: Request<PushBlobRequest>,
    ) -> Result<Response<PushBlobResponse>, Status> {
        self.push().push_blob(onward(request)).await
    }

    async fn push_directory(
        &self,
        request: Request<PushDirectoryRequest>,
    ) -> Result<Response<PushDirectoryResponse>, Status> {
        self.push().push_directory(onward(request)).await
    }
}
