//! The page of the farm: what needs attention, workers with what they run, executors, the plan of the autoscaler, environments, and what
//! waits in each group.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use axum::{
    extract::{Extension as FromExtensions, State as FromState},
    response::Redirect,
};
use callers::Caller;
use client::{Order, text::size};
use http_api::{Failure, PathParameters, may_see_environment};
use maud::{Markup, html};
use model::{
    AuditKind, ExecutorHeartbeat, ExecutorStatus, Group, GroupStanding, Millis, ScalePlan, WaitingBuilds,
    WindowState, WorkerStatus, WorkerView, WorkspaceState,
};
use telemetry::escaped;

use crate::{
    environments::of_environments,
    layout::{ErrorPage, ago, short, since, table},
    quota::NOT_QUOTA,
    site::{Asked, Site},
    view::{Changes, Part, View},
};

const AGAIN: Duration = Duration::from_secs(2);
/// A farm with fewer executors in a pool has no spare one if two fail.
const FEW: usize = 3;

/// Handles `GET /farm`: shows the farm.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let client = site.client();
    let executors = async { Ok(client.bus().leases().executors().await?) };
    let (mut workers, mut executors, quota) = tokio::try_join!(client.workers(), executors, client.quota())?;
    let mut environments = client.environments().await.unwrap_or_default();
    environments.retain(|environment| may_see_environment(&asked.rights, &environment.name));
    let plans = client.bus().buckets().all().await.unwrap_or_default();
    let plans: Vec<ScalePlan> = plans.into_values().collect();
    workers.sort_by(|a, b| {
        worker_rank(a.heartbeat.status)
            .cmp(&worker_rank(b.heartbeat.status))
            .then_with(|| a.heartbeat.worker.cmp(&b.heartbeat.worker))
    });
    executors.sort_by(|a, b| {
        executor_rank(a)
            .cmp(&executor_rank(b))
            .then_with(|| (&a.pool, &a.executor).cmp(&(&b.pool, &b.executor)))
    });
    let mut groups = quota.groups;
    groups.sort_by(|a, b| b.queued.cmp(&a.queued).then_with(|| a.group.cmp(&b.group)));
    let now = site.now();
    let content = html! {
        (attention(&workers, &executors, &groups))
        h2 { "Workers" }
        (of_workers(&workers, now))
        h2 { "Executors" }
        (of_executors(&executors, now))
        @if !plans.is_empty() { h2 { "Plan of the autoscaler" } (of_plans(&plans, now)) }
        @if !environments.is_empty() { h2 { "Environments" } (of_environments(&environments, now)) }
        h2 { "Queues" }
        (queues(&groups, now))
        h2 { "Groups" }
        (of_groups(&groups))
    };
    let parts = vec![Part::Fixed(html! { h1 { "Farm" } }), Part::Live("farm", content)];
    Ok(View { title: "Farm".to_owned(), parts, changes: Changes::Every(AGAIN) })
}

/// What an operator should look at, the worst first.
fn attention(workers: &[WorkerView], executors: &[ExecutorHeartbeat], groups: &[GroupStanding]) -> Markup {
    let mut found: Vec<Markup> = Vec::new();
    if workers.is_empty() && executors.is_empty() {
        found.push(html! { "Nothing can run: there is neither a worker nor an executor." });
    }
    for WorkerView { heartbeat } in workers {
        match heartbeat.status {
            WorkerStatus::Full => found.push(html! { "Worker " a href={ "#" (heartbeat.worker) } { (heartbeat.worker) } " accepts nothing: " (escaped(heartbeat.short.as_deref().unwrap_or("it does not say why"))) }),
            WorkerStatus::Gone | WorkerStatus::Draining | WorkerStatus::Ready => {}
        }
        let broken = heartbeat.workspaces.iter().filter(|it| matches!(it, WorkspaceState::Broken)).count();
        if broken > 0 {
            found.push(html! { "Worker " a href={ "#" (heartbeat.worker) } { (heartbeat.worker) } " has " (broken) " broken workspaces." });
        }
    }
    let workspaces = || workers.iter().flat_map(|it| &it.heartbeat.workspaces);
    let waiting: u64 = groups.iter().map(|it| it.queued).sum();
    let is_idle = |it: &WorkspaceState| matches!(it, WorkspaceState::Idle { .. });
    if waiting > 0 && !workers.is_empty() && !workspaces().any(is_idle) {
        found.push(html! { a href="/builds?state=ENQUEUED" { (waiting) " waiting" } ": all " (workspaces().count()) " workspaces are busy or closed." });
    }
    for WorkerView { heartbeat: it } in
        workers.iter().filter(|it| it.heartbeat.short.is_none() && !it.heartbeat.window.red.is_empty())
    {
        found.push(html! { "Worker " a href={ "#" (it.worker) } { (it.worker) } " is overloaded: " (escaped(&it.window.red.join("; "))) });
    }
    for it in executors.iter().filter(|it| !it.window.red.is_empty()) {
        found.push(html! { "Executor " a href={ "#" (it.executor) } { (it.executor) } " is overloaded: " (escaped(&it.window.red.join("; "))) });
    }
    for it in groups.iter().filter(|it| it.queued > 0) {
        if let Some(why) = &it.throttled {
            found.push(html! { "Group " a href={ "/builds?state=ENQUEUED&group=" (it.group) } { (it.group) } " has " (it.queued) " builds waiting: " (escaped(why)) });
        }
    }
    html! {
        section aria-labelledby="attention" {
            h2 #attention { "Needs attention" }
            @if found.is_empty() { p.good { "✓ Nothing." } } @else { ul.attention { @for it in found.iter().take(20) { li { (it) } } } }
            @if found.len() > 20 { p { (found.len() - 20) " more" } }
        }
    }
}

