//! Figures of past runs. Pure.

use std::collections::BTreeMap;

use model::{HistoryFigures, HistoryReply};

/// A run that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PastRun {
    /// Days from the Unix epoch to its end.
    pub(crate) day: i64,
    pub(crate) passed: bool,
    pub(crate) took_ms: u64,
}

/// The figures of `runs`, the last one first. `truncated` says that there are older ones.
pub(crate) fn figures(runs: &[PastRun], truncated: bool) -> HistoryReply {
    let mut by_day: BTreeMap<i64, Vec<PastRun>> = BTreeMap::new();
    for run in runs {
        by_day.entry(run.day).or_default().push(*run);
    }
    let days = by_day.into_iter().map(|(day, runs)| (date(day), of_runs(&runs))).collect();
    HistoryReply { total: of_runs(runs), days, truncated }
}

fn of_runs(runs: &[PastRun]) -> HistoryFigures {
    let count = |found: usize| found as u64;
    let share = |part: u64, of: usize| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    let passed = count(runs.iter().filter(|run| run.passed).count());
    let flips =
        runs.iter().zip(runs.iter().skip(1)).filter(|(run, before)| run.passed != before.passed).count();
    let mut took: Vec<u64> = runs.iter().map(|run| run.took_ms).collect();
    took.sort_unstable();
    HistoryFigures {
        runs: count(runs.len()),
        passed,
        pass_rate: share(passed, runs.len()),
        flip_rate: share(count(flips), runs.len().saturating_sub(1)),
        p50_ms: percentile(&took, 50),
        p95_ms: percentile(&took, 95),
    }
}

/// The smallest value that at least `percent` of 100 values do not exceed; 0 without values.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = sorted.len().saturating_mul(percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// The date of a day as `YYYY-MM-DD`, by the Gregorian calendar. (Days from civil, H. Hinnant.)
fn date(day: i64) -> String {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::{PastRun, date, figures, percentile};

    #[test]
    fn dates_follow_the_calendar() {
        let cases = [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_781, "2026-11-24")];
        for (day, wanted) in cases {
            assert_eq!(date(day), wanted);
        }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        assert_eq!([percentile(&[1, 2, 3, 4], 50), percentile(&[1, 2, 3, 4], 95)], [2, 4]);
        assert_eq!([percentile(&[], 50), percentile(&[7], 95)], [0, 7]);
    }

    #[test]
    fn a_run_that_differs_from_the_one_before_is_a_flip() {
        let run = |day, passed, took_ms| PastRun { day, passed, took_ms };
        let runs = [run(1, true, 10), run(1, false, 20), run(0, true, 30), run(0, true, 40)];
        let reply = figures(&runs, false);
        assert_eq!((reply.total.runs, reply.total.passed, reply.total.p95_ms), (4, 3, 40));
        assert!(
            (reply.total.flip_rate - 2.0 / 3.0).abs() < 1e-9 && (reply.total.pass_rate - 0.75).abs() < 1e-9
        );
        let days: Vec<_> =
            reply.days.iter().map(|(day, figures)| (day.as_str(), figures.flip_rate)).collect();
        assert_eq!(days, [("1970-01-01", 0.0), ("1970-01-02", 1.0)]);
    }
}
