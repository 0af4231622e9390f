//! The page of an action: what it runs, on which inputs, what came of it, and how to run it again.

mod again;
mod content;
mod replay;
mod tree;

use client::text::size;
use futures::future::join_all;
use http_api::Failure;
use maud::{Markup, html};
use model::{ActionView, ActionsRequest, BlobDigest, Group, Millis};
use policy::access::{Reach, Rights};
use reapi::execution::{ActionResult, Command};
use telemetry::escaped;

use crate::{
    blob,
    layout::{ago, count, fact, short, span, table, url_part},
    patience::answer,
    site::{Asked, Site},
    view::View,
};

pub(crate) use again::again;
pub(crate) use content::Content;
pub(crate) use replay::{inputs, script};

/// Maximum number of executions that are listed.
const EXECUTIONS_MAX: usize = 50;

/// The path of the page of an action that a group sent.
pub(crate) fn path(digest: impl std::fmt::Display, group: Option<&Group>) -> String {
    match group {
        Some(group) => format!("/actions/{digest}?group={group}"),
        None => format!("/actions/{digest}"),
    }
}

/// Handles `GET /actions/{digest}`: shows an action.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let digest = blob::digest(asked.names.text("digest"))?;
    let group: Option<Group> = asked.query.parsed("group")?;
    let content = Content::read(&site, digest).await?;
    let found = seen(&site, &asked.rights, &digest).await;
    let group = group.filter(|group| asked.rights.see_actions_of(group) && site.has_zone_of(group));
    let group = group.or_else(|| found.first().map(|it| it.group.clone()));
    let result = content.result(&site, &digest, group.as_ref(), &found).await;
    let folder = tree::browsed(&site, &content, &asked.query).await?;
    let query = group.as_ref().map(|group| format!("?group={group}")).unwrap_or_default();
    let page = html! {
        h1 { "Action " span.command { (short(&content.command.arguments.join(" "), 120)) } }
        p { code { (digest) } }
        (outcome(result.as_ref(), &query))
        (command(&content))
        (orders(&digest, group.as_ref(), &asked, &query))
        (executions(&found, site.now()))
        h2 #inputs { "Inputs" }
        (tree::part(&folder, &digest, &query))
    };
    Ok(View::fixed(format!("Action {}", short(&content.command.arguments.join(" "), 50)), page))
}

/// The last executions that the reader may see, the newest first.
async fn seen(site: &Site, rights: &Rights, digest: &BlobDigest) -> Vec<ActionView> {
    let of = |group: Option<&Group>| {
        let (action, limit) = (Some(digest.to_string()), Some(EXECUTIONS_MAX));
        let request = ActionsRequest { group: group.cloned(), action, limit, ..ActionsRequest::default() };
        async move { answer(site.client().actions(&request)).await }
    };
    let groups: Vec<Option<&Group>> = match &rights.groups {
        Reach::All => vec![None],
        Reach::Listed(groups) => groups.iter().map(Some).collect(),
    };
    let found = join_all(groups.into_iter().map(of)).await;
    let mut found: Vec<ActionView> = found.into_iter().flatten().flat_map(|reply| reply.actions).collect();
    found.retain(|it| rights.see_actions_of(&it.group) && site.has_zone_of(&it.group));
    found.sort_by_key(|it| std::cmp::Reverse(it.accepted_at_ms));
    found.truncate(EXECUTIONS_MAX);
    found
}

fn command(content: &Content) -> Markup {
    let Command { arguments, environment_variables, working_directory, .. } = &content.command;
    html! {
        h2 { "Command" }
        pre tabindex="0" { @for word in arguments { (escaped(word)) "\n" } }
        dl.facts {
            (fact("Folder", (!working_directory.is_empty()).then(|| short(working_directory, 200))))
            (fact("Timeout", content.timeout().map(span)))
            (fact("Result may be cached", Some(if content.action.do_not_cache { "no" } else { "yes" })))
            @for (name, value) in content.platform() { (fact(&short(&name, 60), Some(short(&value, 200)))) }
        }
        @if !environment_variables.is_empty() {
            details #environment {
                summary { (count(environment_variables.len(), "environment variable", "environment variables")) }
                pre tabindex="0" { @for it in environment_variables { (escaped(&it.name)) "=" (escaped(&it.value)) "\n" } }
            }
        }
        @let outputs = content.outputs();
        @if !outputs.is_empty() {
            details #expected { summary { (count(outputs.len(), "expected output", "expected outputs")) } ul { @for path in outputs.iter().take(500) { li { (escaped(path)) } } } }
        }
    }
}

