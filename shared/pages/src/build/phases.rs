//! The time of a build: its phases, and the actions that it sent, with the critical path.

use std::time::Duration;

use maud::{Markup, html};
use model::{ActionView, BuildRecord, InvocationView, Millis};

use super::Facts;
use crate::{
    action,
    layout::{count, short},
    timeline::{Span, Step, critical_path, table},
};

pub(super) fn part(facts: &Facts, now: Millis) -> Markup {
    let record = &facts.log.build.record;
    let phases = phases(record, &facts.runs);
    // The tasks of a job are shown as such.
    let actions = if record.build.job.is_some() { Vec::new() } else { actions(&facts.actions) };
    html! {
        @if !phases.is_empty() {
            h2 { "Phases" }
            (table("Phases of the build", &phases, now))
        }
        @if !actions.is_empty() {
            details #actions open[actions.len() <= 50] {
                summary { @if facts.more_actions { "More than " } (count(actions.len(), "action", "actions")) "; ◆ marks the critical path" }
                (table("Actions of the build", &actions, now))
            }
        }
    }
}

fn phase(name: &str, kind: &'static str, start: Millis, end: Option<Millis>) -> Span {
    Span { name: html! { (name) }, kind, start, end, is_critical: false, level: 0 }
}

/// The phases of all attempts. What the archive does not know yet comes from the record.
fn phases(record: &BuildRecord, runs: &[InvocationView]) -> Vec<Span> {
    let many = record.attempt.0 > 1;
    let mut spans = Vec::new();
    for run in runs.iter().filter(|run| run.attempt < record.attempt || record.invocation().is_none()) {
        let of = |what: &str| if many { format!("{what}, attempt {}", run.attempt) } else { what.to_owned() };
        let ended = run.end.as_ref().map(|end| end.at_ms);
        if let (Some(queued), Some(started)) = (run.enqueued_at_ms, run.started_at_ms) {
            spans.push(phase(&of("Waited"), "queue", queued, Some(started)));
            let prepared = run.prepared_at_ms.unwrap_or(started);
            spans.push(phase(&of("Prepared the workspace"), "prepare", started, Some(prepared)));
            let kind = if run.end.as_ref().is_some_and(|end| end.reason.is_some()) { "bad" } else { "run" };
            spans.push(phase(&of("Ran"), kind, prepared, ended));
        }
    }
    let of = |what: &str| if many { format!("{what}, attempt {}", record.attempt) } else { what.to_owned() };
    let queued = record.queue.enqueued_at_ms;
    let Some(run) = record.invocation() else {
        let ended = record.result().map(|_| record.at_ms);
        spans.push(phase(&of("Waits"), "queue", queued, ended));
        return spans;
    };
    spans.push(phase(&of("Waited"), "queue", queued, Some(run.started_at_ms)));
    let known = runs.iter().find(|it| it.attempt == record.attempt);
    let result = record.result();
    let command = result.and_then(|result| result.command_started_at_us).map(|at| Millis(at / 1000));
    let prepared = command.or_else(|| known.and_then(|run| run.prepared_at_ms));
    match (prepared, result) {
        (Some(prepared), result) => {
            spans.push(phase(&of("Prepared the workspace"), "prepare", run.started_at_ms, Some(prepared)));
            let ran = result.map(|result| prepared.after(seconds(result.wall_seconds)));
            let kind = if result.is_some_and(|result| result.reason.is_some()) { "bad" } else { "run" };
            spans.push(phase(&of("Ran"), kind, prepared, ran.map(|ran| ran.min(record.at_ms.max(prepared)))));
            if let Some(ran) = ran.filter(|ran| *ran < record.at_ms) {
                spans.push(phase(&of("Kept its outputs"), "store", ran, Some(record.at_ms)));
            }
        }
        (None, Some(_)) => spans.push(phase(&of("Ran"), "bad", run.started_at_ms, Some(record.at_ms))),
        (None, None) => spans.push(phase(&of("Prepares or runs"), "run", run.started_at_ms, None)),
    }
    spans
}

/// A number of seconds; 0 if it is negative or not finite.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn actions(actions: &[ActionView]) -> Vec<Span> {
    let ended: Vec<(usize, Step)> = actions
        .iter()
        .enumerate()
        .filter_map(|(number, it)| {
            Some((number, Step { start: it.accepted_at_ms, end: it.finished_at_ms?, after: None }))
        })
        .collect();
    let steps: Vec<Step> = ended.iter().map(|(_, step)| step.clone()).collect();
    let critical: Vec<usize> =
        critical_path(&steps).into_iter().filter_map(|at| ended.get(at).map(|(number, _)| *number)).collect();
    let span = |(number, it): (usize, &ActionView)| {
        let failed = it.code.is_some_and(|code| code != 0) || it.exit_code.is_some_and(|code| code != 0);
        let what = [it.mnemonic.as_deref(), it.target.as_deref()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ");
        let what = if what.is_empty() { it.action.clone() } else { what };
        Span {
            name: html! { a href=(action::path(&it.action, Some(&it.group))) { (short(&what, 90)) } },
            kind: if failed { "bad" } else { "run" },
            start: it.accepted_at_ms,
            end: it.finished_at_ms,
            is_critical: critical.contains(&number),
            level: 1,
        }
    };
    actions.iter().enumerate().map(span).collect()
}
