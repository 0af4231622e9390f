//! Published build requests: one loop for each priority.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Message,
    jetstream::{AckKind, Message as Pulled},
};
use bus::{Encoding, RequestId, RequestSubject, decode, header, message_id, stream, traceparent};
use invariant::impossible;
use model::{BuildId, BuildRequest, ErrorCode, Millis, Priority, RequestLimits};
use service::{Context, ServiceError, Step, crash_point};
use tokio::sync::Semaphore;
use tracing::{Instrument as _, debug, debug_span, warn};

use crate::{
    enqueue::{Intake, NotEnqueued},
    reject::{Refused, reject},
    trace::trace,
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

const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);
/// Number of deliveries after which a request is refused because its job cannot be accepted: half a minute, enough for
/// executors that start with the farm to register.
const DELIVERIES_MAX: i64 = 150;

/// Handles requests of one priority until the service stops, then finishes those in progress.
pub(crate) async fn serve(context: Context, intake: Intake, priority: Priority) -> Result<(), ServiceError> {
    let name = jetstream::request_consumer(priority);
    let mut queue = jetstream::open(&context.bus, stream::REQUESTS, &name).await?;
    let permits = Arc::new(Semaphore::new(concurrency(priority) as usize));
    loop {
        // Acquire a permit first: a message that must wait here would be withheld from other replicas.
        let Ok(permit) = permits.clone().acquire_owned().await else {
            impossible!("the semaphore of requests is closed");
            break;
        };
        let message = tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            message = queue.next(|| permits.available_permits() + 1) => message,
        };
        let (context, intake) = (context.clone(), intake.clone());
        tokio::spawn(async move {
            handle(&context, &intake, &message).await;
            drop(permit);
        });
    }
    // A request that takes longer is not acknowledged and is delivered again.
    let _ = tokio::time::timeout(PATIENCE, permits.acquire_many(concurrency(priority))).await;
    Ok(())
}

async fn handle(context: &Context, intake: &Intake, message: &Pulled) {
    let span = debug_span!("enqueue", otel.kind = "consumer", subject = %message.subject);
    telemetry::set_parent(&span, traceparent(message.headers.as_ref()), None);
    async {
        crash_point(Step::RequestPulled);
        if let Err(error) = process(context, intake, message, deliveries(message)).await {
            // The request is delivered again; the delay is short and such faults are rare.
            warn!(subject = %message.subject, error = telemetry::error_chain(&error), "enqueue failed, retrying");
            if let Err(error) = message.ack_with(AckKind::Nak(Some(RETRY))).await {
                debug!(%error, "cannot return the request; it is delivered again later");
            }
            return;
        }
        if let Err(error) = message.ack().await {
            debug!(%error, "cannot send the acknowledgement; the request is delivered again as a duplicate");
        }
    }
    .instrument(span)
    .await;
}

/// Enqueues the build or refuses it, both permanently; `deliveries` counts the deliveries of the request.
pub(crate) async fn process(
    context: &Context,
    intake: &Intake,
    message: &Message,
    deliveries: i64,
) -> Result<(), NotEnqueued> {
    let refused = match read(intake.limits(), message, context.bus.now()) {
        Ok(accepted) => {
            let id = accepted.build.id;
            let Err(error) = intake.enqueue(accepted, PATIENCE).await else {
                crash_point(Step::EnqueuedWritten);
                return Ok(());
            };
            let id = match &error {
                NotEnqueued::TooLarge { .. }
                | NotEnqueued::Glob(_)
                | NotEnqueued::NoQuota(_)
                | NotEnqueued::Job(_) => Some(id),
                NotEnqueued::JobNotNow(_) if deliveries >= DELIVERIES_MAX => Some(id),
                NotEnqueued::JobNotNow(_) | NotEnqueued::Bus(_) => return Err(error),
                // The other build is unaffected: nothing is written on its subject.
                NotEnqueued::Conflict { .. } => None,
            };
            Refused { error: error.code(), message: telemetry::error_chain(&error), id }
        }
        Err(refused) => refused,
    };
    Ok(reject(context, message, refused).await?)
}

/// Number of deliveries of the message, including this one.
fn deliveries(message: &Pulled) -> i64 {
    message.info().map_or(1, |info| info.delivered)
}

fn read(limits: &RequestLimits, message: &Message, now: Millis) -> Result<model::Accepted, Refused> {
    let headers = message.headers.as_ref();
    let refuse =
        |message: String, id: Option<BuildId>| Refused { error: ErrorCode::InvalidRequest, message, id };
    let named = message_id(headers).map(str::parse::<RequestId>).transpose();
    let named = named.map_err(|error| refuse(format!("header Nats-Msg-Id: {error}"), None))?;
    let header_id = named.as_ref().map(RequestId::id);
    let subject: RequestSubject =
        message.subject.as_str().parse().map_err(|error| refuse(format!("{error}"), header_id))?;
    if let Some(other) = named.as_ref().and_then(RequestId::group).filter(|named| **named != subject.group) {
        let why = format!("header Nats-Msg-Id names group {other}, expected {}", subject.group);
        return Err(refuse(why, header_id));
    }
    if message.payload.len() > limits.request_bytes_max {
        let (size, most) = (message.payload.len(), limits.request_bytes_max);
        return Err(refuse(format!("the request has {size} bytes, the limit is {most}"), header_id));
    }
    let encoding = Encoding::of(header(headers, "Content-Type"), &message.payload);
    let request: BuildRequest = decode(encoding, &message.payload)
        .map_err(|error| refuse(telemetry::error_chain(&error), header_id))?;
    let id = request.id.or(header_id);
    let mut accepted = request
        .validate(&subject.group, Some(subject.priority), header_id, limits, now)
        .map_err(|error| refuse(error.to_string(), id))?;
    accepted.build.traceparent = trace(headers);
    Ok(accepted)
}
