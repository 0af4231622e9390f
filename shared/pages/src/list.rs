//! The page with the list of builds, and the page with those of the reader.

use std::time::Duration;

use axum::{
    extract::{Form, State as FromState},
    http::{HeaderValue, header},
    response::{Html, IntoResponse, Redirect},
};
use http_api::{Failure, QueryParameters, list_request};
use maud::{Markup, html};
use model::{BuildView, Group, ListReply, ListRequest, Millis, Outcome, Priority, State};
use serde::Deserialize;

use crate::{
    layout::{ago, badge, choice, look, page_for, path_of, short, since, span, table, url_part},
    patience::needed,
    reader::Reader,
    site::{Asked, ME, Site},
    view::{Changes, Part, View},
};

/// The fields of the filter, with what they are about.
const TEXTS: [(&str, &str); 3] =
    [("group", "Group"), ("submitter", "Submitter"), ("label", "Label, as NAME=VALUE")];
/// Times back from now.
const WITHIN: [(&str, &str, u64); 4] = [
    ("1h", "the last hour", 3600),
    ("1d", "the last day", 86_400),
    ("7d", "the last 7 days", 7 * 86_400),
    ("30d", "the last 30 days", 30 * 86_400),
];

/// Values and words of the filter by outcome.
const OUTCOMES: [(&str, &str); 7] = [
    ("succeeded", "succeeded"),
    ("failed", "failed"),
    ("timed_out", "timed out"),
    ("cancelled", "cancelled"),
    ("expired", "expired"),
    ("lost", "lost"),
    ("rejected", "rejected"),
];

/// Handles `GET /`: leads to the builds.
pub(crate) async fn first() -> Redirect {
    Redirect::to("/builds")
}

/// A page that leads to those of each group of the reader.
pub(crate) fn choice_of_group(groups: &[(Group, String)], reader: &Reader) -> Html<String> {
    let content = html! {
        h1 { "Which group?" }
        p { "You may read the builds of these groups:" }
        ul { @for (group, path) in groups { li { a href=(path) { (group) } } } }
    };
    page_for("Which group?", &content, false, reader)
}

/// Handles `GET /builds`: lists the builds that match.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let (query, now) = (&asked.query, site.now());
    let mut request = list_request(query)?;
    if let Some(within) = query.last("within") {
        let found = WITHIN.into_iter().find(|(name, ..)| *name == within);
        let (.., seconds) = found.ok_or_else(|| Failure::invalid("within: expected 1h, 1d, 7d or 30d"))?;
        request.since_ms = Some(Millis(now.0.saturating_sub(seconds * 1000)));
    }
    let group = query.parsed("group")?;
    let found = needed(site.client().builds(group.as_ref(), &request)).await?;
    let list = html! {
        @if found.builds.is_empty() { (nothing(query.is_empty())) } @else {
            (strip(&found.builds))
            (builds("Builds", &found.builds, now))
        }
        (further(query, &found))
    };
    // Only on the first page are new builds added.
    let changes = if request.cursor.is_none() { Changes::Builds } else { Changes::Never };
    let parts = vec![Part::Fixed(html! { h1 { "Builds" } (filter(query)) }), Part::Live("list", list)];
    Ok(View { title: "Builds".to_owned(), parts, changes })
}

fn filter(query: &QueryParameters) -> Markup {
    let value = |name| query.last(name).unwrap_or_default();
    let states = [("ENQUEUED", "waiting"), ("IN_PROGRESS", "running"), ("FINISHED", "ended")];
    let within = WITHIN.into_iter().map(|(name, word, _)| (name, word));
    html! {
        form.filter role="search" method="get" action="/builds" {
            label { "Command or label contains " input type="search" name="text" value=(value("text")); }
            @for (name, title) in TEXTS { label { (title) " " input name=(name) value=(value(name)); } }
            (choice("State", "state", states.into_iter(), &value("state")))
            (choice("Outcome", "outcome", OUTCOMES.into_iter(), &value("outcome")))
            (choice("Priority", "priority", Priority::ALL.map(|it| (it.as_str(), it.as_str())).into_iter(), &value("priority")))
            (choice("Submitted in", "within", within, &value("within")))
            button { "Show" }
            @if !query.is_empty() { " " a href="/builds" { "All builds" } }
        }
    }
}

fn nothing(all: bool) -> Markup {
    html! {
        @if all {
            p { "There are no builds yet. Submit one:" }
            pre tabindex="0" { "forebay submit --follow -- sh -c 'echo hello'" }
        } @else {
            p { "No build matches. " a href="/builds" { "Show all builds" } }
        }
    }
}

/// A bar for each build, the newest last: how it ended, and how long it ran compared with the others.
fn strip(builds: &[BuildView]) -> Markup {
    const WIDTH: usize = 10;
    let seconds = |view: &BuildView| view.record.result().map_or(0.0, |result| result.wall_seconds);
    let most = builds.iter().map(seconds).fold(0.001, f64::max);
    let width = builds.len() * WIDTH;
    html! {
        p.caption { "One bar for each build below, the newest on the right; higher ones ran longer." }
        svg.strip aria-hidden="true" viewBox={ "0 0 " (width) " 40" } width=(width) height="40" {
            @for (number, view) in builds.iter().rev().enumerate() {
                @let height = 8 + scaled(seconds(view) / most);
                @let (class, sign, word) = look(&view.record);
                a href=(path_of(&view.record.build.key())) tabindex="-1" {
                    title { (sign) " " (word) ": " (short(&work(view), 80)) }
                    rect class=(class) x=(number * WIDTH + 1) y=(40 - height) width=(WIDTH - 2) height=(height) {}
                }
            }
        }
    }
}

