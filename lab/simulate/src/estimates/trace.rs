//! Recorded work, as `forebay sim record` writes it: one JSON object per line.

use std::collections::BTreeMap;

use policy::estimate::Keys;
use serde::Deserialize;

use super::EstimateItem;
use crate::queues::{InvalidTrace, Reading, numbered_lines, read_trace};

/// Time limit of work whose record has none: one hour.
const LIMIT_MS: u64 = 3_600_000;
/// Name of the requirement that becomes part of the keys.
const ENVIRONMENT: &str = "env";
const HARDWARE: &str = "hwgroup";
/// Outcomes of work that was neither stopped nor lost.
const OWN_ENDS: [&str; 2] = ["succeeded", "failed"];

/// Fields of a line that are used for estimates only.
#[derive(Debug, Deserialize)]
struct EstimateFields {
    /// Quota group: the submitter where none is named.
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
    /// Outcome of the work; absent means that it succeeded.
    #[serde(default)]
    outcome: Option<String>,
    /// Estimate made when the work was recorded, if any.
    #[serde(default)]
    estimate_ms: Option<f64>,
}

/// Recorded work, ready to be estimated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EstimateTrace {
    /// Work that ran to its own end: as in a farm, no other work is learned from or judged.
    pub items: Vec<EstimateItem>,
    /// Number of items left out: cancelled, lost or timed out.
    pub left_out: usize,
}

impl EstimateFields {
    /// Returns whether the run time of this work says how long similar work runs.
    fn ran_to_own_end(&self) -> bool {
        self.outcome.as_deref().is_none_or(|outcome| OWN_ENDS.contains(&outcome))
    }
}

/// Reads recorded work: a stream as [`read_trace`] reads it, with the additional fields of estimate keys: `submitter`
/// (or else `group`), `labels`, `command` and `limit_ms` (one hour if absent). Work with an `outcome` other than
/// `succeeded` or `failed` is left out.
pub fn read_estimate_items(text: &str) -> Result<EstimateTrace, InvalidTrace> {
    let stream = read_trace("replay", text, 0, Reading::Text)?;
    let item = |((line, text), job): ((usize, &str), &replay::Job)| {
        let fields: EstimateFields = serde_json::from_str(text)
            .map_err(|error| InvalidTrace::Line { line, problem: error.to_string() })?;
        if !fields.ran_to_own_end() {
            return Ok(None);
        }
        let requirements = stream.requirements.get(job.requirements as usize);
        let (Some(requirements), Some(kind)) = (requirements, stream.kinds.get(job.kind as usize)) else {
            unreachable!("the requirements or the kind of line {line} were not numbered");
        };
        let asks = |name: &str| requirements.get(name).map_or("", String::as_str);
        let submitter = fields.submitter.or(fields.group).unwrap_or_default();
        let environment = format!("{kind} {}", asks(ENVIRONMENT));
        let keys = Keys::of(&environment, asks(HARDWARE), &fields.labels, &submitter);
        Ok(Some(EstimateItem {
            arrival_ms: job.arrival_ms,
            duration_ms: job.duration_ms,
            limit_ms: fields.limit_ms.unwrap_or(LIMIT_MS),
            keys: fields.command.iter().fold(keys, |keys, command| keys.with_command([command.as_str()])),
            median_ms: None,
            recorded_ms: fields.estimate_ms.map(|_| job.estimate_ms),
        }))
    };
    let read: Vec<Option<EstimateItem>> =
        numbered_lines(text).zip(&stream.jobs).map(item).collect::<Result<_, _>>()?;
    let all = read.len();
    let items: Vec<EstimateItem> = read.into_iter().flatten().collect();
    Ok(EstimateTrace { left_out: all - items.len(), items })
}
