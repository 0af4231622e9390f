//! Every acknowledged build ends exactly once, and no event follows its end (invariant 1).

use model::State;

use crate::{Finding, History, Rule};

/// Checks that every acknowledged or queued build ends exactly once, and that no event follows.
pub(super) fn check(history: &History) -> Vec<Finding> {
    let by_build = history.by_build();
    let mut findings = Vec::new();
    let mut found = |key, text: String| findings.push(Finding::new(Rule::Terminal, key, text));
    for key in history.acknowledged.iter().filter(|key| !by_build.contains_key(key)) {
        found(key, "was acknowledged but has no event".to_owned());
    }
    for (key, events) in by_build {
        let ends: Vec<_> = events.iter().filter(|event| event.is(State::Finished)).collect();
        match ends.as_slice() {
            [] => found(key, "has no FINISHED".to_owned()),
            [end] => {
                let after = events.iter().find(|event| event.sequence > end.sequence);
                if let Some(event) = after {
                    let (end, at) = (end.sequence, event.sequence);
                    found(key, format!("FINISHED at {end} but has a later event at {at}"));
                }
            }
            several => {
                let at: Vec<String> = several.iter().map(|event| event.sequence.to_string()).collect();
                found(key, format!("FINISHED {} times, at {}", at.len(), at.join(" and ")));
            }
        }
    }
    findings
}
