//! The promises of the farm, one pure function each.

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

/// Result of checking a history.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Broken promises that no fault excuses.
    pub findings: Vec<Finding>,
    /// Inversions that a kill excuses.
    pub excused: Vec<Finding>,
    /// Statistics of the history.
    pub counts: Counts,
}

/// Statistics of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of builds in the stream.
    pub builds: usize,
    /// Number of runs that were started.
    pub starts: usize,
    /// Starts while a less urgent build of the same group waited: only there does the order matter.
    pub contested: usize,
    /// Starts before a more urgent waiting build, soon after a kill.
    pub excused: usize,
    /// Starts before a more urgent waiting build, without a kill to excuse it.
    pub unexcused: usize,
    /// Starts before an older waiting build of the same priority.
    pub out_of_turn: usize,
}

/// Checks a history against every rule.
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
    /// Returns the rules that are broken.
    pub fn broken(&self) -> BTreeSet<Rule> {
        self.findings.iter().map(|finding| finding.rule).collect()
    }

    /// Describes the first findings of each rule, each with all records of its builds.
    pub fn report(&self, history: &History) -> String {
        let mut text = String::new();
        for rule in Rule::ALL {
            let of_rule: Vec<&Finding> =
                self.findings.iter().filter(|finding| finding.rule == rule).collect();
            if !of_rule.is_empty() {
                // Writing to a String cannot fail.
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
            let _ = write!(text, "\ninjected faults\n{}", history.kill_list());
        }
        text
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} builds, {} starts, {} of them contested; inversions: {} excused, {} unexcused; {} out of order in \
             their priority",
            self.builds, self.starts, self.contested, self.excused, self.unexcused, self.out_of_turn
        )
    }
}
