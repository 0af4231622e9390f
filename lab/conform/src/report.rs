//! Results of a conformance run.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::check::{Group, Level};

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The statement holds for the server.
    Pass,
    /// The statement does not hold.
    Fail,
    /// The check could not decide.
    Skip,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Number of the statement.
    pub id: u16,
    /// Text of the statement.
    pub title: String,
    pub group: Group,
    pub level: Level,
    pub result: Verdict,
    /// Reason for the verdict; may be empty for a pass.
    pub reason: String,
    /// Duration of the check in milliseconds.
    pub millis: u64,
}

impl CheckResult {
    /// Formats the result as one line of text.
    pub fn line(&self) -> String {
        let mut line = format!("{} {:>3} {}", self.result.as_str(), self.id, self.title);
        if !self.reason.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(line, " ({})", self.reason);
        }
        line
    }
}

/// Result of a whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// URL of the server under test.
    pub endpoint: String,
    /// Instance name that the checks used.
    pub instance: String,
    /// Number of statements that hold.
    pub pass: usize,
    /// Number of statements that do not hold.
    pub fail: usize,
    /// Number of statements that could not be decided.
    pub skip: usize,
    /// Duration of the run in milliseconds.
    pub millis: u64,
    /// Result of each check, ordered by number.
    pub results: Vec<CheckResult>,
}

impl Report {
    pub(crate) fn new(endpoint: &str, instance: &str, millis: u64, mut results: Vec<CheckResult>) -> Self {
        results.sort_by_key(|result| result.id);
        let count = |verdict| results.iter().filter(|result| result.result == verdict).count();
        Self {
            endpoint: endpoint.to_owned(),
            instance: instance.to_owned(),
            pass: count(Verdict::Pass),
            fail: count(Verdict::Fail),
            skip: count(Verdict::Skip),
            millis,
            results,
        }
    }

    /// Returns whether any statement does not hold.
    pub fn failed(&self) -> bool {
        self.fail > 0
    }

    /// Returns the result of the check with this number.
    pub fn result(&self, id: u16) -> Option<&CheckResult> {
        self.results.iter().find(|result| result.id == id)
    }

    /// Formats the report as text: failures and skips with their reasons by group, then the counts.
    pub fn text(&self, with_passes: bool) -> String {
        let mut text = String::new();
        let mut group = None;
        for result in self.results.iter().filter(|result| with_passes || result.result != Verdict::Pass) {
            if group != Some(result.group) {
                group = Some(result.group);
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{}", result.group.title());
            }
            let _ = writeln!(text, "  {}", result.line());
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    /// Formats the counts as one line.
    pub fn summary(&self) -> String {
        let seconds = std::time::Duration::from_millis(self.millis).as_secs_f64();
        format!("{} pass, {} fail, {} skip in {seconds:.1} s", self.pass, self.fail, self.skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(id: u16, result: Verdict) -> CheckResult {
        CheckResult {
            id,
            title: "a statement".into(),
            group: Group::B,
            level: Level::Must,
            result,
            reason: if result == Verdict::Pass { String::new() } else { "why".into() },
            millis: 3,
        }
    }

    #[test]
    fn a_report_counts_sorts_and_reads_back() {
        let results = vec![result(30, Verdict::Fail), result(22, Verdict::Pass), result(40, Verdict::Skip)];
        let report = Report::new("grpc://here", "main", 2500, results);
        assert_eq!((report.pass, report.fail, report.skip), (1, 1, 1));
        assert!(report.failed());
        assert_eq!(report.results[0].id, 22);
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#""group":"B","level":"must","result":"fail","reason":"why""#), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        let text = report.text(false);
        assert_eq!(
            text,
            "ByteStream\n  fail  30 a statement (why)\n  skip  40 a statement (why)\n1 pass, 1 fail, 1 skip in 2.5 s\n"
        );
    }
}