/// Up to 30 for a share of 1; short ones are drawn larger than they are.
fn scaled(share: f64) -> u64 {
    (0..=30_u8).rev().find(|height| f64::from(*height) <= 30.0 * share.sqrt()).map_or(0, u64::from)
}

/// A table of builds.
pub(crate) fn builds(name: &str, builds: &[BuildView], now: Millis) -> Markup {
    let rows = html! { @for view in builds { (row(view, now)) } };
    table(name, &["State", "Build", "Group", "Priority", "Submitter", "Submitted", "Took", "Command"], &rows)
}

fn row(view: &BuildView, now: Millis) -> Markup {
    let (record, build) = (&view.record, &view.record.build);
    let id = build.id.to_string();
    let first: String = id.chars().take(13).collect();
    html! {
        tr {
            td { (badge(record)) }
            td { a.row href=(path_of(&build.key())) title=(id) { (first) } }
            td { a href={ "/builds?group=" (build.group) } { (build.group) } }
            td { (build.priority) }
            td { @if let Some(name) = &build.submitter { a href={ "/builds?submitter=" (url_part(name)) } { (short(name, 30)) } } }
            td { (ago(build.submitted_at_ms, now)) }
            td { (took(view, now)) }
            td.command { (short(&work(view), 160)) }
        }
    }
}

/// How long a build ran, runs or waits.
fn took(view: &BuildView, now: Millis) -> Markup {
    let record = &view.record;
    html! {
        @match (record.result(), record.invocation()) {
            (Some(result), _) => (span(Duration::try_from_secs_f64(result.wall_seconds).unwrap_or_default())),
            (None, Some(run)) => (since(run.started_at_ms, now)),
            (None, None) => { "waits " (since(record.queue.enqueued_at_ms, now)) }
        }
    }
}

/// What a build does, in a line.
pub(crate) fn work(view: &BuildView) -> String {
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

/// Number of builds of each kind on the page of the reader.
const MINE: usize = 20;

/// Handles `GET /mine`: the builds of the reader, those that need attention first.
pub(crate) async fn mine(site: Site, asked: Asked) -> Result<View, Failure> {
    let Some(me) = &asked.me else { return Ok(View::fixed("My builds", who())) };
    let now = site.now();
    let of = |state: Option<State>, outcome: Option<Outcome>| ListRequest {
        submitter: Some(me.clone()),
        state,
        outcome,
        limit: Some(MINE),
        ..ListRequest::default()
    };
    let (waiting, running, failed, last) = (
        of(Some(State::Enqueued), None),
        of(Some(State::InProgress), None),
        of(None, Some(Outcome::Failed)),
        of(None, None),
    );
    let client = site.client();
    let group = asked.query.parsed::<Group>("group")?;
    let (waiting, running, failed, last) = tokio::try_join!(
        client.builds(group.as_ref(), &waiting),
        client.builds(group.as_ref(), &running),
        client.builds(group.as_ref(), &failed),
        client.builds(group.as_ref(), &last)
    )?;
    let part = |title: &str, found: &ListReply| {
        html! { @if !found.builds.is_empty() { h2 { (title) } (builds(title, &found.builds, now)) } }
    };
    let shown = html! {
        (part("Failed", &failed))
        (part("Waiting", &waiting))
        (part("Running", &running))
        @if last.builds.is_empty() {
            p { "There is no build of submitter " b { (short(me, 60)) } ". Set the submitter of a build like this:" }
            pre tabindex="0" { "forebay submit --submitter " (short(me, 60)) " -- make test" }
        }
        (part("All, newest first", &last))
        p { a href={ "/builds?submitter=" (url_part(me)) } { "All builds of " (short(me, 60)) } }
    };
    let head = html! {
        h1 { "Builds of " (short(me, 60)) }
        details #who { summary { "This is not me" } (name_form()) }
    };
    let parts = vec![Part::Fixed(head), Part::Live("list", shown)];
    Ok(View { title: "My builds".to_owned(), parts, changes: Changes::Builds })
}

fn who() -> Markup {
    html! {
        h1 { "My builds" }
        p { "Which builds are yours? Give the name with which you submit them: the option " code { "--submitter" } ", or the field " code { "submitter" } " of a request." }
        (name_form())
    }
}

fn name_form() -> Markup {
    html! {
        form.filter method="post" action="/mine" {
            label { "Submitter " input name="submitter" required maxlength="200" autocomplete="username"; }
            button { "Show my builds" }
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct Name {
    submitter: String,
}

/// Handles `POST /mine`: remembers the name of the reader in this browser.
pub(crate) async fn remember(
    FromState(_): FromState<Site>,
    Form(Name { submitter }): Form<Name>,
) -> impl IntoResponse {
    let name: String = submitter.trim().chars().take(200).collect();
    let cookie = format!("{ME}={}; Path=/; Max-Age=31536000; SameSite=Strict; HttpOnly", url_part(&name));
    // The name has only characters of a URL.
    let cookie = HeaderValue::try_from(cookie).unwrap_or(HeaderValue::from_static("forebay_submitter="));
    ([(header::SET_COOKIE, cookie)], Redirect::to("/mine"))
}
