//! What came out.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::{Group, Level};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The statement holds.
    Pass,
    /// It does not.
    Fail,
    /// It cannot be told.
    Skip,
}

impl Verdict {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The number of the statement.
    pub id: u16,
    /// What it says.
    pub title: String,
    /// What it is about.
    pub group: Group,
    /// How binding it is.
    pub level: Level,
    /// How it came out.
    pub result: Verdict,
    /// Why; may be empty for a pass.
    pub reason: String,
    /// How long it took.
    pub millis: u64,
}

impl CheckResult {
    /// The result as one line of text.
    pub fn line(&self) -> String {
        let mut line = format!("{} {:>3} {}", self.result.as_str(), self.id, self.title);
        if !self.reason.is_empty() {
            let _ = write!(line, " ({})", self.reason);
        }
        line
    }
}

/// What a whole run found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The server that was checked.
    pub endpoint: String,
    /// The instance name that was used.
    pub instance: String,
    /// How many statements hold.
    pub pass: usize,
    /// How many do not.
    pub fail: usize,
    /// How many could not be told.
    pub skip: usize,
    /// How long the run took.
    pub millis: u64,
    /// Each check, in the order of the numbers.
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

    /// Whether any statement does not hold.
    pub fn failed(&self) -> bool {
        self.fail > 0
    }

    /// The result of one check.
    pub fn result(&self, id: u16) -> Option<&CheckResult> {
        self.results.iter().find(|result| result.id == id)
    }

    /// The whole report as text: failures and skips with their reasons by group, then the counts.
    pub fn text(&self, with_passes: bool) -> String {
        let mut text = String::new();
        let mut group = None;
        for result in self.results.iter().filter(|result| with_passes || result.result != Verdict::Pass) {
            if group != Some(result.group) {
                group = Some(result.group);
                let _ = writeln!(text, "{}", result.group.title());
            }
            let _ = writeln!(text, "  {}", result.line());
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    /// The counts in one line.
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
