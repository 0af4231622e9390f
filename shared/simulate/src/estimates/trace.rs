//! Recorded work, as `forebay sim record` writes it: one JSON object a line.

use std::collections::BTreeMap;

use policy::estimate::Keys;
use serde::Deserialize;

use super::EstimateItem;
use crate::queues::{InvalidTrace, Reading, read_trace};

/// What work may take where the record does not say: an hour.
const LIMIT_MS: u64 = 3_600_000;
/// Of the requirements, those that the keys are made of.
const ENVIRONMENT: &str = "env";
const HARDWARE: &str = "hwgroup";

/// What a line says beyond what a queue needs to know.
#[derive(Debug, Deserialize)]
struct More {
    /// Its quota group: the submitter where none is named.
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    submitter: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    limit_ms: Option<u64>,
    /// Whether it was estimated when it was recorded.
    #[serde(default)]
    estimate_ms: Option<f64>,
}

/// Reads recorded work: a stream as [`read_trace`] reads it, with what the keys of an estimate are made of besides:
/// `submitter` (or else `group`), `labels`, `command` and `limit_ms`, an hour where it is absent.
pub fn read_estimate_items(text: &str) -> Result<Vec<EstimateItem>, InvalidTrace> {
    let stream = read_trace("replay", text, 0, Reading::Text)?;
    let lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
    let nothing = BTreeMap::new();
    let item = |((line, text), job): ((usize, &str), &crate::queues::Job)| {
        let more: More = serde_json::from_str(text)
            .map_err(|error| InvalidTrace::Line { line, problem: error.to_string() })?;
        let requirements = stream.requirements.get(job.requirements as usize).unwrap_or(&nothing);
        let asks = |name: &str| requirements.get(name).map_or("", String::as_str);
        let kind = stream.kinds.get(job.kind as usize).map_or("", String::as_str);
        let submitter = more.submitter.or(more.group).unwrap_or_default();
        let environment = format!("{kind} {}", asks(ENVIRONMENT));
        let keys = Keys::of(&environment, asks(HARDWARE), &more.labels, &submitter);
        Ok(EstimateItem {
            arrival_ms: job.arrival_ms,
            duration_ms: job.duration_ms,
            limit_ms: more.limit_ms.unwrap_or(LIMIT_MS),
            keys: more.command.iter().fold(keys, |keys, command| keys.with_command([command.as_str()])),
            median_ms: None,
            recorded_ms: more.estimate_ms.map(|_| job.estimate_ms),
        })
    };
    lines.zip(&stream.jobs).map(item).collect()
}
