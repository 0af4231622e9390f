//! The job of a build: its graph, and its tasks with the critical path.

use std::collections::{BTreeMap, HashMap};

use client::{TasksSoFar, text::size};
use maud::{Markup, html};
use model::{
    BuildView, Graph, Group, Job, JobLimits, Millis, RunningTasks, State, TaskId, TaskReport, TaskStatus,
};
use telemetry::escaped;

use crate::{
    action, graph,
    layout::{count, short, since, span},
    patience::answer,
    site::Site,
    timeline::{Span, Step, critical_path, table},
};

/// Maximum number of tasks in the picture of the graph.
const PICTURE_MAX: usize = 150;
/// Maximum number of tasks in the table.
const ROWS_MAX: usize = 300;
/// Maximum size of a job, and of the reports of its tasks, that a page reads.
const BYTES_MAX: u64 = 16 << 20;

/// The part about the job; empty for a command.
pub(super) async fn part(site: &Site, view: &BuildView) -> Markup {
    if view.record.build.job.is_none() {
        return html! {};
    }
    let (job, tasks) = tokio::join!(read(site, view), tasks(site, view));
    let Some(job) = job else { return html! { p { "The job cannot be read: the store has it no more." } } };
    let reports: HashMap<&TaskId, &TaskReport> =
        tasks.reports.iter().map(|report| (&report.id, report)).collect();
    let group = &view.record.build.group;
    html! {
        h2 #job { "Job" }
        (counts(view, &job, &reports))
        @if let Some(running) = tasks.running.as_ref().filter(|_| view.state == State::InProgress) { (now_running(running, site.now())) }
        (picture(&job, &reports, group))
        (times(&job, &reports, group, site.now()))
        (list(&job, &reports, group))
    }
}

async fn read(site: &Site, view: &BuildView) -> Option<Graph> {
    let job = view.record.build.job.as_ref()?;
    let blob = job.digest.of_size(job.size_bytes?);
    let json = site.api.cas.read_whole(&blob, BYTES_MAX).await.ok()?;
    let job: Job = serde_json::from_slice(&json).ok()?;
    Graph::new(&job, &JobLimits::NONE).ok()
}

/// The tasks so far: from the file of the result, or from the events while it runs.
pub(crate) async fn tasks(site: &Site, view: &BuildView) -> TasksSoFar {
    let job = view.record.result().and_then(|result| result.job.as_ref());
    if let Some(file) = job.and_then(|job| job.report.as_ref())
        && let Ok(lines) = site.api.cas.read_whole(&file.blob(), BYTES_MAX).await
    {
        let lines = lines.split(|byte| *byte == b'\n');
        let reports = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        return TasksSoFar { reports, running: None };
    }
    let key = view.record.build.key();
    answer(site.client().tasks_so_far(&key, view.record.attempt)).await.unwrap_or_default()
}

/// What runs now, and how long it will take at least.
fn now_running(running: &RunningTasks, now: Millis) -> Markup {
    html! {
        p {
            (count(usize::try_from(running.count).unwrap_or(usize::MAX), "task runs", "tasks run"))
            @for (number, it) in running.longest.iter().enumerate() {
                @if number == 0 { ": " } @else { ", " }
                b { (short(it.id.as_str(), 60)) } " (" (since(it.since_ms, now)) ")"
            }
            "."
            @if let Some(left) = running.critical_path_ms { " The critical path that is left takes about " (span(std::time::Duration::from_millis(left))) "." }
        }
    }
}

fn counts(view: &BuildView, job: &Graph, reports: &HashMap<&TaskId, &TaskReport>) -> Markup {
    let of = |status: TaskStatus| reports.values().filter(|report| report.status == status).count();
    let failed = reports.len() - of(TaskStatus::Succeeded) - of(TaskStatus::Skipped);
    let score = view.record.result().and_then(|result| result.job.as_ref()?.score);
    html! {
        p {
            (reports.len()) " of " (job.len()) " tasks ended: " (of(TaskStatus::Succeeded)) " succeeded, "
            (failed) " failed, " (of(TaskStatus::Skipped)) " skipped."
            @if let Some(score) = score { " Score " b { (format!("{score:.3}")) } "." }
        }
        progress.bad[failed > 0] value=(reports.len()) max=(job.len()) aria-label="Tasks that ended" {}
    }
}

fn picture(job: &Graph, reports: &HashMap<&TaskId, &TaskReport>, group: &Group) -> Markup {
    if job.len() > PICTURE_MAX || job.len() < 2 {
        return html! {};
    }
    let nodes: Vec<graph::Node> = job
        .tasks()
        .iter()
        .map(|task| {
            let report = reports.get(&task.id);
            graph::Node {
                name: escaped(task.id.as_str()),
                class: report.map_or("idle", |report| class(report.status)),
                note: report.map_or("has not ended", |report| report.status.as_str()).to_owned(),
                link: report
                    .and_then(|report| report.action.as_ref())
                    .map(|digest| action::path(digest, Some(group))),
                after: task.dependencies.iter().map(|index| index.get()).collect(),
            }
        })
        .collect();
    html! {
        details #job-graph open {
            summary { "Graph of the tasks" }
            (graph::picture("Graph of the tasks; the table below has the same tasks", &nodes))
        }
    }
}

