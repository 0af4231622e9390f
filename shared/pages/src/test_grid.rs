//! The page of the tests: their results in the last calls of build tools, how flaky they are, and how long they take.

use std::time::Duration;

use http_api::{Failure, test_grid_request};
use maud::{Markup, html};
use model::{
    HistoryOf, HistoryReply, HistoryRequest, TestGridCall, TestGridReply, TestGridResult, TestGridRow,
};
use telemetry::escaped;

use crate::{
    layout::{ago, short, span, url_part},
    patience::{answer, needed},
    site::{Asked, Site},
    view::View,
};

/// Maximum number of tests on the page.
const ROWS_MAX: usize = 300;

/// Handles `GET /tests`: shows results of tests.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let request = test_grid_request(&asked.query)?;
    let grid = needed(site.client().test_grid(&request)).await?;
    let mut rows: Vec<(&TestGridRow, Facts)> = grid.tests.iter().map(|row| (row, Facts::of(row))).collect();
    rows.sort_by_key(|(_, facts)| std::cmp::Reverse((facts.fails_now, facts.flips, facts.failed)));
    // One test has figures of more runs than the grid shows.
    let history = match rows.as_slice() {
        [(row, _)] => {
            let of = HistoryOf::Test(row.label.clone());
            answer(site.client().history(&HistoryRequest { group: request.group.clone(), of, days: None }))
                .await
        }
        _ => None,
    };
    let value = |name| asked.query.last(name).unwrap_or_default();
    let content = html! {
        h1 { "Tests" }
        form.filter role="search" method="get" action="/tests" {
            label { "Test contains " input type="search" name="text" value=(value("text")); }
            label { "Group " input name="group" value=(value("group")); }
            label { "Calls " input name="calls" type="number" min="1" max="100" value=(value("calls")) placeholder="30"; }
            button { "Show" }
        }
        @if grid.tests.is_empty() { (nothing()) } @else {
            (table(&grid, &rows, &site))
            @if let Some(history) = &history { (trend(history)) }
            @if grid.truncated || rows.len() > ROWS_MAX { p { "There are more tests than fit here: use the filter." } }
        }
    };
    Ok(View::fixed("Tests", content))
}

fn nothing() -> Markup {
    html! {
        p { "The archive has no tests yet. Bazel reports its tests to the farm with this option, which builds of the farm set:" }
        pre tabindex="0" { "bazel test --bes_backend=grpc://127.0.0.1:8980 //..." }
    }
}

/// What the results of a test have in common.
struct Facts {
    /// Whether it failed in the last call that ran it.
    fails_now: bool,
    /// Number of results that failed or were flaky.
    failed: usize,
    /// Number of times that its result changed, and of flaky results.
    flips: usize,
    /// Number of the oldest call of those that failed in a row up to the last one.
    first_bad: Option<usize>,
    mean_ms: Option<u64>,
}

fn is_good(result: &TestGridResult) -> bool {
    result.status == "passed"
}

impl Facts {
    /// Results are in the order of the calls, the newest first.
    fn of(row: &TestGridRow) -> Self {
        let results = &row.results;
        let is_flaky = |result: &&TestGridResult| result.status == "flaky";
        let fails = |result: &&TestGridResult| !is_good(result) && !is_flaky(result);
        let changes = results.windows(2).filter(|pair| match pair {
            [a, b] => is_good(a) != is_good(b),
            _ => false,
        });
        let times: Vec<u64> = results.iter().filter_map(|result| result.duration_ms).collect();
        let sum: u64 = times.iter().sum();
        Self {
            fails_now: results.first().as_ref().is_some_and(fails),
            failed: results.iter().filter(|result| !is_good(result)).count(),
            flips: changes.count() + results.iter().filter(is_flaky).count(),
            first_bad: results.iter().take_while(fails).last().map(|result| result.call),
            mean_ms: sum.checked_div(times.len() as u64),
        }
    }
}

