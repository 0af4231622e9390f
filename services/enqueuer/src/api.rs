//! The request/reply API: a NATS service named `forebay`.

use std::{sync::Arc, time::Duration};

use audit::{Act, Actor, Audit};
use bus::{
    ApiCall, ApiEndpoint, ApiRequest, ApiService, Bus, BusError, Encoding, EventsRequest, FromClient,
    Published, RequestId, Subject, Tail, ToClient as _, no_events,
};
use bytes::Bytes;
use index::Index;
use invariant::impossible;
use model::{
    ApiError, AuditKind, BuildKey, BuildRequest, BuildView, CreateReply, GetRequest, Group, ListReply,
    ListRequest, State,
};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::{sync::Semaphore, time::Instant};
use tracing::debug;

use crate::{
    archived,
    cancel::cancel,
    enqueue::Intake,
    failure::{invalid, unavailable},
    list, why,
};

/// Maximum number of concurrent calls; further ones wait in the connection.
const CALLS_MAX: u32 = 4096;
/// Time limit of a call, shorter than the timeouts of callers.
const PATIENCE: Duration = Duration::from_secs(4);

/// The running API service.
pub(crate) struct Api {
    service: ApiService,
    permits: Arc<Semaphore>,
}

impl Api {
    /// Accepts no more calls and finishes those in progress.
    pub(crate) async fn drain(self) {
        if let Err(error) = self.service.stop().await {
            debug!(error = telemetry::error_chain(&error), "cannot stop the API");
        }
        // A call that takes longer has no caller left.
        let _ = tokio::time::timeout(PATIENCE, self.permits.acquire_many(CALLS_MAX)).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Group(ApiCall),
    Groups,
    /// Lists the builds of all groups.
    Builds,
    Workers,
    Quota,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Group(call) => call.as_str(),
            Self::Groups => "groups",
            Self::Builds => "list_all",
            Self::Workers => "workers",
            Self::Quota => "quota",
        }
    }

    fn filter(self) -> String {
        match self {
            Self::Group(call) => call.filter(),
            Self::Groups => Subject::ApiGroups.to_string(),
            Self::Builds => Subject::Builds.to_string(),
            Self::Workers => Subject::Workers.to_string(),
            Self::Quota => Subject::Quota.to_string(),
        }
    }
}

/// What a call is answered with.
enum Answer {
    One(Bytes),
    /// A message for each event, and one that ends them.
    Events(Tail),
}

impl From<Bytes> for Answer {
    fn from(body: Bytes) -> Self {
        Self::One(body)
    }
}

#[derive(Clone)]
struct Handler {
    context: Context,
    index: Index,
    intake: Intake,
    permits: Arc<Semaphore>,
    audit: Audit,
    /// Number of idle workspaces of the farm that are left for emergencies.
    emergency_workspaces: usize,
}

/// Starts the API service. `emergency_workspaces` is what dispatchers leave idle for emergencies.
pub(crate) async fn start(
    context: &Context,
    index: Index,
    intake: Intake,
    emergency_workspaces: usize,
) -> Result<Api, ServiceError> {
    let failed = |error: BusError| ServiceError::failed("starting the request/reply API", error);
    let description = "Forebay: create, read, cancel and list builds";
    let started = context.bus.start_api("forebay", env!("CARGO_PKG_VERSION"), description).await;
    let service = started.map_err(failed)?;
    let permits = Arc::new(Semaphore::new(CALLS_MAX as usize));
    let (context, permits_of_calls) = (context.clone(), permits.clone());
    let audit = Audit::start(&context.bus, &context.instance);
    let handler = Handler { context, index, intake, permits: permits_of_calls, audit, emergency_workspaces };
    let calls = ApiCall::ALL.into_iter().map(Call::Group).chain([
        Call::Groups,
        Call::Builds,
        Call::Workers,
        Call::Quota,
    ]);
    for call in calls {
        let endpoint = service.endpoint(call.name(), call.filter()).await.map_err(failed)?;
        tokio::spawn(handler.clone().serve(call, endpoint));
    }
    Ok(Api { service, permits })
}