fn worker_rank(status: WorkerStatus) -> u8 {
    match status {
        WorkerStatus::Full => 0,
        WorkerStatus::Gone => 1,
        WorkerStatus::Draining => 2,
        WorkerStatus::Ready => 3,
    }
}

fn executor_rank(it: &ExecutorHeartbeat) -> u8 {
    match it.status {
        ExecutorStatus::Closed if !it.is_full() => 0,
        ExecutorStatus::Gone => 1,
        ExecutorStatus::Draining => 2,
        ExecutorStatus::Closed | ExecutorStatus::Ready => 3,
    }
}

fn of_workers(workers: &[WorkerView], now: Millis) -> Markup {
    if workers.is_empty() {
        return html! { p { "No worker is running. Start one with " code { "forebay serve worker" } "." } };
    }
    let rows = html! {
        @for WorkerView { heartbeat } in workers {
            tr id=(heartbeat.worker) {
                td { (heartbeat.worker) }
                td { (escaped(&heartbeat.host)) }
                td { (worker_status(heartbeat.status, heartbeat.short.as_deref())) }
                td.slots { (workspaces(&heartbeat.workspaces)) }
                td { (window(&heartbeat.window)) }
                td { (ago(heartbeat.started_at_ms, now)) }
                td { (drain(heartbeat.worker.as_str(), heartbeat.status == WorkerStatus::Draining)) }
            }
        }
    };
    table("Workers", &["Worker", "Machine", "Status", "Workspaces", "Window", "Started", "Actions"], &rows)
}

fn worker_status(status: WorkerStatus, short: Option<&str>) -> Markup {
    let (class, text) = match status {
        WorkerStatus::Ready => ("good", "✓ ready"),
        WorkerStatus::Draining => ("warn", "○ draining"),
        WorkerStatus::Full => ("bad", "! accepts nothing"),
        WorkerStatus::Gone => ("bad", "✗ gone"),
    };
    html! {
        span class={ "badge " (class) } { (text) }
        @if let Some(why) = short { ": " (escaped(why)) }
    }
}

/// The points of a congestion window in use and its size, with what sensors report.
fn window(state: &WindowState) -> Markup {
    html! {
        @if state.size > 0 { (state.used) " of " (state.size) } @else { "off" }
        @for why in &state.red { br; span.warn { (escaped(why)) } }
    }
}