fn table(grid: &TestGridReply, rows: &[(&TestGridRow, Facts)], site: &Site) -> Markup {
    let now = site.now();
    html! {
        p { "Failing tests come first, then those whose result changes often. The newest call is on the left: ✓ passed, ! flaky, ✗ failed, · did not run. Changes are how often the result differs from that of the call before." }
        div.wide tabindex="0" role="region" aria-label="Tests by call" {
            table.grid {
                thead {
                    tr {
                        th scope="col" { "Test" } th scope="col" { "Changes" } th scope="col" { "Took" } th scope="col" { "Failing since" }
                        @for (number, call) in grid.calls.iter().enumerate() { th scope="col" { (head(number, call)) } }
                    }
                }
                tbody {
                    @for (row, facts) in rows.iter().take(ROWS_MAX) {
                        tr {
                            th scope="row" { a.row href={ "/tests?text=" (url_part(&row.label)) } { (short(&row.label, 80)) } }
                            td.number { @if facts.flips > 0 { (facts.flips) } }
                            td.number { (facts.mean_ms.map(|ms| span(Duration::from_millis(ms))).unwrap_or_default()) }
                            td { @if let Some(call) = facts.first_bad.and_then(|call| grid.calls.get(call)) { (link(call, &html! { @match call.started_at_ms { Some(at) => (ago(at, now)), None => (short(call.id.as_str(), 8)) } })) } }
                            @for number in 0..grid.calls.len() {
                                td.cell { (cell(row.results.iter().find(|result| result.call == number), grid.calls.get(number))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn link(call: &TestGridCall, shown: &Markup) -> Markup {
    html! {
        @match &call.build {
            Some(build) => a href={ "/builds/" (call.group) "/" (build) "#targets" } { (shown) },
            None => a href={ "/calls/" (call.group) "/" (call.id) } { (shown) },
        }
    }
}

fn head(number: usize, call: &TestGridCall) -> Markup {
    let started = call.started_at_ms.map(client::text::date).unwrap_or_default();
    link(call, &html! { span title={ (started) " " (call.id) } { (number + 1) } })
}

fn cell(result: Option<&TestGridResult>, call: Option<&TestGridCall>) -> Markup {
    let Some(result) = result else { return html! { span.idle aria-label="did not run" { "·" } } };
    let (class, sign) = match result.status.as_str() {
        "passed" => ("good", "✓"),
        "flaky" => ("warn", "!"),
        _ => ("bad", "✗"),
    };
    let took =
        result.duration_ms.map(|ms| format!(", {}", span(Duration::from_millis(ms)))).unwrap_or_default();
    let cached = if result.cached { ", cached" } else { "" };
    let text = format!("{}{took}{cached}", escaped(&result.status));
    let shown = html! { span class=(class) title=(text) aria-label=(text) { (sign) } };
    match call {
        Some(call) => link(call, &shown),
        None => shown,
    }
}

/// Figures of one test by day.
fn trend(history: &HistoryReply) -> Markup {
    let days: Vec<(String, f64)> =
        history.days.iter().map(|(day, figures)| (day.clone(), figures.p50_ms as f64 / 1000.0)).collect();
    let total = &history.total;
    html! {
        h2 { "The last 30 days" }
        p {
            (total.runs) " runs, " (format!("{:.1} %", total.pass_rate * 100.0)) " passed, the result changed in "
            (format!("{:.1} %", total.flip_rate * 100.0)) " of them. Half took at most "
            (span(Duration::from_millis(total.p50_ms))) ", 95 of 100 at most " (span(Duration::from_millis(total.p95_ms))) "."
        }
        (crate::chart::bars("Median duration by day", "seconds", &days))
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, TestGridResult, TestGridRow};

    fn facts(statuses: &[(usize, &str)]) -> (bool, usize, Option<usize>) {
        let result = |(call, status): &(usize, &str)| TestGridResult {
            call: *call,
            status: (*status).to_owned(),
            cached: false,
            duration_ms: None,
        };
        let row = TestGridRow { label: "//:t".to_owned(), results: statuses.iter().map(result).collect() };
        let facts = Facts::of(&row);
        (facts.fails_now, facts.flips, facts.first_bad)
    }

    #[test]
    fn the_first_bad_call_is_the_oldest_failure_in_a_row() {
        assert_eq!(facts(&[(0, "failed"), (2, "timeout"), (3, "passed"), (4, "failed")]), (true, 2, Some(2)));
        assert_eq!(facts(&[(0, "passed"), (1, "flaky"), (2, "passed")]), (false, 3, None));
        assert_eq!(facts(&[]), (false, 0, None));
    }
}
