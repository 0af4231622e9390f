//! Refusing a published build request so that the client and all watchers are notified.

use std::{collections::BTreeMap, time::Duration};

use bus::{BusError, Published, RequestId, RequestSubject, Written};
use model::{
    Attempt, Build, BuildId, BuildRecord, BuildResult, Context as BuildContext, Digest, ErrorCode, Occupancy,
    Outcome, ReasonCode, Rejection, Sequence, WorkspaceUse,
};
use service::{Context, Step, crash_point, trace_run_ended};
use telemetry::metrics::{Counter, Label, count};
use tracing::info;

/// A request that is refused, and the reason.
pub(crate) struct Refused {
    pub(crate) error: ErrorCode,
    pub(crate) message: String,
    /// Set if the id belongs to the refused build itself: its watchers are notified.
    pub(crate) id: Option<BuildId>,
}

/// Token in the subject of a rejection when the request's group is not a valid name.
const UNNAMED: &str = "_invalid";
const PATIENCE: Duration = Duration::from_secs(5);

/// Publishes the rejection and, if the build has an id, ends the build.
pub(crate) async fn reject(context: &Context, message: &Published, refused: Refused) -> Result<(), BusError> {
    let subject = message.subject().parse::<RequestSubject>().ok();
    let group = match subject.as_ref() {
        Some(subject) => subject.group.clone(),
        None => UNNAMED.parse().map_err(|error: model::ParseIdError| BusError::Failed {
            what: "naming the group of a rejection".into(),
            source: error.into(),
        })?,
    };
    count(Counter::BuildsRejected, &[(Label::Reason, refused.error.as_str())], 1);
    info!(subject = message.subject(), reason = model::brief(refused.message.clone()), "request rejected");
    let name = message.message_id().map(str::to_owned);
    let rejection = Rejection {
        id: refused.id.or_else(|| {
            name.as_deref().and_then(|text| text.parse().ok()).map(|named: RequestId| named.id())
        }),
        message_id: name,
        group,
        subject: message.subject().to_owned(),
        error: refused.error,
        message: model::brief(refused.message.clone()),
        size_bytes: message.payload().len() as u64,
        at_ms: context.bus.now(),
    };
    context.bus.publish_rejection(&rejection).await?;
    crash_point(Step::RejectionPublished);
    match (refused.id, subject) {
        (Some(id), Some(subject)) => end(context, &subject, id, refused.message, message).await,
        (None, _) | (_, None) => Ok(()),
    }
}

/// Writes FINISHED (rejected), unless a build with this id exists.
async fn end(
    context: &Context,
    subject: &RequestSubject,
    id: BuildId,
    why: String,
    message: &Published,
) -> Result<(), BusError> {
    let now = context.bus.now();
    let build = Build {
        id,
        group: subject.group.clone(),
        priority: subject.priority,
        command: Vec::new(),
        env: BTreeMap::new(),
        context: BuildContext::Empty,
        timeout_seconds: 0,
        queue_timeout_seconds: 0,
        lease_ttl_seconds: 0,
        max_attempts: Attempt::FIRST,
        outputs: Vec::new(),
        require_outputs: false,
        labels: BTreeMap::new(),
        tool: None,
        workspace: WorkspaceUse::Fresh,
        tool_hints: model::ToolHints::default(),
        requirements: model::BuildRequirements::default(),
        secrets: Vec::new(),
        services: Vec::new(),
        limits: model::BuildLimits::default(),
        occupancy: Occupancy::default(),
        estimated_by: None,
        sends_actions: false,
        job: None,
        submitter: None,
        expected_ms: None,
        submitted_at_ms: now,
        request_digest: Digest::of(message.payload()),
        traceparent: crate::request_trace::trace(message),
    };
    let result = BuildResult::without_run(Outcome::Rejected, ReasonCode::InvalidRequest, why);
    let before = BuildRecord::enqueued(build);
    let record = before.finished(result, now);
    match context.bus.transition(&record, Sequence(0), PATIENCE).await? {
        Written::Won(_) => {
            trace_run_ended(&context.bus, &before, &record);
            let priority = record.build.priority.as_str();
            let labels = [(Label::Outcome, "rejected"), (Label::Priority, priority)];
            count(Counter::BuildsFinished, &labels, 1);
        }
        Written::Lost(_) => {}
    }
    Ok(())
}
