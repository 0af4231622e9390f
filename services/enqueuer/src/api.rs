//! The request/reply API: a NATS service named `forebay`.

use std::{sync::Arc, time::Duration};

use async_nats::{
    HeaderMap,
    service::{Request, ServiceExt as _, endpoint::Endpoint},
};
use bus::{ApiCall, Bus, Encoding, RequestId, Subject, decode, encode, header, traceparent};
use bytes::Bytes;
use futures::StreamExt as _;
use index::Index;
use invariant::impossible;
use model::{ApiError, BuildKey, BuildRequest, BuildView, CreateReply, ErrorCode, GetRequest, Group};
use serde::de::DeserializeOwned;
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::{sync::Semaphore, time::Instant};
use tracing::{Instrument as _, debug, debug_span};

use crate::{
    cancel::cancel,
    enqueue::Intake,
    failure::{invalid, unavailable},
    list, why,
};

/// Maximum number of concurrent calls; further ones wait in the connection.
const CALLS_MAX: u32 = 4096;
/// Maximum size of a reply in bytes, below nats-server's limit of 1 MiB for body and headers.
const REPLY_BYTES_MAX: usize = 1_040_000;
/// Time limit of a call, shorter than the timeouts of callers.
const PATIENCE: Duration = Duration::from_secs(4);

/// The running API service.
pub(crate) struct Api {
    service: async_nats::service::Service,
    permits: Arc<Semaphore>,
}

impl Api {
    /// Accepts no more calls and finishes those in progress.
    pub(crate) async fn drain(self) {
        if let Err(error) = self.service.stop().await {
            debug!(%error, "cannot stop the API");
        }
        // A call that takes longer has no caller left.
        let _ = tokio::time::timeout(PATIENCE, self.permits.acquire_many(CALLS_MAX)).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Group(ApiCall),
    Groups,
    Workers,
    Quota,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Group(call) => call.as_str(),
            Self::Groups => "groups",
            Self::Workers => "workers",
            Self::Quota => "quota",
        }
    }

    fn filter(self) -> String {
        match self {
            Self::Group(call) => call.filter(),
            Self::Groups => Subject::ApiGroups.to_string(),
            Self::Workers => Subject::Workers.to_string(),
            Self::Quota => Subject::Quota.to_string(),
        }
    }
}

#[derive(Clone)]
struct Handler {
    context: Context,
    index: Index,
    intake: Intake,
    permits: Arc<Semaphore>,
}

/// Starts the API service.
pub(crate) async fn start(context: &Context, index: Index, intake: Intake) -> Result<Api, ServiceError> {
    let failed = |error: async_nats::Error| ServiceError::failed("starting the request/reply API", error);
    let service = context
        .bus
        .client()
        .service_builder()
        .description("Forebay: create, read, cancel and list builds")
        .start("forebay", env!("CARGO_PKG_VERSION"))
        .await
        .map_err(failed)?;
    let permits = Arc::new(Semaphore::new(CALLS_MAX as usize));
    let handler = Handler { context: context.clone(), index, intake, permits: permits.clone() };
    let calls = ApiCall::ALL.into_iter().map(Call::Group).chain([Call::Groups, Call::Workers, Call::Quota]);
    for call in calls {
        let endpoint =
            service.endpoint_builder().name(call.name()).add(call.filter()).await.map_err(failed)?;
        tokio::spawn(handler.clone().serve(call, endpoint));
    }
    Ok(Api { service, permits })
}

