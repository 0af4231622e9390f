//! The known state of an execution, and the `Operation` that reports it to a client.

use std::{collections::BTreeMap, sync::Arc};

use invariant::Present as _;
use model::{
    ExecutionPhase, ExecutionProgress, ExecutionRecord, ExecutionStage, ExecutorId, ImageFetch, Millis,
    OutputStream, Sequence,
};
use prost_types::{Struct, Value, value::Kind};
use reapi::{
    execution::{
        ExecuteOperationMetadata, ExecuteResponse, ExecutedActionMetadata, execution_stage::Value as Stage,
    },
    longrunning::{Operation, operation},
    protobuf::{Any, Timestamp},
    rpc, status,
};

use super::{
    names::{LiveName, OperationName},
    pools::{Position, Why},
};

const METADATA: &str = "build.bazel.remote.execution.v2.ExecuteOperationMetadata";
const RESPONSE: &str = "build.bazel.remote.execution.v2.ExecuteResponse";
const STATUS: &str = "google.rpc.Status";
const STRUCT: &str = "google.protobuf.Struct";

/// The known state of an execution: its last record, and the progress of its executors since.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Known {
    /// The last record and its position; `None` until the first is known.
    pub(crate) last: Option<(Sequence, Arc<ExecutionRecord>)>,
    /// The copies on executors, ordered by their latest report; the most recent one is last.
    copies: Vec<CopyState>,
    /// The execution was accepted but is no longer stored.
    pub(crate) lost: bool,
}

/// A copy of an execution on an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyState {
    /// The progress that the executor reported last.
    progress: ExecutionProgress,
    /// Time of the first report of the copy.
    begun_at: Millis,
}

impl Known {
    /// Records `record` if it is newer, and returns whether it is.
    pub(crate) fn apply(&mut self, sequence: Sequence, record: ExecutionRecord) -> bool {
        if self.last.as_ref().is_some_and(|(known, _)| *known >= sequence) {
            return false;
        }
        match &record.phase {
            // The execution waits again, whatever its executors did before.
            ExecutionPhase::Requeued { .. } => self.copies.clear(),
            ExecutionPhase::CopyEnded { executor, .. } => {
                self.copies.retain(|copy| copy.progress.executor != *executor);
            }
            ExecutionPhase::Accepted
            | ExecutionPhase::Hedged
            | ExecutionPhase::Raised
            | ExecutionPhase::Finished(_) => {}
        }
        self.last = Some((sequence, Arc::new(record)));
        self.lost = false;
        true
    }

    /// Records the progress of an executor, and returns whether it changed.
    pub(crate) fn apply_progress(&mut self, progress: ExecutionProgress) -> bool {
        let known = self.copies.iter().position(|copy| copy.progress.executor == progress.executor);
        let begun_at = match known.map(|at| self.copies.remove(at)) {
            Some(same) if same.progress == progress => {
                self.copies.push(same);
                return false;
            }
            Some(before) => before.begun_at,
            None => progress.at_ms,
        };
        self.copies.push(CopyState { progress, begun_at });
        true
    }

    /// The most recently reported progress of an executor.
    pub(crate) fn progress(&self) -> Option<&ExecutionProgress> {
        self.copies.last().map(|copy| &copy.progress)
    }

    /// The executors known to have a copy, most recently reported first.
    pub(crate) fn executors(&self) -> impl Iterator<Item = &ExecutorId> {
        self.copies.iter().rev().map(|copy| &copy.progress.executor)
    }

    /// The last record, once one is known.
    pub(crate) fn record(&self) -> Option<&ExecutionRecord> {
        self.last.as_ref().map(|(_, record)| &**record)
    }

    /// Whether it has a result or is lost.
    pub(crate) fn is_over(&self) -> bool {
        self.lost || self.record().is_some_and(|record| record.outcome().is_some())
    }

    /// Whether it is not over and no executor has it.
    pub(crate) fn waits(&self) -> bool {
        !self.is_over() && self.copies.is_empty()
    }
}

/// The part of the state whose changes are sent to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientView {
    stage: Stage,
    worker: Option<String>,
    running: bool,
    image: Option<ImageFetch>,
    why: Option<Why>,
}

/// The part of the current state that is sent to a client when it changes. `why` is the reason for waiting.
pub(crate) fn client_view(known: &Known, why: Option<&Why>) -> ClientView {
    let stage = stage(known);
    ClientView {
        stage,
        worker: known.progress().map(|progress| progress.executor.to_string()),
        running: known.progress().is_some_and(|progress| progress.stage != ExecutionStage::Fetching),
        image: known.progress().and_then(|progress| progress.image),
        why: why.filter(|_| stage == Stage::Queued).cloned(),
    }
}

fn stage(known: &Known) -> Stage {
    if known.is_over() {
        return Stage::Completed;
    }
    match known.progress() {
        None => Stage::Queued,
        Some(_) => Stage::Executing,
    }
}

/// The operation of an unfinished execution.
pub(crate) fn pending(name: &OperationName, known: &Known, why: Option<&Why>) -> Operation {
    Operation {
        name: name.to_string(),
        metadata: Some(metadata(name, known, why)),
        done: false,
        result: None,
    }
}

