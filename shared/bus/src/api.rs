//! The request/reply API as a NATS service: its endpoints, requests and answers. [`Bus::ask`] is the caller's side.

use async_nats::{
    HeaderMap, Message,
    service::{
        NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Request, Service, ServiceExt as _, endpoint::Endpoint,
    },
};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{
    ActionsReply, ActionsRequest, ApiError, ArchiveStatus, ArchivedBuildRequest, ArchivedBuildsRequest,
    AuditReply, AuditRequest, BuildRequest, BuildView, CancelBody, CancelReply, CancelRequest,
    ChangeEnvironmentRequest, ConsoleReply, ConsoleRequest, CreateReply, ErrorCode, FindReply, FindRequest,
    GetRequest, GroupsReply, HistoryReply, HistoryRequest, InvocationReply, InvocationRequest,
    InvocationsReply, ListReply, ListRequest, ProposeEnvironmentRequest, QuotaReply, ReportReply,
    ReportRequest, TargetsReply, TargetsRequest, TestGridReply, TestGridRequest, TestsReply, TestsRequest,
    ToolInvocationsReply, ToolInvocationsRequest, WhyReply, WhyRequest, WorkerView,
};
use tracing::debug;

use crate::{
    Bus, BusError, Encoding, Published, ToClient,
    codec::{from_client, to_client},
    headers::CONTENT_TYPE,
    message,
};

message!(
    ActionsReply,
    ActionsRequest,
    ArchiveStatus,
    ArchivedBuildRequest,
    ArchivedBuildsRequest,
    AuditReply,
    AuditRequest,
    BuildRequest,
    BuildView,
    CancelReply,
    CancelRequest,
    ConsoleReply,
    ConsoleRequest,
    CreateReply,
    FindReply,
    FindRequest,
    GetRequest,
    GroupsReply,
    HistoryReply,
    HistoryRequest,
    InvocationReply,
    InvocationRequest,
    InvocationsReply,
    ListReply,
    ListRequest,
    QuotaReply,
    ReportReply,
    ReportRequest,
    TargetsReply,
    TargetsRequest,
    TestGridReply,
    TestGridRequest,
    TestsReply,
    TestsRequest,
    ToolInvocationsReply,
    ToolInvocationsRequest,
    Vec<WorkerView>,
    WhyReply,
    WhyRequest,
);
from_client!(
    ActionsRequest,
    ArchivedBuildRequest,
    ArchivedBuildsRequest,
    AuditRequest,
    BuildRequest,
    CancelBody,
    CancelRequest,
    ChangeEnvironmentRequest,
    ConsoleRequest,
    FindRequest,
    GetRequest,
    HistoryRequest,
    InvocationRequest,
    ListRequest,
    ProposeEnvironmentRequest,
    ReportRequest,
    TargetsRequest,
    TestGridRequest,
    TestsRequest,
    ToolInvocationsRequest,
    WhyRequest,
);
to_client!(
    ActionsReply,
    ApiError,
    ArchiveStatus,
    AuditReply,
    BuildRequest,
    BuildView,
    CancelReply,
    ConsoleReply,
    CreateReply,
    FindReply,
    GroupsReply,
    HistoryReply,
    InvocationReply,
    InvocationsReply,
    ListReply,
    QuotaReply,
    ReportReply,
    TargetsReply,
    TestGridReply,
    TestsReply,
    ToolInvocationsReply,
    Vec<WorkerView>,
    WhyReply,
);

/// Maximum size of an answer in bytes, below nats-server's limit of 1 MiB for body and headers.
const ANSWER_BYTES_MAX: usize = 1_040_000;

/// A running service. `nats micro` lists it.
#[derive(Debug)]
pub struct ApiService(Service);

impl Bus {
    /// Starts a service without endpoints.
    pub async fn start_api(
        &self,
        name: &str,
        version: &str,
        description: &str,
    ) -> Result<ApiService, BusError> {
        let client = &self.outside().await?.client;
        let started = client.service_builder().description(description).start(name, version).await;
        Ok(ApiService(started.map_err(BusError::failed(format!("starting the service {name}")))?))
    }
}

impl ApiService {
    /// Adds an endpoint on `subject`, which may contain wildcards. The instances of a service share its requests.
    pub async fn endpoint(&self, name: &str, subject: String) -> Result<ApiEndpoint, BusError> {
        let added = self.0.endpoint_builder().name(name).add(subject).await;
        Ok(ApiEndpoint(added.map_err(BusError::failed(format!("adding the endpoint {name}")))?))
    }

    /// Accepts no more requests.
    pub async fn stop(self) -> Result<(), BusError> {
        self.0.stop().await.map_err(BusError::failed("stopping a service"))
    }
}

/// The requests to one endpoint.
pub struct ApiEndpoint(Endpoint);

impl ApiEndpoint {
    /// The next request; `None` after the service was stopped. One that cannot be read is answered with an error.
    pub async fn next(&mut self) -> Option<ApiRequest> {
        loop {
            let request = ApiRequest::of(self.0.next().await?);
            let Some(fault) = request.message.fault() else { return Some(request) };
            let refused =
                ApiError::new(ErrorCode::InvalidRequest, format!("the message cannot be read: {fault}"));
            if let Err(error) = request.answer(Encoding::Json, Err(refused)).await {
                debug!(error = telemetry::error_chain(&error), "cannot answer a request that cannot be read");
            }
        }
    }
}

/// A request, which must be answered.
#[derive(Debug)]
pub struct ApiRequest {
    pub message: Published,
    request: Request,
}

impl ApiRequest {
    fn of(mut request: Request) -> Self {
        let received = &mut request.message;
        // Moved, not copied: an answer needs only the reply subject.
        let message = Message {
            subject: received.subject.clone(),
            reply: None,
            payload: std::mem::take(&mut received.payload),
            headers: received.headers.take(),
            status: None,
            description: None,
            length: received.length,
        };
        Self { message: Published::of(message), request }
    }

    /// Where the answer goes.
    pub(crate) fn reply(&self) -> Option<async_nats::Subject> {
        self.request.message.reply.clone()
    }

    /// Sends a message that ends the answer.
    pub(crate) async fn respond(
        &self,
        body: Bytes,
        headers: HeaderMap,
    ) -> Result<(), async_nats::PublishError> {
        self.request.respond_with_headers(Ok(body), headers).await
    }

    /// Sends the answer. An error is also sent in the headers that NATS defines for services.
    pub async fn answer(&self, encoding: Encoding, outcome: Result<Bytes, ApiError>) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, encoding.content_type());
        let body = outcome.and_then(fits_a_message).unwrap_or_else(|error| {
            headers.insert(NATS_SERVICE_ERROR, one_line(&error.message).as_str());
            headers.insert(NATS_SERVICE_ERROR_CODE, error.error.http_status().to_string().as_str());
            error.encode(encoding)
        });
        let sent = self.respond(body, headers).await;
        sent.map_err(BusError::failed("answering a request"))
    }
}

fn fits_a_message(body: Bytes) -> Result<Bytes, ApiError> {
    match body.len() {
        size if size > ANSWER_BYTES_MAX => Err(ApiError::new(
            ErrorCode::Unavailable,
            format!("the answer has {size} bytes, which is too large for a message"),
        )),
        _ => Ok(body),
    }
}

/// `text` with spaces in place of control characters, for a place that holds one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
