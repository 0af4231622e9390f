//! Compares the tasks of two jobs.

use std::{collections::BTreeMap, time::Duration};

use maud::{Markup, html};
use model::{Group, TaskId, TaskReport};

use crate::{
    action,
    build::status_badge,
    layout::{count, short, span},
};

/// Maximum number of tasks that are listed.
const ROWS_MAX: usize = 500;

/// The reports of one task in both jobs.
type Both<'a> = (Option<&'a TaskReport>, Option<&'a TaskReport>);

/// The tasks that ended differently, have another action, or are only in one of the jobs.
pub(super) fn part(a: &[TaskReport], b: &[TaskReport], group: &Group) -> Markup {
    let all = by_task(a, b);
    let differ: Vec<(&TaskId, Both<'_>)> =
        all.iter().map(|(id, both)| (*id, *both)).filter(|(_, both)| differs(*both)).collect();
    html! {
        @if !all.is_empty() {
            h2 { "Tasks" }
            @if differ.is_empty() { p { "✓ Equal (" (all.len()) ")." } } @else {
                p { (differ.len()) " of " (count(all.len(), "task", "tasks")) " differ." }
                div.wide tabindex="0" role="region" aria-label="Tasks that differ" {
                    table.compare {
                        thead { tr { th scope="col" { "Task" } th scope="col" { "A" } th scope="col" { "B" } th scope="col" { "Action" } } }
                        tbody { @for (id, both) in differ.iter().take(ROWS_MAX) { (row(id, *both, group)) } }
                    }
                }
                @if differ.len() > ROWS_MAX { p { (differ.len() - ROWS_MAX) " more" } }
            }
        }
    }
}

fn by_task<'a>(a: &'a [TaskReport], b: &'a [TaskReport]) -> BTreeMap<&'a TaskId, Both<'a>> {
    let mut all: BTreeMap<&TaskId, Both<'_>> = BTreeMap::new();
    for report in a {
        all.entry(&report.id).or_default().0 = Some(report);
    }
    for report in b {
        all.entry(&report.id).or_default().1 = Some(report);
    }
    all
}

/// Run times differ between any two runs: they do not count.
fn differs(both: Both<'_>) -> bool {
    match both {
        (Some(a), Some(b)) => a.status != b.status || a.action != b.action || a.exit_code != b.exit_code,
        (Some(_) | None, _) => true,
    }
}

fn row(id: &TaskId, (a, b): Both<'_>, group: &Group) -> Markup {
    let actions = a.and_then(|it| it.action.as_ref()).zip(b.and_then(|it| it.action.as_ref()));
    html! {
        tr {
            th scope="row" { (short(id.as_str(), 80)) }
            @for report in [a, b] { td { (side(report, group)) } }
            td {
                @match actions {
                    Some((a, b)) if a == b => "the same",
                    Some((a, b)) => a href={ "/compare-actions?a=" (a) "&b=" (b) "&group=" (group) } { "what differs" },
                    None => "",
                }
            }
        }
    }
}

fn side(report: Option<&TaskReport>, group: &Group) -> Markup {
    let Some(report) = report else { return html! { span.idle { "absent" } } };
    html! {
        (status_badge(report))
        @if let Some(wall) = report.wall_ms { " " (span(Duration::from_millis(wall))) }
        @if let Some(action) = &report.action { " " a href=(action::path(action, Some(group))) { "action" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(id: &str, action: &str, exit_code: i32) -> TaskReport {
        let hash = action.repeat(64);
        let json = serde_json::json!({
            "id": id,
            "status": if exit_code == 0 { "succeeded" } else { "failed" },
            "exit_code": exit_code,
            "wall_ms": 12,
            "action": format!("{hash}/3"),
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn tasks_with_another_action_result_or_job_are_listed() {
        let a = [
            report("same", "a", 0),
            report("input", "a", 0),
            report("result", "c", 0),
            report("gone", "d", 0),
        ];
        let b = [
            report("same", "a", 0),
            report("input", "b", 0),
            report("result", "c", 1),
            report("new", "e", 0),
        ];
        let shown = part(&a, &b, &"g".parse().unwrap()).into_string();
        assert!(shown.contains("4 of 5 tasks differ"), "{shown}");
        assert_eq!(shown.matches("<tr>").count(), 5, "a head and 4 rows: {shown}");
        assert!(!shown.contains(">same<"), "{shown}");
        assert_eq!(shown.matches("absent").count(), 2, "{shown}");
        assert_eq!(shown.matches("/compare-actions?").count(), 1, "{shown}");
        assert!(part(&a, &a, &"g".parse().unwrap()).into_string().contains("Equal (4)"));
    }
}