impl Handler {
    async fn serve(self, call: Call, mut endpoint: ApiEndpoint) {
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

    async fn answer(&self, call: Call, request: ApiRequest) {
        let begun = Instant::now();
        let message = &request.message;
        let encoding = message.encoding();
        let outcome = self.run(call, encoding, message).await;
        let status = outcome.as_ref().err().map_or("ok", |error| error.error.as_str());
        count(Counter::ApiRequests, &[(Label::Endpoint, call.name()), (Label::Status, status)], 1);
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, call.name())], begun.elapsed());
        let sent = match outcome {
            Ok(Answer::Events(tail)) => request.answer_events(&self.context.bus, tail).await,
            Ok(Answer::One(body)) => request.answer(encoding, Ok(body)).await,
            Err(error) => request.answer(encoding, Err(error)).await,
        };
        if let Err(error) = sent {
            debug!(error = telemetry::error_chain(&error), "cannot send a reply");
        }
    }

    async fn run(&self, call: Call, encoding: Encoding, message: &Published) -> Result<Answer, ApiError> {
        let payload = message.payload();
        let bus = &self.context.bus;
        let call = match call {
            Call::Groups => return Ok(list::groups(&self.index).await?.encode(encoding).into()),
            Call::Builds => {
                return Ok(self.list(None, &filter(encoding, payload)?).await?.encode(encoding).into());
            }
            Call::Workers => return Ok(list::workers(bus, &self.index).await?.encode(encoding).into()),
            Call::Quota => {
                let estimates = self.intake.occupancy_error();
                return Ok(why::quota(bus, &self.index, estimates).await?.encode(encoding).into());
            }
            Call::Group(call) => call,
        };
        let group = group_of(call, message)?;
        match call {
            ApiCall::Create => Ok(self.create(&group, encoding, message).await?.encode(encoding).into()),
            ApiCall::Get => {
                let GetRequest { id } = read(encoding, payload)?;
                Ok(get(bus, &BuildKey { group, id }).await?.encode(encoding).into())
            }
            ApiCall::Cancel => {
                let wanted: model::CancelRequest = read(encoding, payload)?;
                let key = BuildKey { group, id: wanted.id };
                let reason = wanted.reason.clone();
                let reply = cancel(bus, &key, wanted).await?;
                if reply.cancelled {
                    self.record_cancel(message, &key, reason);
                }
                Ok(reply.encode(encoding).into())
            }
            ApiCall::Why => {
                let model::WhyRequest { id } = read(encoding, payload)?;
                let view = get(bus, &BuildKey { group, id }).await?;
                let kept = self.emergency_workspaces as u64;
                Ok(why::why_of(bus, &self.index, &view.record, kept).await?.encode(encoding).into())
            }
            ApiCall::Events => Ok(Answer::Events(self.events(&group, encoding, payload).await?)),
            ApiCall::List => {
                Ok(self.list(Some(&group), &filter(encoding, payload)?).await?.encode(encoding).into())
            }
        }
    }

    /// Events of a build after a position.
    async fn events(&self, group: &Group, encoding: Encoding, payload: &[u8]) -> Result<Tail, ApiError> {
        let wanted: EventsRequest = read(encoding, payload)?;
        let (bus, key) = (&self.context.bus, BuildKey { group: group.clone(), id: wanted.id });
        let tail = bus.read_events(&key, wanted.watched(), wanted.first(), wanted.batch()).await;
        let tail = tail.map_err(unavailable)?;
        if tail.events.is_empty() && bus.records().latest(&key).await.map_err(unavailable)?.is_none() {
            return Err(no_events(&key));
        }
        Ok(tail)
    }

    /// Records for operators that a client of the bus cancelled a build. If the client is a gateway, it has recorded who called
    /// it; here the name is only what the client says.
    fn record_cancel(&self, message: &Published, key: &BuildKey, reason: Option<String>) {
        let actor = Actor::stated(message.stated_caller());
        let act = Act::new(actor, message.subject()).on(key.to_string());
        let act = match reason {
            Some(reason) => act.because(reason),
            None => act,
        };
        self.audit.record(AuditKind::Cancel, act);
    }

    /// Builds of a group, or of all, of the index, completed by the archive; of the archive alone where only it can tell.
    async fn list(&self, group: Option<&Group>, wanted: &ListRequest) -> Result<ListReply, ApiError> {
        let bus = &self.context.bus;
        if wanted.is_for_archive() {
            return archived::page(bus, group, wanted).await;
        }
        let live = match group {
            Some(group) => list::list(bus, &self.index, group, wanted).await?,
            None => list::of_all_groups(bus, &self.index, wanted).await?,
        };
        match wanted.state {
            // What waits is in the order in which it will start.
            Some(State::Enqueued | State::InProgress) => Ok(live),
            Some(State::Finished) | None => archived::complete(bus, group, wanted, live).await,
        }
    }

    async fn create(
        &self,
        group: &Group,
        encoding: Encoding,
        message: &Published,
    ) -> Result<CreateReply, ApiError> {
        let limits = self.intake.limits();
        let payload = message.payload();
        if payload.len() > limits.request_bytes_max {
            let (size, most) = (payload.len(), limits.request_bytes_max);
            return Err(invalid(format!("the request has {size} bytes, the limit is {most}")));
        }
        let mut wanted: BuildRequest = read(encoding, payload)?;
        let named = message.message_id().map(str::parse::<RequestId>).transpose();
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
        accepted.build.traceparent = crate::request_trace::trace(message);
        let id = accepted.build.id;
        let queued = self.intake.enqueue(accepted, PATIENCE).await;
        let queued = queued.map_err(|error| error.for_client())?;
        crash_point(Step::CreateWritten);
        Ok(CreateReply { id, group: group.clone(), sequence: queued.sequence, duplicate: queued.duplicate })
    }
}

async fn get(bus: &Bus, key: &BuildKey) -> Result<BuildView, ApiError> {
    let mut found = bus.records().latest_direct(key).await.map_err(unavailable)?;
    if found.is_none() {
        // A replica may not have the build yet.
        found = bus.records().latest(key).await.map_err(unavailable)?;
    }
    match found {
        Some((sequence, record)) => Ok(BuildView::new(sequence, record)),
        None => archived::build(bus, key).await,
    }
}

fn group_of(call: ApiCall, message: &Published) -> Result<Group, ApiError> {
    let prefix = call.filter();
    let name = message.subject().strip_prefix(prefix.trim_end_matches('*')).unwrap_or_default();
    name.parse().map_err(|error: model::ParseIdError| invalid(error.to_string()))
}

/// The filter of a list, which may be absent.
fn filter(encoding: Encoding, payload: &[u8]) -> Result<ListRequest, ApiError> {
    if payload.is_empty() { Ok(ListRequest::default()) } else { read(encoding, payload) }
}

fn read<T: FromClient>(encoding: Encoding, payload: &[u8]) -> Result<T, ApiError> {
    T::decode(encoding, payload).map_err(|error| invalid(telemetry::error_chain(&error)))
}
