//! The rows that a build's record gives.

use model::{Build, BuildRecord, Outcome, Phase, ReasonCode, hex};
use sha2::{Digest as _, Sha256};

use crate::{
    plain::{INDEXED_MAX, clean, whole},
    rows::{BuildRow, InvocationRow, OutputRow, PropertyRow, RecordRow, TextRow},
};

/// Records from this size in bytes on are compressed: small ones would gain little.
const PACK_MIN: usize = 4 << 10;
const PACK_LEVEL: i32 = 1;
/// Maximum length in characters of the command that lists of the database show.
const COMMAND_MAX: usize = 200;
/// Maximum length in characters of the text that searches look at.
const TEXT_MAX: usize = 4000;
/// How an attempt ended after which the build waits again, in place of an outcome.
pub(crate) const REQUEUED: &str = "requeued";

/// All rows of one build's last state.
pub(crate) struct BuildRows {
    pub(crate) build: BuildRow,
    pub(crate) record: RecordRow,
    pub(crate) text: TextRow,
    pub(crate) properties: Vec<PropertyRow>,
    pub(crate) outputs: Vec<OutputRow>,
}

/// The rows of a build in the state of `record`, which is stored as `payload` at `position`.
pub(crate) fn rows(record: &BuildRecord, payload: &[u8], place: i64, position: i64) -> BuildRows {
    let build = &record.build;
    let labels = build.labels.iter().map(|(name, value)| property("label", name, value, place));
    let required =
        build.requirements.0.iter().map(|(name, value)| property("requirement", name, value, place));
    let outputs = record.result().map(|result| result.outputs.as_slice()).unwrap_or_default();
    BuildRows {
        build: build_row(record, place, position),
        record: record_row(payload, place, position),
        text: TextRow { place, search_text: search_text(build) },
        properties: labels.chain(required).collect(),
        outputs: outputs.iter().zip(0..).map(|(file, number)| output(file, number, place)).collect(),
    }
}

fn build_row(record: &BuildRecord, place: i64, position: i64) -> BuildRow {
    let (build, result) = (&record.build, record.result());
    let line = build.command.join(" ");
    BuildRow {
        place,
        build_group: build.group.to_string(),
        build_id: build.id.to_string(),
        position,
        state: record.state().as_str(),
        outcome: result.map(|result| result.outcome.as_str()),
        reason: result.and_then(|result| result.reason.as_ref()).map(|reason| reason_name(reason.code)),
        priority: build.priority.as_str(),
        submitter: build.submitter.as_ref().map(|name| clean(name, INDEXED_MAX)),
        command: clean(&line, COMMAND_MAX),
        command_hash: command_hash(&line),
        attempt: i64::from(record.attempt.0),
        exit_code: result.and_then(|result| result.exit_code).map(i64::from),
        submitted_ms: whole(build.submitted_at_ms.0),
        enqueued_ms: whole(record.queue.enqueued_at_ms.0),
        started_ms: record.invocation().map(|run| whole(run.started_at_ms.0)),
        finished_ms: result.map(|_| whole(record.at_ms.0)),
        worker: record.invocation().map(|run| run.worker.to_string()),
        trace_id: build.traceparent.as_deref().and_then(trace_id).map(ToOwned::to_owned),
        build_bytes: serde_json::to_vec(build).ok().map(|text| whole(text.len() as u64)),
        target_count: whole(build.target_count()),
    }
}

fn record_row(payload: &[u8], place: i64, position: i64) -> RecordRow {
    let text = String::from_utf8_lossy(payload);
    let packed =
        (payload.len() >= PACK_MIN).then(|| zstd::bulk::compress(payload, PACK_LEVEL).ok()).flatten();
    match packed {
        Some(packed) => RecordRow { place, position, record: None, packed: Some(hex(&packed)) },
        None => RecordRow { place, position, record: Some(text.into_owned()), packed: None },
    }
}

fn property(kind: &'static str, name: &str, value: &str, place: i64) -> PropertyRow {
    PropertyRow { kind, name: clean(name, INDEXED_MAX), value: clean(value, INDEXED_MAX), place }
}

fn output(file: &model::OutputFile, number: i64, place: i64) -> OutputRow {
    let (path, digest) = (clean(&file.path, usize::MAX), file.digest.to_string());
    OutputRow { place, number, path, digest, size_bytes: whole(file.size_bytes) }
}