fn outcome(result: Option<&ActionResult>, query: &str) -> Markup {
    let Some(result) = result else {
        return html! { p.note { "No result of this action is stored: it has not run, its result may not be cached, or it was evicted." } };
    };
    let found = |digest: &reapi::execution::Digest| {
        reapi::digest::from_proto(digest, model::DigestFunction::Sha256).ok()
    };
    let stream = |raw: &[u8], digest: Option<&reapi::execution::Digest>, name: &str| {
        html! {
            @if !raw.is_empty() { h3 { (name) } (crate::text_file::of_bytes(raw)) }
            @else if let Some(digest) = digest.and_then(found).filter(|digest| digest.size > 0) {
                p { a href={ "/blobs/" (digest) "?name=" (name) } { (name) } " " (size(digest.size)) }
            }
        }
    };
    html! {
        h2 { "Result" }
        p { @if result.exit_code == 0 { span.badge.good { "✓ exit code 0" } } @else { span.badge.bad { "✗ exit code " (result.exit_code) } } }
        (stream(&result.stdout_raw, result.stdout_digest.as_ref(), "Standard output"))
        (stream(&result.stderr_raw, result.stderr_digest.as_ref(), "Standard error"))
        @if !result.output_files.is_empty() || !result.output_directories.is_empty() {
            h3 { "Outputs" }
            ul.files {
                @for file in result.output_files.iter().take(500) {
                    @if let Some(digest) = file.digest.as_ref().and_then(found) {
                        li { a href={ "/blobs/" (digest) "?name=" (url_part(&file.path)) } { (short(&file.path, 200)) } " " (size(digest.size)) " "
                             a href=(blob::download_path(&digest, &file.path)) { "Download" } }
                    }
                }
                @for folder in &result.output_directories {
                    li { (short(&folder.path, 200)) "/ "
                         @if let Some(root) = folder.root_directory_digest.as_ref().and_then(found) { a href={ "?" (query.trim_start_matches('?')) "&dir=" (root) "#inputs" } { "Browse" } } }
                }
            }
        }
        (times(result))
    }
}

/// The times of the execution, if its executor reported them.
fn times(result: &ActionResult) -> Markup {
    let Some(metadata) = &result.execution_metadata else { return html! {} };
    let at = |time: Option<&reapi::protobuf::Timestamp>| {
        let time = time?;
        let ms = time.seconds.checked_mul(1000)?.checked_add(i64::from(time.nanos / 1_000_000))?;
        u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Millis)
    };
    let pair = |from, to| Some((at(from)?, at(to)?));
    let steps = [
        ("Waited", pair(metadata.queued_timestamp.as_ref(), metadata.worker_start_timestamp.as_ref())),
        (
            "Fetched its inputs",
            pair(
                metadata.input_fetch_start_timestamp.as_ref(),
                metadata.input_fetch_completed_timestamp.as_ref(),
            ),
        ),
        (
            "Ran",
            pair(
                metadata.execution_start_timestamp.as_ref(),
                metadata.execution_completed_timestamp.as_ref(),
            ),
        ),
        (
            "Stored its outputs",
            pair(
                metadata.output_upload_start_timestamp.as_ref(),
                metadata.output_upload_completed_timestamp.as_ref(),
            ),
        ),
    ];
    html! {
        dl.facts {
            (fact("Executor", (!metadata.worker.is_empty()).then(|| short(&metadata.worker, 100))))
            @for (name, times) in steps { (fact(name, times.map(|(from, to)| span(to.since(from))))) }
        }
    }
}

fn orders(digest: &BlobDigest, group: Option<&Group>, asked: &Asked, query: &str) -> Markup {
    let origin = asked.origin.as_deref().unwrap_or("http://127.0.0.1:8080");
    html! {
        div.orders {
            @if let Some(group) = group {
                details #again {
                    summary { "Run it again" }
                    form method="post" action={ "/action-again/" (digest) } {
                        input type="hidden" name="group" value=(group);
                        p { "It is executed on the farm without the cache: in group " (group) " if that has an instance name of its own, else in the default group." }
                        button { "Run it again" }
                    }
                }
            }
            details #replay {
                summary { "Run it on this machine" }
                p { "The script fetches the inputs and runs the same command with the same environment." }
                pre #replay-line tabindex="0" { "curl -fsS " (origin) "/action-script/" (digest) " | sh" }
                p { button type="button" data-copy="replay-line" hidden { "Copy" } " " a href={ "/action-script/" (digest) } { "Show the script" } " "
                    a href={ "/action-inputs/" (digest) } download="inputs.tar" { "Download the inputs" } }
            }
            form method="get" action="/compare-actions" {
                input type="hidden" name="a" value=(digest);
                @if let Some(group) = query.strip_prefix("?group=") { input type="hidden" name="group" value=(group); }
                label { "Compare with action " input name="b" placeholder="HASH/SIZE" required; } " " button.small { "Compare" }
            }
        }
    }
}

/// The executions of this action that the archive knows.
fn executions(found: &[ActionView], now: Millis) -> Markup {
    let ms = |ms: Option<u64>| ms.map(|ms| span(std::time::Duration::from_millis(ms))).unwrap_or_default();
    let rows = html! {
        @for it in found {
            tr {
                td { (it.id) }
                td { (it.group) }
                td { @match (it.code, it.exit_code) { (None, _) => "running", (Some(0), Some(0)) => span.badge.good { "✓ succeeded" }, (Some(0), Some(code)) => span.badge.bad { "✗ exit code " (code) }, (Some(code), _) => span.badge.bad { "✗ code " (code) } } }
                td { (it.attempt) @if it.copies > 1 { " (" (it.copies) " copies)" } }
                td { (it.executor.as_deref().map(|it| short(it, 40)).unwrap_or_default()) }
                td.number { (ms(it.queue_ms)) } td.number { (ms(it.fetch_ms)) } td.number { (ms(it.run_ms)) } td.number { (ms(it.upload_ms)) }
                td { (ago(it.accepted_at_ms, now)) }
            }
        }
    };
    html! {
        @if !found.is_empty() {
            h2 { "Executions" }
            (table("Executions", &["Execution", "Group", "Result", "Attempt", "Executor", "Waited", "Fetched", "Ran", "Stored", "Accepted"], &rows))
        }
    }
}
