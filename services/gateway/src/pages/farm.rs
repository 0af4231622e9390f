//! The page of the farm: its workers with what they run, its executors, and what waits in each group.

use axum::{extract::State as FromState, response::Html};
use client::text::size;
use maud::{Markup, html};
use model::{
    ExecutorHeartbeat, ExecutorStatus, GroupStanding, Millis, WorkerStatus, WorkerView, WorkspaceState,
};
use telemetry::escaped;

use super::layout::{ErrorPage, ago, page};
use crate::gateway::Gateway;

/// Handles `GET /farm`: shows workers, executors and groups.
pub(super) async fn show(FromState(gateway): FromState<Gateway>) -> Result<Html<String>, ErrorPage> {
    let client = &gateway.client;
    let executors = async { Ok(client.bus().leases().executors().await?) };
    let (mut workers, mut executors, quota) = tokio::try_join!(client.workers(), executors, client.quota())?;
    workers.sort_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
    executors.sort_by(|a, b| a.pool.cmp(&b.pool).then_with(|| a.executor.cmp(&b.executor)));
    let now = client.bus().now();
    let content = html! {
        h1 { "Farm" }
        h2 { "Workers" }
        (of_workers(&workers, now))
        h2 { "Executors" }
        (of_executors(&executors, now))
        h2 { "Groups" }
        (groups(&quota.groups))
    };
    Ok(page("Farm", &content))
}

/// A table that can be scrolled sideways on a small screen.
fn table(name: &str, head: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr { @for title in head { th scope="col" { (title) } } } }
                tbody { (rows) }
            }
        }
    }
}

fn of_workers(workers: &[WorkerView], now: Millis) -> Markup {
    if workers.is_empty() {
        return html! { p { "No worker is running. Start one with " code { "forebay serve worker" } "." } };
    }
    let rows = html! {
        @for WorkerView { heartbeat } in workers {
            tr {
                td { (heartbeat.worker) }
                td { (escaped(&heartbeat.host)) }
                td { (worker_status(heartbeat.status)) }
                td { (workspaces(&heartbeat.workspaces)) }
                td { (ago(heartbeat.started_at_ms, now)) }
            }
        }
    };
    table("Workers", &["Worker", "Machine", "Status", "Workspaces", "Started"], &rows)
}

fn worker_status(status: WorkerStatus) -> Markup {
    let (class, text) = match status {
        WorkerStatus::Ready => ("good", "✓ ready"),
        WorkerStatus::Draining => ("warn", "○ draining"),
        WorkerStatus::Full => ("warn", "○ disk full"),
        WorkerStatus::Gone => ("bad", "✗ gone"),
    };
    html! { span class={ "badge " (class) } { (text) } }
}

/// Each workspace as a box, in which a build is a link.
fn workspaces(all: &[WorkspaceState]) -> Markup {
    html! {
        @for state in all {
            @match state {
                WorkspaceState::Idle { .. } => { span.slot title="idle" { "idle" } }
                WorkspaceState::Broken => { span.slot.bad title="broken" { "broken" } }
                WorkspaceState::Busy { group, id } => {
                    a.slot.busy href={ "/builds/" (group) "/" (id) } title={ (group) "/" (id) } { (group) }
                }
            }
            " "
        }
    }
}

fn of_executors(executors: &[ExecutorHeartbeat], now: Millis) -> Markup {
    if executors.is_empty() {
        return html! { p { "No executor is running. Start one with " code { "forebay serve executor" } "." } };
    }
    let processors = |millis: u64| millis as f64 / 1000.0;
    let rows = html! {
        @for it in executors {
            tr {
                td { (it.executor) }
                td { (it.pool) }
                td { (escaped(&it.host)) }
                td { (executor_status(it)) }
                td { (it.running.len()) " of " (it.slots) }
                td { (processors(it.held.cpu_millis)) " of " (processors(it.capacity.cpu_millis)) }
                td { (size(it.held.memory_bytes)) " of " (size(it.capacity.memory_bytes)) }
                td { @if it.window.size > 0 { (it.window.used) " of " (it.window.size) } @else { "off" } }
                td { (ago(it.started_at_ms, now)) }
            }
        }
    };
    let head =
        ["Executor", "Pool", "Machine", "Status", "Actions", "Processors", "Memory", "Window", "Started"];
    table("Executors", &head, &rows)
}

fn executor_status(executor: &ExecutorHeartbeat) -> Markup {
    let why = || executor.window.red.join("; ");
    let (class, text) = match executor.status {
        ExecutorStatus::Ready => ("good", "✓ ready".to_owned()),
        ExecutorStatus::Draining => ("warn", "○ draining".to_owned()),
        ExecutorStatus::Closed if executor.window.red.is_empty() => ("busy", "▶ full".to_owned()),
        ExecutorStatus::Closed => ("warn", format!("○ closed: {}", why())),
        ExecutorStatus::Gone => ("bad", "✗ gone".to_owned()),
    };
    html! { span class={ "badge " (class) } { (escaped(&text)) } }
}

fn groups(groups: &[GroupStanding]) -> Markup {
    if groups.is_empty() {
        return html! { p { "No group has a quota or a build." } };
    }
    let rows = html! {
        @for it in groups {
            tr {
                td { a href={ "/builds?group=" (it.group) } { (it.group) } }
                td { (it.queued) }
                td { @if it.in_progress.is_empty() { "none" } @else { (it.in_progress) } }
                td { @match &it.quota { Some(quota) => { (quota.esu) } None => { "none" } } }
                td { (it.throttled.as_deref().map(escaped).unwrap_or_default()) }
            }
        }
    };
    table(
        "Groups",
        &["Group", "Waiting", "ESU in progress", "Quota, ESU", "The first build waits for"],
        &rows,
    )
}