/// The operation when it is done. An error is part of the response: `Operation.error` is never set.
pub(crate) fn done(name: &str, metadata: Any, response: &ExecuteResponse) -> Operation {
    Operation {
        name: name.to_owned(),
        metadata: Some(metadata),
        done: true,
        result: Some(operation::Result::Response(status::any(response, RESPONSE))),
    }
}

/// The metadata of an operation that is done without an execution.
pub(crate) fn done_metadata(action: &model::BlobDigest) -> Any {
    let metadata = ExecuteOperationMetadata {
        stage: Stage::Completed.into(),
        action_digest: Some(reapi::digest::to_proto(action)),
        digest_function: reapi::digest::value(action.function).into(),
        ..ExecuteOperationMetadata::default()
    };
    status::any(&metadata, METADATA)
}

/// The `ExecuteOperationMetadata` of an execution. The reason for waiting is in
/// `partial_execution_metadata.auxiliary_metadata`, as the message of a `google.rpc.Status` with code 0. Its details are
/// the place in the queue, if it is known: a `google.protobuf.Struct` with `ahead_of_group`, `ahead_of_others` and
/// `expected_start_seconds`. While an image is fetched, another `Struct` has `image_bytes` and `image_fetched_bytes`.
pub(crate) fn metadata(name: &OperationName, known: &Known, why: Option<&Why>) -> Any {
    let stage = stage(known);
    let action = known.record().map(|record| record.execution.action);
    let live = |stream| match stage {
        Stage::Executing => LiveName { key: name.key.clone(), stream }.resource(&name.instance),
        Stage::Unknown | Stage::CacheCheck | Stage::Queued | Stage::Completed => String::new(),
    };
    let metadata = ExecuteOperationMetadata {
        stage: stage.into(),
        action_digest: action.as_ref().map(reapi::digest::to_proto),
        stdout_stream_name: live(OutputStream::Stdout),
        stderr_stream_name: live(OutputStream::Stderr),
        partial_execution_metadata: Some(partial(known, why)),
        digest_function: action
            .map(|action| reapi::digest::value(action.function).into())
            .unwrap_or_default(),
    };
    status::any(&metadata, METADATA)
}

fn partial(known: &Known, why: Option<&Why>) -> ExecutedActionMetadata {
    let accepted = known.record().map(|record| record.execution.accepted_at_ms);
    let progress = known.progress();
    let running = progress.filter(|progress| progress.stage == ExecutionStage::Running);
    let uploading = progress.filter(|progress| progress.stage == ExecutionStage::Uploading);
    let begun = known.copies.last().map(|copy| timestamp(copy.begun_at));
    let why = why.filter(|_| known.waits()).map(|why| {
        let details = why.position.map(|position| status::any(&position_struct(position), STRUCT));
        let sentence =
            rpc::Status { code: 0, message: why.text.clone(), details: details.into_iter().collect() };
        status::any(&sentence, STATUS)
    });
    let image = progress.and_then(|progress| progress.image);
    let image = image.map(|image| status::any(&image_struct(image), STRUCT));
    ExecutedActionMetadata {
        worker: progress.map(|progress| progress.executor.to_string()).unwrap_or_default(),
        queued_timestamp: accepted.map(timestamp),
        worker_start_timestamp: begun,
        input_fetch_start_timestamp: begun,
        input_fetch_completed_timestamp: running.map(|progress| timestamp(progress.at_ms)),
        execution_start_timestamp: running.map(|progress| timestamp(progress.at_ms)),
        execution_completed_timestamp: uploading.map(|progress| timestamp(progress.at_ms)),
        output_upload_start_timestamp: uploading.map(|progress| timestamp(progress.at_ms)),
        auxiliary_metadata: why.into_iter().chain(image).collect(),
        ..ExecutedActionMetadata::default()
    }
}

fn image_struct(image: ImageFetch) -> Struct {
    let number = |value: u64| Value { kind: Some(Kind::NumberValue(value as f64)) };
    let fields = [("image_bytes", image.bytes), ("image_fetched_bytes", image.fetched_bytes)];
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), number(value))).collect() }
}

fn position_struct(position: Position) -> Struct {
    let number = |value: f64| Value { kind: Some(Kind::NumberValue(value)) };
    let mut fields = BTreeMap::from([
        ("ahead_of_group".to_owned(), number(position.of_group as f64)),
        ("ahead_of_others".to_owned(), number(position.of_others as f64)),
    ]);
    if let Some(expected) = position.expected {
        fields.insert("expected_start_seconds".to_owned(), number(expected.as_secs_f64().ceil()));
    }
    Struct { fields }
}

/// Converts to the timestamp type of the protocol.
pub(crate) fn timestamp(at: Millis) -> Timestamp {
    let nanos = (at.0 % 1000) * 1_000_000;
    Timestamp {
        seconds: i64::try_from(at.0 / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos).present("the nanoseconds of a second exceed 32 bits"),
    }
}

#[cfg(test)]
mod tests;
