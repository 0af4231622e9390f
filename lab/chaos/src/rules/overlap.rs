//! One owner at a time (invariant 4): real times, as the builds' own processes wrote them.

use std::collections::BTreeMap;

use model::{BuildKey, BuildRecord, Outcome, State};

use crate::{Event, Finding, History, Rule, Run, history::clock};

/// Duration of a lease plus the time between SIGTERM and SIGKILL.
const CANCEL_US: u64 = 2_500_000;

/// Checks that no two runs of a build overlap, no attempt runs twice, and no process survives the build's next event.
pub(super) fn check(history: &History) -> Vec<Finding> {
    let by_build = history.by_build();
    let mut runs: BTreeMap<&BuildKey, Vec<&Run>> = BTreeMap::new();
    for run in &history.runs {
        runs.entry(&run.key).or_default().push(run);
    }
    let mut findings = Vec::new();
    for (key, mut runs) in runs {
        runs.sort_by_key(|run| (run.attempt, run.start_us));
        for pair in runs.windows(2) {
            if let [earlier, later] = pair
                && (later.start_us <= earlier.last_us || later.attempt == earlier.attempt)
            {
                let text = format!(
                    "attempt {} ran until {} or longer, attempt {} started at {}",
                    earlier.attempt,
                    clock(earlier.last_us),
                    later.attempt,
                    clock(later.start_us)
                );
                findings.push(Finding::new(Rule::Overlap, key, text));
            }
        }
        let events = by_build.get(key).map(Vec::as_slice).unwrap_or_default();
        findings.extend(runs.into_iter().filter_map(|run| outlived(run, events)));
    }
    findings
}

/// Returns a finding if the processes of a run wrote after the build had been requeued or had ended.
fn outlived(run: &Run, events: &[&Event]) -> Option<Finding> {
    let mut changes =
        events.iter().filter_map(|event| event.record().map(|record| (event.stored_us, record)));
    let (stored_us, moved_on) = changes.find(|(_, record)| match record.state() {
        State::Enqueued => record.attempt > run.attempt,
        State::InProgress => false,
        State::Finished => record.attempt >= run.attempt,
    })?;
    // Not the record's own time: a worker knows the farm's clock only to within a few milliseconds.
    let until = stored_us + allowance(moved_on);
    (run.last_us > until).then(|| {
        let text = format!(
            "attempt {} still ran at {} although the build was {} at {}",
            run.attempt,
            clock(run.last_us),
            moved_on.state().as_str(),
            clock(until)
        );
        Finding::new(Rule::Overlap, &run.key, text)
    })
}

/// Extra time for a cancelled build, whose result is stored before its worker hears of it: by a push, or at the next
/// renewal of the lease.
fn allowance(record: &BuildRecord) -> u64 {
    let cancelled = record.result().is_some_and(|result| result.outcome == Outcome::Cancelled);
    if cancelled { CANCEL_US } else { 0 }
}
