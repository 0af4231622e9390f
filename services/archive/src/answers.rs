//! The answers of the archive: a NATS service named `forebay-archive`.

use std::{sync::Arc, time::Duration};

use archive_store::{Store, StoreError};
use bus::{
    ApiEndpoint, ApiRequest, ApiService, ArchiveCall, Bus, BusError, Encoding, FromClient, Subject,
    ToClient as _,
};
use bytes::Bytes;
use invariant::impossible;
use model::{
    ActionsRequest, ApiError, ArchivedBuildRequest, ArchivedBuildsRequest, AuditRequest, BuildKey,
    ConsoleRequest, ErrorCode, FindReply, FindRequest, HistoryRequest, InvocationRequest, InvocationsReply,
    ReportRequest, TargetsRequest, TestGridRequest, TestsRequest, ToolInvocationsRequest,
};
use service::{Context, ServiceError};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::{sync::Semaphore, time::Instant};
use tracing::debug;

/// Maximum number of concurrent calls; further ones wait in the connection.
const CALLS_MAX: u32 = 64;
/// Time limit of the calls in progress when the service stops.
const PATIENCE: Duration = Duration::from_secs(4);

/// The running service, which answers questions.
pub(crate) struct Answers {
    service: ApiService,
    permits: Arc<Semaphore>,
}

impl Answers {
    /// Accepts no more calls and finishes those in progress.
    pub(crate) async fn drain(self) {
        if let Err(error) = self.service.stop().await {
            debug!(error = telemetry::error_chain(&error), "cannot stop the answers of the archive");
        }
        // A call that takes longer has no caller left.
        let _ = tokio::time::timeout(PATIENCE, self.permits.acquire_many(CALLS_MAX)).await;
    }
}

#[derive(Clone)]
struct Handler {
    bus: Bus,
    store: Store,
    permits: Arc<Semaphore>,
}

/// Starts to answer questions about the archive.
pub(crate) async fn start(context: &Context, store: &Store) -> Result<Answers, ServiceError> {
    let failed = |error: BusError| ServiceError::failed("starting the answers of the archive", error);
    let description = "Forebay: read archived builds, their runs, output and actions";
    let started = context.bus.start_api("forebay-archive", env!("CARGO_PKG_VERSION"), description).await;
    let service = started.map_err(failed)?;
    let permits = Arc::new(Semaphore::new(CALLS_MAX as usize));
    let handler = Handler { bus: context.bus.clone(), store: store.clone(), permits: permits.clone() };
    for call in ArchiveCall::ALL {
        let endpoint =
            service.endpoint(call.as_str(), Subject::Archive(call).to_string()).await.map_err(failed)?;
        tokio::spawn(handler.clone().serve(call, endpoint));
    }
    Ok(Answers { service, permits })
}