/// Each workspace as a box, in which a build is a link.
fn workspaces(all: &[WorkspaceState]) -> Markup {
    html! {
        @for state in all {
            @match state {
                WorkspaceState::Idle { .. } => { span.slot title="idle" { "idle" } }
                WorkspaceState::Closed { .. } => { span.slot title="takes no build now: the congestion window admits none, or it starts" { "closed" } }
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
            tr id=(it.executor) {
                td { (it.executor) }
                td { (it.pool) }
                td { (escaped(&it.host)) }
                td { (executor_status(it)) }
                td { (slots(it)) }
                td { (processors(it.held.cpu_millis)) " of " (processors(it.capacity.cpu_millis)) }
                td { (size(it.held.memory_bytes)) " of " (size(it.capacity.memory_bytes)) }
                td { (window(&it.window)) }
                td { (ago(it.started_at_ms, now)) }
                td { (drain(it.executor.as_str(), it.status == ExecutorStatus::Draining)) }
            }
        }
    };
    let head = [
        "Executor",
        "Pool",
        "Machine",
        "Status",
        "Slots",
        "Processors",
        "Memory",
        "Window",
        "Started",
        "Order",
    ];
    html! {
        (table("Executors", &head, &rows))
        @if executors.len() < FEW { p { "There are fewer than " (FEW) " executors: if one fails, much of what they can do is gone." } }
    }
}

/// The slots as a picture: full ones are in use.
fn slots(it: &ExecutorHeartbeat) -> Markup {
    let (used, all) = (it.running.len(), usize::from(it.slots));
    let shown = all.min(32);
    html! {
        @if all > 0 {
            svg.slots role="img" aria-label={ (used) " of " (all) " slots in use" } width=(shown * 9) height="14" viewBox={ "0 0 " (shown * 9) " 14" } {
                @for number in 0..shown { rect class=(if number * all < used * shown { "used" } else { "free" }) x=(number * 9) y="1" width="7" height="12" {} }
            }
            " " (used) " of " (all)
        }
    }
}

fn executor_status(executor: &ExecutorHeartbeat) -> Markup {
    let (class, text) = match executor.status {
        ExecutorStatus::Ready => ("good", "✓ ready".to_owned()),
        ExecutorStatus::Draining => ("warn", "○ draining".to_owned()),
        ExecutorStatus::Closed if executor.is_full() => ("busy", "▶ full".to_owned()),
        ExecutorStatus::Closed => ("bad", format!("! closed: {}", executor.window.red.join("; "))),
        ExecutorStatus::Gone => ("bad", "✗ gone".to_owned()),
    };
    html! { span class={ "badge " (class) } { (escaped(&text)) } }
}

/// A button that drains a process, behind a question, or that undoes it.
fn drain(id: &str, is_draining: bool) -> Markup {
    html! {
        @if is_draining {
            form method="post" action={ "/farm/" (id) "/resume" } { button.small { "Accept work again" } }
        } @else {
            details id={ "drain-" (id) } {
                summary { "Drain" }
                form method="post" action={ "/farm/" (id) "/drain" } {
                    p { "It finishes what it runs, and accepts nothing new." }
                    button.small { "Drain " (id) }
                }
            }
        }
    }
}

fn of_plans(plans: &[ScalePlan], now: Millis) -> Markup {
    let rows = html! {
        @for it in plans {
            tr {
                td { (it.pool) }
                td.number { (it.desired) }
                td.number { (it.needed) }
                td.number { (it.seen.waiting) }
                td.number { (it.seen.running) }
                td { (short(&it.why, 200)) }
                td { (ago(it.at_ms, now)) }
            }
        }
    };
    table(
        "Plan of the autoscaler",
        &["Pool", "Desired", "Needed", "Waiting", "Running", "Why", "Decided"],
        &rows,
    )
}

/// Number of waiting builds of each priority, and how long the first of them waits.
fn queues(groups: &[GroupStanding], now: Millis) -> Markup {
    let mut waiting: Vec<(&Group, &WaitingBuilds)> =
        groups.iter().flat_map(|it| it.waiting.iter().map(|waiting| (&it.group, waiting))).collect();
    if waiting.is_empty() {
        return html! { p { "No build waits." } };
    }
    waiting.sort_by_key(|(_, it)| (it.priority.rank(), Reverse(it.count)));
    let rows = html! {
        @for (group, it) in waiting {
            tr {
                td { (it.priority) }
                td { a href={ "/builds?state=ENQUEUED&group=" (group) "&priority=" (it.priority) } { (group) } }
                td.number { (it.count) }
                td.number { @if let Some(at) = it.first_since_ms { (since(at, now)) } }
            }
        }
    };
    table("Queues", &["Priority", "Group", "Waiting", "The first waits"], &rows)
}

fn of_groups(groups: &[GroupStanding]) -> Markup {
    if groups.is_empty() {
        return html! { p { "No group has a quota or a build." } };
    }
    let rows = html! {
        @for it in groups {
            tr {
                td { a href={ "/builds?group=" (it.group) } { (it.group) } }
                td.number { (it.queued) }
                td { @if it.in_progress.is_empty() { "none" } @else { (it.in_progress) } }
                td { a href={ "/quota?group=" (it.group) } { @match &it.quota { Some(quota) => { (quota.esu) } None => { "none" } } } }
                td { @if it.queued > 0 { (short(it.throttled.as_deref().unwrap_or(NOT_QUOTA), 200)) } }
            }
        }
    };
    table(
        "Groups",
        &["Group", "Waiting", "ESU in progress", "Quota, ESU", "Why the first build waits"],
        &rows,
    )
}

/// Handles `POST /farm/{id}/drain`: the worker or executor finishes what it runs, and accepts nothing new.
pub(crate) async fn drain_one(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Redirect, ErrorPage> {
    order(&site, &caller, names.text("id"), Order::Drain).await
}

/// Handles `POST /farm/{id}/resume`: the worker or executor accepts work again.
pub(crate) async fn resume_one(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Redirect, ErrorPage> {
    order(&site, &caller, names.text("id"), Order::Resume).await
}

async fn order(site: &Site, caller: &Caller, id: &str, order: Order) -> Result<Redirect, ErrorPage> {
    site.client().order(id, order).await.map_err(Failure::from)?;
    caller.did(AuditKind::Drain, id, Some(order.as_str()));
    Ok(Redirect::to("/farm"))
}
