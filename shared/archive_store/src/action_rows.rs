//! The row that an execution's record gives.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{ExecutionOutcome, ExecutionRecord, StoredResult};
use prost::Message as _;
use reapi::{
    execution::{ActionResult, ExecutedActionMetadata},
    protobuf::Timestamp,
};

use crate::{
    plain::{INDEXED_MAX, clean, whole},
    rows::ActionRow,
};

/// The row of an execution in the state of `record`.
pub(crate) fn row(record: &ExecutionRecord, place: i64, position: i64) -> ActionRow {
    let (execution, outcome) = (&record.execution, record.outcome());
    let metadata = outcome.and_then(metadata);
    let span = |from: fn(&ExecutedActionMetadata) -> &Option<Timestamp>,
                to: fn(&ExecutedActionMetadata) -> &Option<Timestamp>| {
        let metadata = metadata.as_ref()?;
        Some(millis(to(metadata).as_ref()?).saturating_sub(millis(from(metadata).as_ref()?)).max(0))
    };
    let measured = outcome.and_then(|outcome| outcome.measured);
    let named = |text: &str| (!text.is_empty()).then(|| clean(text, INDEXED_MAX));
    ActionRow {
        place,
        action_group: execution.group.to_string(),
        execution_id: execution.id.to_string(),
        position,
        action_digest: execution.action.to_string(),
        build_id: execution.build.as_ref().map(|build| build.id.to_string()),
        build_attempt: execution.build.as_ref().map(|build| i64::from(build.attempt.0)),
        tool: named(&execution.client.name),
        tool_invocation: named(&execution.client.invocation),
        target: named(&execution.client.target),
        mnemonic: named(&execution.client.mnemonic),
        band: record.urgency().band.as_str(),
        attempt: i64::from(record.attempt.0),
        copies: i64::from(record.so_far.hedges) + 1,
        executor: outcome.and_then(|outcome| outcome.executor.as_ref()).map(ToString::to_string),
        code: outcome.map(|outcome| i64::from(outcome.code)),
        exit_code: outcome.and_then(|outcome| outcome.exit_code).map(i64::from),
        accepted_ms: whole(execution.accepted_at_ms.0),
        finished_ms: outcome.map(|_| whole(record.at_ms.0)),
        queue_ms: span(|m| &m.queued_timestamp, |m| &m.worker_start_timestamp),
        fetch_ms: span(|m| &m.input_fetch_start_timestamp, |m| &m.input_fetch_completed_timestamp),
        run_ms: span(|m| &m.execution_start_timestamp, |m| &m.execution_completed_timestamp)
            .or(measured.map(|measured| whole(measured.wall_ms))),
        upload_ms: span(|m| &m.output_upload_start_timestamp, |m| &m.output_upload_completed_timestamp),
        cpu_ms: measured.map(|measured| whole(measured.cpu_ms)),
        memory_bytes: measured.map(|measured| whole(measured.memory_bytes)),
    }
}

/// The times of the run; none if the result is a blob in the store, which is not read here.
fn metadata(outcome: &ExecutionOutcome) -> Option<ExecutedActionMetadata> {
    match outcome.result.as_ref()? {
        StoredResult::Inline(text) => {
            let bytes = STANDARD.decode(text).ok()?;
            ActionResult::decode(bytes.as_slice()).ok()?.execution_metadata
        }
        StoredResult::Blob(_) => None,
    }
}

fn millis(time: &Timestamp) -> i64 {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos) / 1_000_000)
}
