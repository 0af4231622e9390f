//! Why a build waits or failed, and the facts about it.

use std::time::Duration;

use maud::{Markup, html};
use model::{BuildView, Context, Millis, Outcome, WhyReply};
use settings::PageSettings;
use telemetry::escaped;

use crate::layout::{ago, fact, in_time, short, since, span, url_part};

/// Why a build did not succeed, with the last lines of its output; or why it waits.
pub(super) fn reasons(
    view: &BuildView,
    why: Option<&WhyReply>,
    tests: &Markup,
    last: &Markup,
    now: Millis,
) -> Markup {
    let reason = view.record.result().and_then(|result| result.reason.as_ref());
    let retry = view.record.queue.retry.as_ref().filter(|_| view.record.result().is_none());
    html! {
        @if let Some(reason) = reason {
            section.alert aria-labelledby="failure" {
                h2 #failure { @if is_failure(view) { "Why it did not succeed" } @else { "Why it ended" } }
                p { (escaped(&reason.message)) }
                (tests)
                (last)
                @if let Some((path, what)) = similar(view).filter(|_| is_failure(view)) {
                    p { a href=(path) { "Did it fail before? Builds " (what) } }
                }
            }
        }
        @if let Some(retry) = retry {
            p.note { "It was requeued: " (escaped(&retry.reason.message)) }
        }
        @if let Some(why) = why { (waits(why, now)) }
    }
}

/// Maximum number of characters of a text that is searched for.
const TEXT_MAX: usize = 200;

/// Whether it ended by a fault: it was neither cancelled nor too long in the queue.
fn is_failure(view: &BuildView) -> bool {
    let outcome = view.record.result().map(|result| result.outcome);
    !matches!(outcome, Some(Outcome::Cancelled | Outcome::Expired))
}

/// The list of builds that do the same, and what they have in common.
fn similar(view: &BuildView) -> Option<(String, String)> {
    let build = &view.record.build;
    let (parameter, value, what) = match (&build.job, build.labels.iter().next()) {
        (None, _) => ("text", build.command.join(" "), "with this command".to_owned()),
        (Some(_), Some((name, value))) => {
            let label = format!("{name}={value}");
            let what = format!("with the label {}", short(&label, 60));
            ("label", label, what)
        }
        (Some(_), None) => return None,
    };
    let searched: String = value.chars().take(TEXT_MAX).collect();
    let what = if searched == value { what } else { "whose command begins like this one".to_owned() };
    Some((format!("/builds?group={}&{parameter}={}", build.group, url_part(&searched)), what))
}

fn waits(why: &WhyReply, now: Millis) -> Markup {
    html! {
        section.note aria-labelledby="wait" aria-live="polite" {
            h2 #wait { "Why it waits" }
            p { (escaped(&why.reason)) }
            @if let Some(waiting) = &why.waiting {
                p {
                    "Place " b { (waiting.place) } " of " (waiting.queued) " in group "
                    a href={ "/builds?state=ENQUEUED&group=" (why.group) } { (why.group) } ". "
                    @match waiting.expected_start_ms {
                        Some(at) if at <= now => { "It is about to start." }
                        Some(at) => { "It starts in about " (span(at.since(now))) "." }
                        None => { "Its start cannot be predicted yet." }
                    }
                }
                @for it in &waiting.throttled_by {
                    p {
                        "Its group may have " (it.target) " ESU of " (it.executor_type) " in progress now: " (it.in_progress) " are, "
                        (it.reserved) " are kept for the builds ahead of it, and it needs " (it.needed) ". "
                        a href={ "/quota?group=" (why.group) } { "Show the quota" }
                    }
                }
                @if !waiting.in_progress.is_empty() {
                    p {
                        "In progress in its group: "
                        @for it in waiting.in_progress.iter().take(10) { a href={ "/builds/" (why.group) "/" (it.id) } { (short(&it.id.to_string(), 13)) } " " }
                    }
                }
                @if waiting.idle_workspaces == 0 && waiting.workspaces > 0 {
                    p { "All " (waiting.workspaces) " workspaces that could run it are busy. " a href="/farm" { "Show what they run" } }
                }
            }
        }
    }
}

