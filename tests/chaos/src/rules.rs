//! The promises, a pure function each.

mod order;
mod outcome;
mod overlap;
mod priority;
mod terminal;

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use model::State;

use crate::{Finding, History, Rule};

/// What the checker says of a history.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// What is broken.
    pub findings: Vec<Finding>,
    /// Inversions that a kill excuses.
    pub excused: Vec<Finding>,
    /// What was counted.
    pub counts: Counts,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Builds in the stream.
    pub builds: usize,
    /// Runs that were started.
    pub starts: usize,
    /// Starts while a less urgent build of the same group waited: there, order means something.
    pub contested: usize,
    /// Starts before a more urgent build that waited, soon after a kill.
    pub excused: usize,
    /// The same without a kill that would excuse it.
    pub unexcused: usize,
    /// Starts before an older build of the same priority that waited.
    pub out_of_turn: usize,
}

/// Holds a history against every rule.
pub fn check(history: &History) -> Verdict {
    let (mut findings, excused, mut counts) = priority::check(history);
    findings.extend(terminal::check(history));
    findings.extend(overlap::check(history));
    findings.extend(order::check(history));
    findings.extend(outcome::check(history));
    findings.sort_by_key(|finding| finding.rule);
    counts.builds = history.by_build().len();
    counts.starts = history.events.iter().filter(|event| event.is(State::InProgress)).count();
    Verdict { findings, excused, counts }
}

impl Verdict {
    /// The rules that are broken.
    pub fn broken(&self) -> BTreeSet<Rule> {
        self.findings.iter().map(|finding| finding.rule).collect()
    }

    /// The first findings of each rule, each with everything that is known of its builds.
    pub fn report(&self, history: &History) -> String {
        let mut text = String::new();
        for rule in Rule::ALL {
            let of_rule: Vec<&Finding> =
                self.findings.iter().filter(|finding| finding.rule == rule).collect();
            if !of_rule.is_empty() {
                let _ = writeln!(text, "\n{} findings of rule {rule:?}", of_rule.len());
            }
            for finding in of_rule.iter().take(5) {
                let _ = writeln!(text, "  {finding}");
                for key in &finding.keys {
                    let _ = write!(text, "  {}", history.story(key));
                }
            }
        }
        if !text.is_empty() {
            let _ = write!(text, "\nwhat was done to the farm\n{}", history.kill_list());
        }
        text
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} builds, {} starts, {} of them contested; inversions: {} excused, {} unexcused; {} out of turn in their priority",
            self.builds, self.starts, self.contested, self.excused, self.unexcused, self.out_of_turn
        )
    }
}
