//! The page of a build.

use std::time::Duration;

use axum::{
    extract::State as FromState,
    response::{Html, Redirect},
};
use client::{RunChoice, text::size};
use maud::{Markup, html};
use model::{Attempt, BuildResult, BuildView, Millis, OutputFile, State, WhyReply};
use telemetry::escaped;

use super::{
    console,
    layout::{ErrorPage, ago, badge, fact, page, path_of, short, span},
    list::work,
};
use crate::{
    gateway::Gateway,
    input::{PathParameters, QueryParameters},
};

/// Maximum number of outputs that are listed.
const OUTPUTS_MAX: usize = 500;

/// Handles `GET /builds/{group}/{id}`: shows a build.
pub(super) async fn show(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Html<String>, ErrorPage> {
    let (key, query) = (names.key()?, query.without_empty());
    let attempt = query.number("attempt")?.map(Attempt);
    let choice = attempt.map_or(RunChoice::Last, RunChoice::Attempt);
    let log = gateway.open_log(&key, choice).await?;
    let view = log.build.clone();
    let now = gateway.client.bus().now();
    let why = if view.state == State::Enqueued { gateway.client.why(&key).await.ok() } else { None };
    let shown = console::Shown::of(&query)?;
    let window = console::window(&gateway, &log, &shown).await?;
    let last = if shown.is_end() {
        console::end_of(&window)
    } else {
        html! {}
    };
    let content = html! {
        h1 { (badge(&view.record)) " " span.command { (short(&work(&view), 160)) } }
        (failure(&view, &last))
        @if let Some(why) = &why { (waits(why, now)) }
        (facts(&view, now))
        (command(&view))
        (cancel_form(&view))
        (attempts(&view, log.attempt))
        (console::section(&key, &log, &window, &shown))
        @if let Some(result) = view.record.result() { (outputs(&view, result)) }
    };
    Ok(page(&work(&view), &content))
}

/// Handles `POST /builds/{group}/{id}/cancel`, and shows the build again.
pub(super) async fn cancel(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
) -> Result<Redirect, ErrorPage> {
    let key = names.key()?;
    gateway.client.cancel(&key, Some("cancelled on its page".to_owned())).await?;
    Ok(Redirect::to(&path_of(&key)))
}

/// Why a build failed, with the last lines of its output.
fn failure(view: &BuildView, last: &Markup) -> Markup {
    let reason = view.record.result().and_then(|result| result.reason.as_ref());
    html! {
        @if let Some(reason) = reason {
            section.alert aria-labelledby="failure" {
                h2 #failure { "Why it did not succeed" }
                p { (escaped(&reason.message)) }
                (last)
            }
        }
    }
}

fn waits(why: &WhyReply, now: Millis) -> Markup {
    html! {
        section.note aria-labelledby="wait" {
            h2 #wait { "Why it waits" }
            p { (escaped(&why.reason)) }
            @if let Some(waiting) = &why.waiting {
                p {
                    "Place " (waiting.place) " of " (waiting.queued) " in group " (why.group) ". "
                    @match waiting.expected_start_ms {
                        Some(at) if at <= now => { "It is about to start." }
                        Some(at) => { "It starts in about " (span(at.since(now))) "." }
                        None => { "Its start cannot be predicted yet." }
                    }
                }
            }
        }
    }
}

fn facts(view: &BuildView, now: Millis) -> Markup {
    let (record, build) = (&view.record, &view.record.build);
    let run = record.invocation();
    let result = record.result();
    let seconds = |seconds: f64| span(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let labels: Vec<String> = build.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let waited = run.map(|run| span(run.started_at_ms.since(record.queue.enqueued_at_ms)));
    let machine = run.map(|run| format!("{}, workspace {}", run.worker, run.workspace));
    html! {
        dl.facts {
            (fact("Build", Some(build.key().to_string())))
            (fact("Priority", Some(build.priority.to_string())))
            (fact("Submitter", build.submitter.as_deref().map(escaped)))
            (fact("Submitted", Some(ago(build.submitted_at_ms, now))))
            (fact("Waited", waited))
            (fact("Started", run.map(|run| ago(run.started_at_ms, now))))
            (fact("Prepared in", result.and_then(|result| result.preparation_seconds).map(seconds)))
            (fact("Ran for", result.map(|result| seconds(result.wall_seconds))))
            (fact("Processor time", result.map(|result| seconds(result.cpu_seconds))))
            (fact("Exit code", result.and_then(|result| result.exit_code)))
            (fact("Attempt", Some(format!("{} of {}", record.attempt, build.max_attempts))))
            (fact("Worker", machine))
            (fact("Invocation", record.invocation_id().map(|id| id.to_string())))
            (fact("Labels", (!labels.is_empty()).then(|| escaped(&labels.join(" ")))))
        }
    }
}

/// The whole command, a word in each line.
fn command(view: &BuildView) -> Markup {
    html! {
        @if view.record.build.job.is_none() {
            details {
                summary { "Command" }
                pre { @for word in &view.record.build.command { (word) "\n" } }
            }
        }
    }
}

fn cancel_form(view: &BuildView) -> Markup {
    let path = path_of(&view.record.build.key());
    html! {
        @if view.state != State::Finished {
            details {
                summary { "Cancel this build" }
                form method="post" action={ (path) "/cancel" } {
                    p { "Its processes are killed, and what they wrote so far is kept." }
                    button { "Cancel the build" }
                }
            }
        }
    }
}

fn attempts(view: &BuildView, shown: Option<Attempt>) -> Markup {
    let path = path_of(&view.record.build.key());
    let last = view.record.attempt.0;
    html! {
        @if last > 1 {
            nav aria-label="Attempts" {
                @for number in 1..=last.min(20) {
                    a href={ (path) "?attempt=" (number) } aria-current=[(shown == Some(Attempt(number))).then_some("page")] {
                        "Attempt " (number)
                    }
                    " "
                }
            }
        }
    }
}

fn outputs(view: &BuildView, result: &BuildResult) -> Markup {
    let key = view.record.build.key();
    let link = |file: &OutputFile| {
        let path = file.path.split('/').map(url_part).collect::<Vec<_>>().join("/");
        format!("/v1/builds/{}/{}/outputs/{path}", key.group, key.id)
    };
    html! {
        @if !result.outputs.is_empty() {
            h2 { "Outputs" }
            ul {
                @for file in result.outputs.iter().take(OUTPUTS_MAX) {
                    li { a href=(link(file)) download { (escaped(&file.path)) } " " (size(file.size_bytes)) }
                }
            }
            @if result.outputs.len() > OUTPUTS_MAX { p { (result.outputs.len() - OUTPUTS_MAX) " more" } }
        }
        @for pattern in &result.outputs_missing { p { "No file matches " code { (escaped(pattern)) } } }
    }
}

/// A part of a path as it is in a URL.
fn url_part(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}