/// The facts in pairs of name and value.
pub(super) fn facts(view: &BuildView, settings: &PageSettings, now: Millis) -> Markup {
    let (record, build) = (&view.record, &view.record.build);
    let (run, result) = (record.invocation(), record.result());
    let seconds = |seconds: f64| span(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let waited = run.map(|run| in_time(record.queue.enqueued_at_ms, run.started_at_ms));
    let runs = run.filter(|_| result.is_none()).map(|run| since(run.started_at_ms, now));
    html! {
        dl.facts {
            (fact("Build", Some(build.id.to_string())))
            (fact("Group", Some(html! { a href={ "/builds?group=" (build.group) } { (build.group) } })))
            (fact("Priority", Some(html! { a href={ "/builds?priority=" (build.priority) } { (build.priority) } })))
            (fact("Submitter", build.submitter.as_deref().map(|name| link("submitter", name))))
            (fact("Submitted", Some(ago(build.submitted_at_ms, now))))
            (fact("Waited", waited))
            (fact("Waits since", run.is_none().then(|| ago(record.queue.enqueued_at_ms, now)).filter(|_| result.is_none())))
            (fact("Started", run.map(|run| ago(run.started_at_ms, now))))
            (fact("Runs for", runs))
            (fact("Prepared in", result.and_then(|result| result.preparation_seconds).map(seconds)))
            (fact("Ran for", result.map(|result| seconds(result.wall_seconds))))
            (fact("Processor time", result.map(|result| seconds(result.cpu_seconds))))
            (fact("Peak memory", result.filter(|it| it.peak_memory_bytes > 0).map(|it| client::text::size(it.peak_memory_bytes))))
            (fact("Exit code", result.and_then(|result| result.exit_code)))
            (fact("Attempt", Some(format!("{} of {}", record.attempt, build.max_attempts))))
            (fact("Worker", run.map(|run| html! { a href={ "/farm#" (run.worker) } { (run.worker) } ", workspace " (run.workspace) })))
            (fact("Invocation", record.invocation_id().map(|id| id.to_string())))
            (fact("Source", source(&build.context)))
            (fact("Trace", trace(view, settings)))
            @for (name, value) in &build.labels { (fact(&short(name, 60), Some(link("label", &format!("{name}={value}"))))) }
            @for (name, value) in build.requirements.iter() { (fact("Requires", Some(format!("{name}={value}")))) }
        }
        @if build.job.is_none() {
            details #command {
                summary { "Command and environment" }
                pre tabindex="0" { @for word in &build.command { (escaped(word)) "\n" } }
                @if !build.env.is_empty() { pre tabindex="0" { @for (name, value) in &build.env { (escaped(name)) "=" (escaped(value)) "\n" } } }
            }
        }
    }
}

/// A value that leads to the builds that have it.
fn link(parameter: &str, value: &str) -> Markup {
    let shown = match parameter {
        "label" => value.split_once('=').map_or(value, |(_, value)| value),
        _ => value,
    };
    html! { a href={ "/builds?" (parameter) "=" (url_part(value)) } { (short(shown, 120)) } }
}

fn source(context: &Context) -> Option<String> {
    Some(match context {
        Context::Empty => return None,
        Context::Directory { path, .. } => format!("folder {}", short(path, 200)),
        Context::Tree { digest, source } => match source {
            Some(source) => format!("folder {}", short(source, 200)),
            None => format!("folder {digest}"),
        },
        Context::Git { url, revision, patch } => {
            let patched = if patch.is_some() { ", with a patch" } else { "" };
            format!("{} at {}{patched}", short(url, 200), short(revision, 100))
        }
        Context::Archive { location, .. } => format!("archive {}", short(location, 200)),
    })
}

/// The trace of the build: a link if there is a place that shows traces.
fn trace(view: &BuildView, settings: &PageSettings) -> Option<Markup> {
    let id = view.record.build.traceparent.as_deref()?.split('-').nth(1)?.to_owned();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let template = &settings.trace_page_url;
    let link = (!template.is_empty()).then(|| template.replace("{trace}", &id));
    is_id.then(
        || html! { @if let Some(link) = link { a href=(link) rel="noreferrer" { (id) } } @else { (id) } },
    )
}
