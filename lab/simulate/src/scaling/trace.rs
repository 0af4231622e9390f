//! Recorded work for a pool, as `forebay sim record` writes it: one JSON object per line.

use replay::Job;

use super::ScalingItem;
use crate::queues::{InvalidTrace, Reading, numbered_lines, read_trace};

/// Longest run time of an item: 30 days. During all that time the planner runs every few seconds.
const LONGEST_MS: u64 = 30 * 24 * 3_600_000;

/// Reads recorded work: a stream as [`read_trace`] reads it. Items that run longer than 30 days are refused.
pub fn read_scaling_items(text: &str) -> Result<Vec<ScalingItem>, InvalidTrace> {
    let stream = read_trace("replay", text, 1, Reading::Text)?;
    numbered_lines(text).zip(&stream.jobs).map(|((line, _), job)| item(line, job)).collect()
}

fn item(line: usize, job: &Job) -> Result<ScalingItem, InvalidTrace> {
    let Job { arrival_ms, duration_ms, estimate_ms, .. } = *job;
    if duration_ms > LONGEST_MS {
        let problem = format!("duration_ms is {duration_ms}, but must be at most {LONGEST_MS} (30 days)");
        return Err(InvalidTrace::Line { line, problem });
    }
    Ok(ScalingItem { arrival_ms, duration_ms, estimate_ms })
}
