//! The page with the list of builds.

use axum::{extract::State as FromState, response::Html};
use maud::{Markup, html};
use model::{BuildView, ListReply, Millis, Outcome, Priority};

use super::layout::{ErrorPage, ago, badge, page, path_of, short, span};
use crate::{builds::list_request, gateway::Gateway, input::QueryParameters};

/// The fields of the filter, with what they are about.
const TEXTS: [(&str, &str); 4] =
    [("group", "Group"), ("submitter", "Submitter"), ("label", "Label, as NAME=VALUE"), ("text", "Text")];

/// Handles `GET /builds`: lists the builds that match.
pub(super) async fn show(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Html<String>, ErrorPage> {
    // A form also sends the fields that are empty.
    let query = query.without_empty();
    let request = list_request(&query)?;
    let group = query.parsed("group")?;
    let found = gateway.client.builds(group.as_ref(), &request).await?;
    let now = gateway.client.bus().now();
    let content = html! {
        h1 { "Builds" }
        (filter(&query))
        @if found.builds.is_empty() { (nothing(query.is_empty())) } @else { (table(&found.builds, now)) }
        (further(&query, &found))
    };
    Ok(page("Builds", &content))
}

fn filter(query: &QueryParameters) -> Markup {
    let value = |name| query.last(name).unwrap_or_default();
    let states = [("ENQUEUED", "waiting"), ("IN_PROGRESS", "running"), ("FINISHED", "ended")];
    html! {
        form.filter role="search" method="get" action="/builds" {
            @for (name, title) in TEXTS {
                label { (title) " " input name=(name) value=(value(name)); }
            }
            (choice("State", "state", states.into_iter(), &value("state")))
            (choice("Outcome", "outcome", Outcome::ALL.map(|it| (it.as_str(), it.as_str())).into_iter(), &value("outcome")))
            (choice("Priority", "priority", Priority::ALL.map(|it| (it.as_str(), it.as_str())).into_iter(), &value("priority")))
            button { "Show" }
            @if !query.is_empty() { " " a href="/builds" { "All builds" } }
        }
    }
}

fn choice<'a>(
    title: &str,
    name: &str,
    values: impl Iterator<Item = (&'a str, &'a str)>,
    chosen: &str,
) -> Markup {
    html! {
        label {
            (title) " "
            select name=(name) {
                option value="" { "any" }
                @for (value, word) in values {
                    option value=(value) selected[value.eq_ignore_ascii_case(chosen)] { (word) }
                }
            }
        }
    }
}

fn nothing(all: bool) -> Markup {
    html! {
        @if all {
            p { "There are no builds yet. Submit one:" }
            pre { "forebay submit --follow -- sh -c 'echo hello'" }
        } @else {
            p { "No build matches. " a href="/builds" { "Show all builds" } }
        }
    }
}

fn table(builds: &[BuildView], now: Millis) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Builds" {
            table {
                thead { tr { @for head in ["State", "Build", "Group", "Priority", "Submitted", "Took", "Command"] { th scope="col" { (head) } } } }
                tbody { @for view in builds { (row(view, now)) } }
            }
        }
    }
}

fn row(view: &BuildView, now: Millis) -> Markup {
    let (record, build) = (&view.record, &view.record.build);
    let id = build.id.to_string();
    let first: String = id.chars().take(13).collect();
    html! {
        tr {
            td { (badge(record)) }
            td { a href=(path_of(&build.key())) title=(id) { (first) } }
            td { a href={ "/builds?group=" (build.group) } { (build.group) } }
            td { (build.priority) }
            td { (ago(build.submitted_at_ms, now)) }
            td { (took(view, now)) }
            td.command { (short(&work(view), 200)) }
        }
    }
}

/// How long a build ran, runs or waits.
fn took(view: &BuildView, now: Millis) -> String {
    let record = &view.record;
    match (record.result(), record.invocation()) {
        (Some(result), _) => {
            span(std::time::Duration::try_from_secs_f64(result.wall_seconds).unwrap_or_default())
        }
        (None, Some(run)) => span(now.since(run.started_at_ms)),
        (None, None) => format!("waits {}", span(now.since(record.queue.enqueued_at_ms))),
    }
}

/// What a build does, in a line.
pub(super) fn work(view: &BuildView) -> String {
    let build = &view.record.build;
    match &build.job {
        Some(job) => format!("job of {} tasks", job.tasks),
        None => build.command.join(" "),
    }
}

fn further(query: &QueryParameters, found: &ListReply) -> Markup {
    html! {
        @if let Some(next) = &found.next {
            p { a rel="next" href={ "/builds?" (query.with("cursor", next)) } { "Older builds" } }
        }
        @if found.truncated && found.next.is_none() {
            p { "There are more builds than fit here: use the filter." }
        }
    }
}
