//! The results of tests by label and call. Pure.

use std::collections::BTreeMap;

use model::{TestGridResult, TestGridRow};

/// An attempt of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Number of the call.
    pub(crate) call: usize,
    pub(crate) label: String,
    /// Run, shard and configuration.
    pub(crate) part: (i64, i64, String),
    pub(crate) status: String,
    pub(crate) cached: bool,
    pub(crate) duration_ms: Option<u64>,
}

const PASSED: &str = "passed";
const FLAKY: &str = "flaky";

/// A row for each test, by label. The attempts of one part of a test in one call are in order.
pub(crate) fn rows(attempts: &[Attempt]) -> Vec<TestGridRow> {
    let mut tests: BTreeMap<&str, BTreeMap<usize, Vec<&Attempt>>> = BTreeMap::new();
    for attempt in attempts {
        tests.entry(&attempt.label).or_default().entry(attempt.call).or_default().push(attempt);
    }
    let row = |(label, calls): (&str, BTreeMap<usize, Vec<&Attempt>>)| TestGridRow {
        label: label.to_owned(),
        results: calls.iter().map(|(call, attempts)| result(*call, attempts)).collect(),
    };
    tests.into_iter().map(row).collect()
}

fn result(call: usize, attempts: &[&Attempt]) -> TestGridResult {
    let mut parts: BTreeMap<&(i64, i64, String), Vec<&str>> = BTreeMap::new();
    for attempt in attempts {
        parts.entry(&attempt.part).or_default().push(&attempt.status);
    }
    let ends: Vec<&str> = parts.values().filter_map(|statuses| end(statuses)).collect();
    let failed = ends.iter().find(|status| !matches!(**status, PASSED | FLAKY));
    let status = failed.or_else(|| ends.iter().find(|status| **status == FLAKY)).unwrap_or(&PASSED);
    TestGridResult {
        call,
        status: (*status).to_owned(),
        cached: attempts.iter().all(|attempt| attempt.cached),
        duration_ms: attempts.iter().filter_map(|attempt| attempt.duration_ms).max(),
    }
}

/// How a part of a test ended, by the statuses of its attempts.
fn end<'a>(statuses: &[&'a str]) -> Option<&'a str> {
    let (last, earlier) = statuses.split_last()?;
    let is_late = *last == PASSED && earlier.iter().any(|status| *status != PASSED);
    Some(if is_late { FLAKY } else { last })
}

#[cfg(test)]
mod tests {
    use super::{Attempt, rows};

    fn attempt(call: usize, label: &str, shard: i64, status: &str) -> Attempt {
        let part = (1, shard, String::new());
        let (label, status) = (label.to_owned(), status.to_owned());
        Attempt { call, label, part, status, cached: false, duration_ms: u64::try_from(shard).ok() }
    }

    #[test]
    fn a_test_fails_with_any_part_and_is_flaky_if_a_part_passed_late() {
        let attempts = [
            attempt(0, "//:a", 1, "passed"),
            attempt(0, "//:a", 2, "failed"),
            attempt(0, "//:a", 2, "passed"),
            attempt(1, "//:a", 1, "passed"),
            attempt(1, "//:a", 2, "timeout"),
            attempt(1, "//:b", 1, "passed"),
        ];
        let found = rows(&attempts);
        let results = |row: usize| -> Vec<(usize, &str, Option<u64>)> {
            let results = &found[row].results;
            results.iter().map(|it| (it.call, it.status.as_str(), it.duration_ms)).collect()
        };
        assert_eq!(found.iter().map(|row| row.label.as_str()).collect::<Vec<_>>(), ["//:a", "//:b"]);
        assert_eq!(results(0), [(0, "flaky", Some(2)), (1, "timeout", Some(2))]);
        assert_eq!(results(1), [(1, "passed", Some(1))]);
    }
}
