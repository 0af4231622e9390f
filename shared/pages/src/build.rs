//! The page of a build.

mod again;
mod job;
mod orders;
mod outputs;
mod overview;
mod phases;
mod targets;

use std::time::Duration;

use client::{OpenLog, RunChoice};
use http_api::Failure;
use maud::{Markup, html};
use model::{ActionView, ActionsRequest, Attempt, BuildView, InvocationView, State, WhyReply};

use crate::{
    console,
    layout::{badge, icon_title, path_of, short},
    list::work,
    patience::answer,
    site::{Asked, Scope, Site},
    view::{Changes, Part, View},
};

pub(crate) use again::quoted;
pub(crate) use job::{status_badge, tasks as tasks_so_far};
pub(crate) use orders::{cancel, resubmit};
pub(crate) use outputs::file;
pub(crate) use targets::{call, statuses as target_statuses};

/// Time after which a waiting build is read again: its place changes without an event of its own.
const AGAIN_WAITING: Duration = Duration::from_secs(2);
const AGAIN_RUNNING: Duration = Duration::from_secs(10);
/// Maximum number of actions that are shown.
const ACTIONS_MAX: usize = 1000;

/// What the page of a build is made of. What the archive does not say in time is left out.
struct Facts {
    log: OpenLog,
    why: Option<WhyReply>,
    runs: Vec<InvocationView>,
    actions: Vec<ActionView>,
    /// Whether there are more actions.
    more_actions: bool,
}

/// Handles `GET /builds/{group}/{id}`: shows a build.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let (key, shown) = (asked.names.key()?, console::Shown::of(&asked.query)?);
    if asked.scope == Scope::Output {
        return output(&site, &asked, &shown).await;
    }
    let facts = read(&site, &asked, &shown).await?;
    let (log, view) = (&facts.log, &facts.log.build);
    let (base, now) = (console::Base::of(&key, log), site.now());
    let is_page = asked.scope == Scope::Page;
    let shown = if is_page { shown } else { shown.only_state() };
    let window = console::window(&site, log, &shown).await?;
    let last = if shown.is_end() {
        console::end_of(&window, &base)
    } else {
        html! {}
    };
    let (job, calls) = tokio::join!(job::part(&site, view), targets::read(&site, view));
    let tests = targets::failed_tests(&calls);
    let text = asked.query.last("q");
    let found = if let (Some(text), true) = (&text, is_page) {
        console::found(&site, log, &base, text, &asked.query).await?
    } else {
        html! {}
    };
    let mut parts = vec![
        Part::Live("head", head(view)),
        Part::Live("why", overview::reasons(view, facts.why.as_ref(), &tests, &last, now)),
        Part::Live("orders", orders::forms(view)),
        Part::Live("facts", overview::facts(view, &site.settings, now)),
        Part::Live("attempts", attempts(view, log.attempt, &facts.runs)),
        Part::Live("phases", phases::part(&facts, now)),
        Part::Live("job", job),
        Part::Live("targets", targets::part(&calls)),
        Part::Fixed(html! { h2 #console { "Console" } }),
        Part::Live("log", console::state(&window)),
    ];
    if is_page {
        parts
            .push(Part::Fixed(html! { (found) (console::section(&base, &window, &shown, text.as_deref())) }));
    }
    parts.push(Part::Live("outputs", outputs::part(view)));
    if is_page {
        parts.push(Part::Fixed(again::part(view, &asked, site.client().bus().url())));
    }
    Ok(View { title: icon_title(&view.record, &work(view)), parts, changes: changes(view) })
}

/// Only how long the log is.
async fn output(site: &Site, asked: &Asked, shown: &console::Shown) -> Result<View, Failure> {
    let log = site.api.open_log(&asked.names.key()?, shown.choice).await?;
    let window = console::window(site, &log, &shown.only_state()).await?;
    let parts = vec![Part::Live("log", console::state(&window))];
    Ok(View { title: String::new(), parts, changes: changes(&log.build) })
}

/// What changes the page while the build is in this state.
fn changes(view: &BuildView) -> Changes {
    let key = view.record.build.key();
    match view.state {
        State::Enqueued => Changes::Build { key, again: AGAIN_WAITING },
        State::InProgress => Changes::Build { key, again: AGAIN_RUNNING },
        State::Finished => Changes::Never,
    }
}

async fn read(site: &Site, asked: &Asked, shown: &console::Shown) -> Result<Facts, Failure> {
    let key = asked.names.key()?;
    let log = site.api.open_log(&key, shown.choice).await?;
    let client = site.client();
    let waits = log.build.state == State::Enqueued;
    let why = async { if waits { client.why(&key).await.ok() } else { None } };
    let request = ActionsRequest {
        group: Some(key.group.clone()),
        build: Some(key.id),
        attempt: match shown.choice {
            RunChoice::Attempt(attempt) => Some(attempt),
            RunChoice::Last | RunChoice::Invocation(_) => None,
        },
        limit: Some(ACTIONS_MAX),
        ..ActionsRequest::default()
    };
    let (why, runs, actions) =
        tokio::join!(why, answer(client.invocations(&key)), answer(client.actions(&request)));
    let more_actions = actions.as_ref().is_some_and(|reply| reply.next.is_some());
    Ok(Facts {
        log,
        why,
        runs: runs.map(|reply| reply.invocations).unwrap_or_default(),
        actions: actions.map(|reply| reply.actions).unwrap_or_default(),
        more_actions,
    })
}

fn head(view: &BuildView) -> Markup {
    html! { h1 { (badge(&view.record)) " " span.command { (short(&work(view), 160)) } } }
}

/// The attempts as tabs, with why each of the earlier ones ended.
fn attempts(view: &BuildView, shown: Option<Attempt>, runs: &[InvocationView]) -> Markup {
    let path = path_of(&view.record.build.key());
    let last = view.record.attempt.0;
    let reason = |number: u32| {
        let run = runs.iter().find(|run| run.attempt == Attempt(number))?;
        run.end.as_ref()?.message.as_deref().map(|message| short(message, 120))
    };
    html! {
        @if last > 1 {
            nav.tabs aria-label="Attempts" {
                @for number in 1..=last.min(20) {
                    a href={ (path) "?attempt=" (number) } title=[reason(number)]
                        aria-current=[(shown == Some(Attempt(number))).then_some("page")] { "Attempt " (number) }
                }
            }
            @if let Some(reason) = shown.filter(|shown| shown.0 < last).and_then(|shown| reason(shown.0)) {
                p.note { "This attempt ended: " (reason) }
            }
        }
    }
}