impl Handler {
    async fn serve(self, call: ArchiveCall, mut endpoint: ApiEndpoint) {
        while let Some(request) = endpoint.next().await {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                impossible!("the semaphore of the archive's calls is closed");
                return;
            };
            let handler = self.clone();
            tokio::spawn(async move {
                Box::pin(handler.answer(call, request)).await;
                drop(permit);
            });
        }
    }

    async fn answer(&self, call: ArchiveCall, request: ApiRequest) {
        let begun = Instant::now();
        let encoding = request.message.encoding();
        let outcome = self.run(call, encoding, request.message.payload()).await;
        let status = outcome.as_ref().err().map_or("ok", |error| error.error.as_str());
        let endpoint = endpoint(call);
        count(Counter::ApiRequests, &[(Label::Endpoint, endpoint), (Label::Status, status)], 1);
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, endpoint)], begun.elapsed());
        if let Err(error) = request.answer(encoding, outcome).await {
            debug!(error = telemetry::error_chain(&error), "cannot send a reply");
        }
    }

    async fn run(&self, call: ArchiveCall, encoding: Encoding, payload: &[u8]) -> Result<Bytes, ApiError> {
        let store = &self.store;
        let failed = |error| failed(store.explain(error));
        match call {
            ArchiveCall::Get => {
                let key = key(read(encoding, payload)?);
                let found = store.build(&key).await.map_err(failed)?;
                Ok(found.ok_or_else(|| missing(&format!("build {key}")))?.encode(encoding))
            }
            ArchiveCall::Find => {
                let FindRequest { id } = read(encoding, payload)?;
                Ok(FindReply { builds: store.find(id).await.map_err(failed)? }.encode(encoding))
            }
            ArchiveCall::List => {
                let wanted: ArchivedBuildsRequest = read_or_default(encoding, payload)?;
                Ok(store.builds(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Invocation => {
                let InvocationRequest { id } = read(encoding, payload)?;
                let found = store.invocation(id).await.map_err(failed)?;
                Ok(found.ok_or_else(|| missing(&format!("invocation {id}")))?.encode(encoding))
            }
            ArchiveCall::Invocations => {
                let key = key(read(encoding, payload)?);
                let invocations = store.invocations(&key).await.map_err(failed)?;
                Ok(InvocationsReply { invocations }.encode(encoding))
            }
            ArchiveCall::Console => {
                let wanted: ConsoleRequest = read(encoding, payload)?;
                let found = store.console(&wanted).await.map_err(failed)?;
                Ok(found.ok_or_else(|| missing("the build"))?.encode(encoding))
            }
            ArchiveCall::Actions => {
                let wanted: ActionsRequest = read(encoding, payload)?;
                Ok(store.actions(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::History => {
                let wanted: HistoryRequest = read(encoding, payload)?;
                Ok(store.history(&wanted, self.bus.now()).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::ToolInvocations => {
                let wanted: ToolInvocationsRequest = read_or_default(encoding, payload)?;
                Ok(store.tool_invocations(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Targets => {
                let wanted: TargetsRequest = read(encoding, payload)?;
                Ok(store.targets(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Tests => {
                let wanted: TestsRequest = read(encoding, payload)?;
                Ok(store.tests(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::TestGrid => {
                let wanted: TestGridRequest = read_or_default(encoding, payload)?;
                Ok(store.test_grid(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Report => {
                let wanted: ReportRequest = read(encoding, payload)?;
                Ok(store.report(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Audit => {
                let wanted: AuditRequest = read_or_default(encoding, payload)?;
                Ok(store.audit(&wanted).await.map_err(failed)?.encode(encoding))
            }
            ArchiveCall::Status => Ok(store.status().await.map_err(failed)?.encode(encoding)),
        }
    }
}

/// Name of a call in metrics.
fn endpoint(call: ArchiveCall) -> &'static str {
    match call {
        ArchiveCall::Get => "archive.get",
        ArchiveCall::Find => "archive.find",
        ArchiveCall::List => "archive.list",
        ArchiveCall::Invocation => "archive.invocation",
        ArchiveCall::Invocations => "archive.invocations",
        ArchiveCall::Console => "archive.console",
        ArchiveCall::Actions => "archive.actions",
        ArchiveCall::History => "archive.history",
        ArchiveCall::ToolInvocations => "archive.tool_invocations",
        ArchiveCall::Targets => "archive.targets",
        ArchiveCall::Tests => "archive.tests",
        ArchiveCall::TestGrid => "archive.test_grid",
        ArchiveCall::Report => "archive.report",
        ArchiveCall::Audit => "archive.audit",
        ArchiveCall::Status => "archive.status",
    }
}

fn key(request: ArchivedBuildRequest) -> BuildKey {
    BuildKey { group: request.group, id: request.id }
}

fn read<T: FromClient>(encoding: Encoding, payload: &[u8]) -> Result<T, ApiError> {
    T::decode(encoding, payload)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, telemetry::error_chain(&error)))
}

fn read_or_default<T: FromClient + Default>(encoding: Encoding, payload: &[u8]) -> Result<T, ApiError> {
    if payload.is_empty() { Ok(T::default()) } else { read(encoding, payload) }
}

fn missing(what: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("{what} not found in the archive"))
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn failed(error: StoreError) -> ApiError {
    let code = if error.is_misuse() { ErrorCode::InvalidRequest } else { ErrorCode::Unavailable };
    ApiError::new(code, telemetry::error_chain(&error))
}
