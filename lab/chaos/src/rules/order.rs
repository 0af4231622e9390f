//! Events of a build arrive in the specified order (invariant 6).

use std::collections::BTreeSet;

use model::{Attempt, BuildKey, Sequence, State};

use crate::{Event, Finding, History, Rule, What};

/// Checks for ENQUEUED, STARTED, that run's console and tool events, then FINISHED or ENQUEUED with the next attempt.
pub(super) fn check(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pair in history.events.windows(2) {
        if let [before, after] = pair
            && after.sequence <= before.sequence
        {
            let text = format!("position {} comes after {}", after.sequence, before.sequence);
            findings.push(Finding::new(Rule::Order, &after.key, text));
        }
    }
    let mut started = BTreeSet::new();
    for (key, events) in history.by_build() {
        let mut walk = EventWalk { key, first: None, last: None, bytes: 0, findings: &mut findings };
        for event in events {
            walk.step(event);
            if event.is(State::InProgress)
                && let Some(record) = event.record()
            {
                started.insert((key, record.attempt));
            }
        }
    }
    for run in history.runs.iter().filter(|run| !started.contains(&(&run.key, run.attempt))) {
        let text = format!("attempt {} ran without INVOCATION_STARTED", run.attempt);
        findings.push(Finding::new(Rule::Order, &run.key, text));
    }
    findings
}

/// Walks over the events of one build in order.
struct EventWalk<'a> {
    key: &'a BuildKey,
    first: Option<Sequence>,
    last: Option<(State, Attempt, Sequence)>,
    /// Console bytes of the current run.
    bytes: u64,
    findings: &'a mut Vec<Finding>,
}

impl EventWalk<'_> {
    fn found(&mut self, text: String) {
        self.findings.push(Finding::new(Rule::Order, self.key, text));
    }

    fn step(&mut self, event: &Event) {
        // Events after an end break another rule.
        if matches!(self.last, Some((State::Finished, ..))) {
            return;
        }
        let at = event.sequence;
        match &event.what {
            What::Lifecycle(record) => {
                let (state, attempt) = (record.state(), record.attempt);
                if !self.may_follow(state, attempt) {
                    let before = self.last_text();
                    self.found(format!("{} of attempt {attempt} at {at} follows {before}", state.as_str()));
                }
                let first = *self.first.get_or_insert(at);
                // A refused build never waited.
                let wanted = (first != at).then_some(first);
                if record.queue.first_sequence != wanted {
                    let named = record.queue.first_sequence;
                    self.found(format!("at {at} its queue position is {named:?}, expected {wanted:?}"));
                }
                if let Some(result) = record.result()
                    && result.exit_code.is_some()
                    && result.log.bus_bytes != self.bytes
                {
                    let (reported, seen) = (result.log.bus_bytes, self.bytes);
                    self.found(format!(
                        "its result reports {reported} bytes of console output, but {seen} are stored"
                    ));
                }
                self.last = Some((state, attempt, at));
                self.bytes = 0;
            }
            What::Console { attempt, guard, bytes } => {
                self.bytes += bytes;
                self.check_within_run("console", at, *attempt, *guard);
            }
            What::Tool { attempt, guard } => self.check_within_run("tool event", at, *attempt, *guard),
        }
    }

    fn may_follow(&self, state: State, attempt: Attempt) -> bool {
        match (self.last, state) {
            (None, State::Enqueued) => attempt == Attempt::FIRST,
            // The build was refused, and never queued.
            (None, State::Finished) => true,
            (Some((State::Enqueued, last, _)), State::InProgress | State::Finished)
            | (Some((State::InProgress, last, _)), State::Finished) => attempt == last,
            (Some((State::InProgress, last, _)), State::Enqueued) => attempt == last.next(),
            (None | Some((State::InProgress, ..)), State::InProgress)
            | (Some((State::Enqueued, ..)), State::Enqueued)
            | (Some((State::Finished, ..)), _) => false,
        }
    }

    fn check_within_run(&mut self, what: &str, at: Sequence, attempt: Attempt, guard: Sequence) {
        if self.last != Some((State::InProgress, attempt, guard)) {
            let before = self.last_text();
            self.found(format!("{what} of attempt {attempt} guarded by {guard} at {at} follows {before}"));
        }
    }

    fn last_text(&self) -> String {
        match self.last {
            None => "nothing".to_owned(),
            Some((state, attempt, at)) => format!("{} of attempt {attempt} at {at}", state.as_str()),
        }
    }
}