/// What a search looks at: id, group, submitter, command, labels. In lower case, as the text that is looked for.
fn search_text(build: &Build) -> String {
    let labels = build.labels.iter().flat_map(|(name, value)| [name.as_str(), "=", value.as_str(), "\n"]);
    let submitter = build.submitter.as_deref().unwrap_or_default();
    let command = build.command.iter().flat_map(|word| [word.as_str(), " "]);
    let mut text = format!("{}\n{}\n{submitter}\n", build.id, build.group);
    text.extend(command.chain(["\n"]).chain(labels));
    clean(&text, TEXT_MAX).to_lowercase()
}

/// Stands for a whole command line in an index.
pub(crate) fn command_hash(line: &str) -> i64 {
    let hash = Sha256::digest(line.as_bytes());
    i64::from_be_bytes(hash.first_chunk().copied().unwrap_or_default())
}

fn trace_id(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1)
}

/// The name of a reason in messages.
pub(crate) fn reason_name(code: ReasonCode) -> String {
    match serde_json::to_value(code) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(_) | Err(_) => format!("{code:?}"),
    }
}

/// What a record says of attempts of its build: of the current one, and of the one after which it waits again.
pub(crate) fn invocations(record: &BuildRecord, place: i64) -> Vec<InvocationRow> {
    let mut found = Vec::new();
    if let (Phase::Enqueued, Some(retry)) = (&record.phase, &record.queue.retry) {
        found.push(InvocationRow {
            invocation_id: retry.invocation.map(|id| id.to_string()),
            worker: Some(retry.worker.to_string()),
            ended_ms: Some(whole(record.at_ms.0)),
            outcome: Some(REQUEUED),
            reason: Some(reason_name(retry.reason.code)),
            message: Some(clean(&retry.reason.message, 1000)),
            ..InvocationRow::new(place, i64::from(record.attempt.0) - 1)
        });
    }
    let Some(run) = record.invocation() else { return found };
    let result = record.result();
    let overflow = result.and_then(|result| result.log.overflow.as_ref());
    let reason = result.and_then(|result| result.reason.as_ref());
    found.push(InvocationRow {
        invocation_id: run.id.map(|id| id.to_string()),
        worker: Some(run.worker.to_string()),
        workspace: Some(i64::from(run.workspace)),
        workspace_kind: run.workspace_kind.map(model::WorkspaceKind::as_str),
        fencing: Some(whole(run.lease_revision)),
        enqueued_ms: Some(whole(record.queue.enqueued_at_ms.0)),
        started_ms: Some(whole(run.started_at_ms.0)),
        ended_ms: result.map(|_| whole(record.at_ms.0)),
        outcome: result.map(|result| result.outcome).map(Outcome::as_str),
        reason: reason.map(|reason| reason_name(reason.code)),
        message: reason.map(|reason| clean(&reason.message, 1000)),
        exit_code: result.and_then(|result| result.exit_code).map(i64::from),
        overflow_digest: overflow.map(|file| file.digest.to_string()),
        overflow_bytes: overflow.map(|file| whole(file.size_bytes)),
        ..InvocationRow::new(place, i64::from(record.attempt.0))
    });
    found
}

impl InvocationRow {
    fn new(place: i64, attempt: i64) -> Self {
        Self {
            place,
            attempt,
            invocation_id: None,
            worker: None,
            workspace: None,
            workspace_kind: None,
            fencing: None,
            enqueued_ms: None,
            started_ms: None,
            ended_ms: None,
            outcome: None,
            reason: None,
            message: None,
            exit_code: None,
            overflow_digest: None,
            overflow_bytes: None,
        }
    }

    /// Adds what a later message says of the attempt.
    pub(crate) fn merge(&mut self, later: &Self) {
        fn set<T: Clone>(known: &mut Option<T>, later: Option<&T>) {
            if let Some(later) = later {
                *known = Some(later.clone());
            }
        }
        set(&mut self.invocation_id, later.invocation_id.as_ref());
        set(&mut self.worker, later.worker.as_ref());
        set(&mut self.workspace, later.workspace.as_ref());
        set(&mut self.workspace_kind, later.workspace_kind.as_ref());
        set(&mut self.fencing, later.fencing.as_ref());
        set(&mut self.enqueued_ms, later.enqueued_ms.as_ref());
        set(&mut self.started_ms, later.started_ms.as_ref());
        set(&mut self.ended_ms, later.ended_ms.as_ref());
        set(&mut self.outcome, later.outcome.as_ref());
        set(&mut self.reason, later.reason.as_ref());
        set(&mut self.message, later.message.as_ref());
        set(&mut self.exit_code, later.exit_code.as_ref());
        set(&mut self.overflow_digest, later.overflow_digest.as_ref());
        set(&mut self.overflow_bytes, later.overflow_bytes.as_ref());
    }
}
