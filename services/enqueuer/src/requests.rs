//! Published build requests: one loop for each priority.

use std::time::Duration;

use bus::{Delivery, FromClient as _, Handled, Limits, Published, RequestId, RequestSubject, stream};
use model::{BuildId, BuildRequest, ErrorCode, Millis, Priority, RequestLimits};
use policy::store_retry_delay;
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tracing::warn;

use crate::{
    enqueue::{Intake, NotEnqueued},
    jobs::NotNow,
    reject::{Refused, reject},
    request_trace::trace,
};

/// Number of requests handled at once. Under overload, the shares are the weights of the priorities.
fn concurrency(priority: Priority) -> u32 {
    match priority {
        Priority::Emergency => 512,
        Priority::Interactive => 256,
        Priority::Automated => 128,
        Priority::Batch => 64,
    }
}

/// Name of published requests among the calls of the API.
const ENDPOINT: &str = "publish";
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of deliveries after which a request is refused because its job cannot be accepted: half a minute, enough for
/// executors that start with the farm to register.
const DELIVERIES_MAX: i64 = 150;

/// Handles requests of one priority until the service stops, then finishes those in progress.
pub(crate) async fn serve(context: Context, intake: Intake, priority: Priority) -> Result<(), ServiceError> {
    let outside = context.bus.outside().await;
    let outside = outside.map_err(|error| ServiceError::failed("connecting for requests", error))?;
    let name = jetstream::request_consumer(priority);
    let queue = jetstream::open(outside, stream::REQUESTS, &name).await?;
    let limits = Limits { at_once: concurrency(priority), batch: None, drain: PATIENCE };
    let handle = |delivery| {
        let (context, intake) = (context.clone(), intake.clone());
        async move { handle(&context, &intake, &delivery).await }
    };
    queue.serve(limits, &context.stop, |_| true, handle).await;
    Ok(())
}

async fn handle(context: &Context, intake: &Intake, delivery: &Delivery) -> Handled {
    let Delivery { message, count, stored_at } = delivery;
    crash_point(Step::RequestPulled);
    let processed = process(context, intake, message, *count).await;
    record_metrics(processed.as_ref(), *stored_at, context.bus.now());
    match processed {
        Ok(_) => Handled::Done,
        Err(error) => {
            let why = telemetry::error_chain(&error);
            warn!(subject = message.subject(), error = why, "enqueue failed, retrying");
            if error.is_of_store() {
                Handled::Later(store_retry_delay(u64::try_from(*count).unwrap_or(1)))
            } else {
                Handled::Again
            }
        }
    }
}

/// Counts a published request as a call of the API that began when the request was stored.
fn record_metrics(
    processed: Result<&Option<ErrorCode>, &NotEnqueued>,
    stored_at: Option<Millis>,
    now: Millis,
) {
    let status = match processed {
        Ok(None) => "ok",
        Ok(Some(refused)) => refused.as_str(),
        Err(_) => ErrorCode::Unavailable.as_str(),
    };
    count(Counter::ApiRequests, &[(Label::Endpoint, ENDPOINT), (Label::Status, status)], 1);
    // A request that is delivered again has not been answered yet.
    if let (Ok(_), Some(stored_at)) = (processed, stored_at) {
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, ENDPOINT)], now.since(stored_at));
    }
}

/// Enqueues the build or refuses it, both permanently, and returns the error of a refusal. `deliveries` counts the
/// deliveries of the request.
pub(crate) async fn process(
    context: &Context,
    intake: &Intake,
    message: &Published,
    deliveries: i64,
) -> Result<Option<ErrorCode>, NotEnqueued> {
    let refused = match read(intake.limits(), message, context.bus.now()) {
        Ok(accepted) => {
            let id = accepted.build.id;
            let Err(error) = intake.enqueue(accepted, PATIENCE).await else {
                crash_point(Step::EnqueuedWritten);
                return Ok(None);
            };
            let id = match &error {
                NotEnqueued::TooLarge { .. }
                | NotEnqueued::NoQuota(_)
                | NotEnqueued::NoFolder(_)
                | NotEnqueued::NoWorker(_)
                | NotEnqueued::QueueFull(_)
                | NotEnqueued::Environment(_)
                | NotEnqueued::UnknownEnvironment { .. }
                | NotEnqueued::Misplaced(_)
                | NotEnqueued::Job(_) => Some(id),
                // A store that does not answer is waited for.
                NotEnqueued::Store(_) | NotEnqueued::JobNotNow(NotNow::Store(_)) => return Err(error),
                NotEnqueued::JobNotNow(_) if deliveries >= DELIVERIES_MAX => Some(id),
                NotEnqueued::JobNotNow(_) | NotEnqueued::Bus(_) => return Err(error),
                // The other build is unaffected: nothing is written on its subject.
                NotEnqueued::Conflict { .. } => None,
            };
            Refused { error: error.code(), message: telemetry::error_chain(&error), id }
        }
        Err(refused) => refused,
    };
    let code = refused.error;
    reject(context, message, refused).await?;
    Ok(Some(code))
}

fn read(limits: &RequestLimits, message: &Published, now: Millis) -> Result<model::Accepted, Refused> {
    let refuse =
        |message: String, id: Option<BuildId>| Refused { error: ErrorCode::InvalidRequest, message, id };
    if let Some(fault) = message.fault() {
        let id = message.message_id().and_then(|id| Some(id.parse::<RequestId>().ok()?.id()));
        return Err(refuse(format!("the message cannot be read: {fault}"), id));
    }
    let named = message.message_id().map(str::parse::<RequestId>).transpose();
    let named = named.map_err(|error| refuse(format!("header Nats-Msg-Id: {error}"), None))?;
    let header_id = named.as_ref().map(RequestId::id);
    let subject: RequestSubject =
        message.subject().parse().map_err(|error| refuse(format!("{error}"), header_id))?;
    if let Some(other) = named.as_ref().and_then(RequestId::group).filter(|named| **named != subject.group) {
        let why = format!("header Nats-Msg-Id names group {other}, expected {}", subject.group);
        return Err(refuse(why, header_id));
    }
    if message.payload().len() > limits.request_bytes_max {
        let (size, most) = (message.payload().len(), limits.request_bytes_max);
        return Err(refuse(format!("the request has {size} bytes, the limit is {most}"), header_id));
    }
    let request = BuildRequest::decode(message.encoding(), message.payload())
        .map_err(|error| refuse(telemetry::error_chain(&error), header_id))?;
    let id = request.id.or(header_id);
    let mut accepted = request
        .validate(&subject.group, Some(subject.priority), header_id, limits, now)
        .map_err(|error| refuse(error.to_string(), id))?;
    accepted.build.traceparent = trace(message);
    Ok(accepted)
}
