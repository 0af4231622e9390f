//! Build outcomes match their commands, and builds are lost only when their attempts are used up.

use std::collections::BTreeSet;

use model::{Attempt, BuildRecord, Outcome};

use crate::{Finding, History, Rule};

/// Checks that the outcome is the command's, attempts stay within their limit, and lost builds have used up theirs.
pub(super) fn check(history: &History) -> Vec<Finding> {
    let ended: BTreeSet<_> =
        history.runs.iter().filter(|run| run.end_us.is_some()).map(|run| (&run.key, run.attempt)).collect();
    let mut findings = Vec::new();
    for event in &history.events {
        let Some(record) = event.record() else { continue };
        let mut found = |text: String| findings.push(Finding::new(Rule::Outcome, &event.key, text));
        let Attempt(limit) = record.build.max_attempts;
        if record.attempt > record.build.max_attempts {
            found(format!("attempt {} of {limit}", record.attempt));
        }
        let code = history.exit_codes.get(&event.key).copied();
        let cancelled = history.cancelled.get(&event.key).copied();
        if let Some(wrong) = unexpected(record, code, cancelled) {
            found(wrong);
        }
        let told = record.result().is_some_and(|result| result.exit_code.is_some());
        if told && code.is_some() && !ended.contains(&(&event.key, record.attempt)) {
            found(format!("attempt {} has an exit code, but its command did not finish", record.attempt));
        }
    }
    findings
}

fn unexpected(record: &BuildRecord, code: Option<i32>, cancelled: Option<bool>) -> Option<String> {
    let result = record.result()?;
    if cancelled == Some(true) && result.outcome != Outcome::Cancelled {
        return Some(format!("is {} although its cancellation was confirmed", result.outcome.as_str()));
    }
    let Some(code) = code else { return Some("a build that was never submitted has a result".to_owned()) };
    let right = match result.outcome {
        Outcome::Succeeded => code == 0 && result.exit_code == Some(0),
        Outcome::Failed => code != 0 && result.exit_code == Some(code),
        Outcome::Lost => record.attempt >= record.build.max_attempts,
        Outcome::Cancelled => cancelled.is_some(),
        Outcome::TimedOut | Outcome::Expired | Outcome::Rejected => false,
    };
    (!right).then(|| {
        let (outcome, attempt, limit) = (result.outcome.as_str(), record.attempt, record.build.max_attempts);
        let told = result.exit_code;
        format!("is {outcome} with exit code {told:?} in attempt {attempt} of {limit}; its command exits with {code}")
    })
}