fn times(job: &Graph, reports: &HashMap<&TaskId, &TaskReport>, group: &Group, now: Millis) -> Markup {
    let ran: Vec<(usize, &TaskReport, Step)> = job
        .indexed()
        .filter_map(|(index, task)| {
            let report = *reports.get(&task.id)?;
            let after = task.dependencies.iter().map(|index| index.get()).collect();
            let step = Step { start: report.started_at_ms?, end: report.ended_at_ms?, after: Some(after) };
            Some((index.get(), report, step))
        })
        .collect();
    // Dependencies are counted among the tasks that ran.
    let places: BTreeMap<usize, usize> =
        ran.iter().enumerate().map(|(place, (index, ..))| (*index, place)).collect();
    let steps: Vec<Step> = ran
        .iter()
        .map(|(.., step)| {
            let after = step.after.iter().flatten().filter_map(|index| places.get(index).copied()).collect();
            Step { after: Some(after), ..step.clone() }
        })
        .collect();
    let critical = critical_path(&steps);
    let spans: Vec<Span> = ran
        .iter()
        .enumerate()
        .map(|(place, (_, report, step))| Span {
            name: name(report, group),
            kind: if report.status == TaskStatus::Succeeded { "run" } else { "bad" },
            start: step.start,
            end: Some(step.end),
            is_critical: critical.contains(&place),
            level: 0,
        })
        .collect();
    html! {
        @if !spans.is_empty() {
            details #job-times open[spans.len() <= 60] {
                summary { "When the tasks ran; ◆ marks the critical path" }
                (table("Times of the tasks", &spans, now))
            }
        }
    }
}

fn name(report: &TaskReport, group: &Group) -> Markup {
    let id = short(report.id.as_str(), 80);
    let path = report.action.as_ref().map(|digest| action::path(digest, Some(group)));
    html! { @if let Some(path) = path { a href=(path) { (id) } } @else { (id) } }
}

fn list(job: &Graph, reports: &HashMap<&TaskId, &TaskReport>, group: &Group) -> Markup {
    let mut rows: Vec<&TaskReport> =
        job.tasks().iter().filter_map(|task| reports.get(&task.id).copied()).collect();
    rows.sort_by_key(|report| rank(report.status));
    let time = |ms: Option<u64>| ms.map(|ms| span(std::time::Duration::from_millis(ms))).unwrap_or_default();
    html! {
        @if !rows.is_empty() {
            details #tasks open[rows.first().is_some_and(|row| row.status != TaskStatus::Succeeded)] {
                summary { "Tasks, failed ones first" }
                div.wide tabindex="0" role="region" aria-label="Tasks" {
                    table {
                        thead { tr { @for head in ["Task", "Status", "Ran", "Memory", "Executor", "Why"] { th scope="col" { (head) } } } }
                        tbody {
                            @for report in rows.iter().take(ROWS_MAX) {
                                tr {
                                    td { (name(report, group)) }
                                    td { (status_badge(report)) }
                                    td.number { (time(report.wall_ms)) }
                                    td.number { (report.memory_bytes.map(size).unwrap_or_default()) }
                                    td { (report.executor.as_deref().map(|it| short(it, 40)).unwrap_or_default()) }
                                    td { (report.reason.as_deref().map(|it| short(it, 200)).unwrap_or_default()) @if let Some(task) = &report.because_of { " because " (short(task.as_str(), 60)) " did not succeed" } }
                                }
                            }
                        }
                    }
                }
                @if rows.len() > ROWS_MAX { p { (rows.len() - ROWS_MAX) " more tasks" } }
            }
        }
    }
}

/// How a task ended, in a word.
pub(crate) fn status_badge(report: &TaskReport) -> Markup {
    let status = report.status;
    html! {
        span class={ "badge " (class(status)) } { (sign(status)) " " (status.as_str().replace('_', " ")) }
        @if report.cached { " (cached)" }
    }
}

fn class(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Succeeded => "good",
        TaskStatus::Failed | TaskStatus::OverLimit => "bad",
        TaskStatus::FarmFailed => "warn",
        TaskStatus::Skipped => "idle",
    }
}

fn sign(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Succeeded => "✓",
        TaskStatus::Failed | TaskStatus::OverLimit => "✗",
        TaskStatus::FarmFailed => "!",
        TaskStatus::Skipped => "○",
    }
}

fn rank(status: TaskStatus) -> u8 {
    match status {
        TaskStatus::Failed => 0,
        TaskStatus::OverLimit => 1,
        TaskStatus::FarmFailed => 2,
        TaskStatus::Skipped => 3,
        TaskStatus::Succeeded => 4,
    }
}