impl Handler {
    async fn serve(self, call: Call, mut endpoint: Endpoint) {
        while let Some(request) = endpoint.next().await {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                impossible!("the semaphore of API calls is closed");
                return;
            };
            let handler = self.clone();
            tokio::spawn(async move {
                handler.answer(call, request).await;
                drop(permit);
            });
        }
    }

    async fn answer(&self, call: Call, request: Request) {
        let begun = Instant::now();
        let span = debug_span!("api", otel.kind = "server", call = call.name());
        telemetry::set_parent(&span, traceparent(request.message.headers.as_ref()), None);
        let encoding =
            Encoding::of(header(request.message.headers.as_ref(), "Content-Type"), &request.message.payload);
        let outcome = self.run(call, encoding, &request).instrument(span).await;
        let status = outcome.as_ref().err().map_or("ok", |error| error.error.as_str());
        count(Counter::ApiRequests, &[(Label::Endpoint, call.name()), (Label::Status, status)], 1);
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, call.name())], begun.elapsed());
        if let Err(error) = respond(&request, encoding, outcome).await {
            debug!(%error, "cannot send a reply");
        }
    }

    async fn run(&self, call: Call, encoding: Encoding, request: &Request) -> Result<Bytes, ApiError> {
        let payload = &request.message.payload;
        let bus = &self.context.bus;
        let call = match call {
            Call::Groups => return Ok(encode(encoding, &list::groups(&self.index).await?)),
            Call::Workers => return Ok(encode(encoding, &list::workers(bus, &self.index).await?)),
            Call::Quota => return Ok(encode(encoding, &why::quota(bus, &self.index).await?)),
            Call::Group(call) => call,
        };
        let group = group_of(call, request)?;
        match call {
            ApiCall::Create => Ok(encode(encoding, &self.create(&group, encoding, request).await?)),
            ApiCall::Get => {
                let GetRequest { id } = read(encoding, payload)?;
                Ok(encode(encoding, &get(bus, &BuildKey { group, id }).await?))
            }
            ApiCall::Cancel => {
                let wanted: model::CancelRequest = read(encoding, payload)?;
                let key = BuildKey { group, id: wanted.id };
                Ok(encode(encoding, &cancel(bus, &key, wanted).await?))
            }
            ApiCall::Why => {
                let model::WhyRequest { id } = read(encoding, payload)?;
                let view = get(bus, &BuildKey { group, id }).await?;
                Ok(encode(encoding, &why::why_of(bus, &self.index, &view.record).await?))
            }
            ApiCall::List => {
                let wanted =
                    if payload.is_empty() { model::ListRequest::default() } else { read(encoding, payload)? };
                Ok(encode(encoding, &list::list(bus, &self.index, &group, &wanted).await?))
            }
        }
    }

    async fn create(
        &self,
        group: &Group,
        encoding: Encoding,
        request: &Request,
    ) -> Result<CreateReply, ApiError> {
        let limits = self.intake.limits();
        let payload = &request.message.payload;
        if payload.len() > limits.request_bytes_max {
            let (size, most) = (payload.len(), limits.request_bytes_max);
            return Err(invalid(format!("the request has {size} bytes, the limit is {most}")));
        }
        let headers = request.message.headers.as_ref();
        let mut wanted: BuildRequest = read(encoding, payload)?;
        let named = bus::message_id(headers).map(str::parse::<RequestId>).transpose();
        let named = named.map_err(|error| invalid(format!("header Nats-Msg-Id: {error}")))?;
        if let Some(other) = named.as_ref().and_then(RequestId::group).filter(|named| *named != group) {
            return Err(invalid(format!("header Nats-Msg-Id names group {other}, expected {group}")));
        }
        let header_id = named.map(|named| named.id());
        if wanted.id.is_none() && header_id.is_none() {
            wanted.id = Some(model::BuildId::generate());
        }
        let mut accepted = wanted
            .validate(group, None, header_id, limits, self.context.bus.now())
            .map_err(|error| invalid(error.to_string()))?;
        accepted.build.traceparent = crate::trace::trace(headers);
        let id = accepted.build.id;
        let queued = self.intake.enqueue(accepted, PATIENCE).await;
        let queued = queued.map_err(|error| ApiError::new(error.code(), telemetry::error_chain(&error)))?;
        crash_point(Step::CreateWritten);
        Ok(CreateReply { id, group: group.clone(), sequence: queued.sequence, duplicate: queued.duplicate })
    }
}

async fn get(bus: &Bus, key: &BuildKey) -> Result<BuildView, ApiError> {
    let mut found = bus.latest_direct(key).await.map_err(unavailable)?;
    if found.is_none() {
        // A replica may not have the build yet.
        found = bus.latest(key).await.map_err(unavailable)?;
    }
    let missing = || {
        let why = format!("build {} not found in group {}", key.id, key.group);
        ApiError::new(ErrorCode::NotFound, why)
    };
    let (sequence, record) = found.ok_or_else(missing)?;
    Ok(BuildView::new(sequence, record))
}

fn group_of(call: ApiCall, request: &Request) -> Result<Group, ApiError> {
    let subject = request.message.subject.as_str();
    let prefix = call.filter();
    let name = subject.strip_prefix(prefix.trim_end_matches('*')).unwrap_or_default();
    name.parse().map_err(|error: model::ParseIdError| invalid(error.to_string()))
}

fn read<T: DeserializeOwned>(encoding: Encoding, payload: &[u8]) -> Result<T, ApiError> {
    decode(encoding, payload).map_err(|error| invalid(telemetry::error_chain(&error)))
}

async fn respond(
    request: &Request,
    encoding: Encoding,
    outcome: Result<Bytes, ApiError>,
) -> Result<(), async_nats::client::PublishError> {
    let mut headers = HeaderMap::new();
    headers.insert("Content-Type", encoding.content_type());
    let outcome = outcome.and_then(|body| match body.len() {
        size if size > REPLY_BYTES_MAX => Err(ApiError::new(
            ErrorCode::Unavailable,
            format!("the answer has {size} bytes, which is too large for a message"),
        )),
        _ => Ok(body),
    });
    let body = outcome.unwrap_or_else(|error| {
        headers.insert("Nats-Service-Error", one_line(&error.message).as_str());
        headers.insert("Nats-Service-Error-Code", error.error.http_status().to_string().as_str());
        encode(encoding, &error)
    });
    request.respond_with_headers(Ok(body), headers).await
}

/// Replaces line breaks: a header holds one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
