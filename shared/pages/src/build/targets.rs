//! The calls of build tools in a build, with their targets and tests.

use std::time::Duration;

use maud::{Markup, html};
use model::{
    BlobDigest, BuildView, TargetView, TargetsRequest, TestView, TestsRequest, ToolInvocationView,
    ToolInvocationsRequest,
};
use telemetry::escaped;

use crate::{
    layout::{short, span, url_part},
    patience::answer,
    site::Site,
};

/// Maximum number of calls, and of targets and tests of each, on a page.
const CALLS_MAX: usize = 10;
const ROWS_MAX: usize = 500;

/// The part about calls of build tools; empty without any.
pub(super) async fn part(site: &Site, view: &BuildView) -> Markup {
    let build = &view.record.build;
    let request = ToolInvocationsRequest {
        group: Some(build.group.clone()),
        build: Some(build.id),
        limit: Some(CALLS_MAX),
        ..ToolInvocationsRequest::default()
    };
    let calls = answer(site.client().tool_invocations(&request)).await.map(|reply| reply.tool_invocations);
    let mut shown = Vec::new();
    for call in calls.unwrap_or_default() {
        shown.push(of_call(site, &call).await);
    }
    html! {
        @if !shown.is_empty() {
            h2 #targets { "Targets and tests" }
            @for call in &shown { (call) }
        }
    }
}

async fn of_call(site: &Site, call: &ToolInvocationView) -> Markup {
    let (group, id, limit) = (call.group.clone(), call.id.clone(), Some(ROWS_MAX));
    let targets = TargetsRequest { group: group.clone(), id: id.clone(), status: None, cursor: None, limit };
    let tests = TestsRequest { group, id, status: None, cursor: None, limit };
    let (targets, tests) =
        tokio::join!(answer(site.client().targets(&targets)), answer(site.client().tests(&tests)));
    let mut targets = targets.map(|reply| reply.targets).unwrap_or_default();
    let mut tests = tests.map(|reply| reply.tests).unwrap_or_default();
    tests.sort_by_key(|test| rank(&test.status));
    targets.sort_by_key(|target| rank(target.status.as_deref().unwrap_or("running")));
    let words = [call.command.as_deref(), call.patterns.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ");
    html! {
        h3 { (short(&words, 120)) " " @if let Some(name) = &call.exit_name { span class={ "badge " (if call.exit_code == Some(0) { "good" } else { "bad" }) } { (escaped(name)) } } }
        p {
            @if let Some(version) = &call.version { "Version " (escaped(version)) ", " }
            "call " code { (call.id) } ", " (call.events) " events"
            @if !call.complete { ", goes on or broke off" }
        }
        @if !tests.is_empty() { (of_tests(call, &tests)) }
        @if !targets.is_empty() { (of_targets(call, &targets)) }
    }
}

/// Failed ones first, then flaky ones, then the others.
fn rank(status: &str) -> u8 {
    match status {
        "passed" | "built" => 3,
        "flaky" => 1,
        "running" | "skipped" => 2,
        _ => 0,
    }
}

/// The status with a sign and a colour.
pub(crate) fn status(text: &str) -> Markup {
    let (class, sign) = match text {
        "passed" | "built" => ("good", "✓"),
        "flaky" => ("warn", "!"),
        "running" => ("busy", "▶"),
        "skipped" | "no_status" => ("idle", "○"),
        _ => ("bad", "✗"),
    };
    html! { span class={ "badge " (class) } { (sign) " " (escaped(text).replace('_', " ")) } }
}

fn of_tests(call: &ToolInvocationView, tests: &[TestView]) -> Markup {
    let many = tests.iter().any(|test| test.run > 1 || test.shard > 1 || test.attempt > 1);
    html! {
        div.wide tabindex="0" role="region" aria-label="Tests" {
            table {
                thead { tr { th scope="col" { "Test" } th scope="col" { "Status" } th scope="col" { "Took" } th scope="col" { "Log" } } }
                tbody {
                    @for test in tests {
                        tr {
                            td {
                                a href={ "/tests?group=" (call.group) "&text=" (url_part(&test.label)) } { (short(&test.label, 120)) }
                                @if many { " run " (test.run) " shard " (test.shard) " attempt " (test.attempt) }
                            }
                            td { (status(&test.status)) @if test.cached { " (cached)" } }
                            td.number { (test.duration_ms.map(|ms| span(Duration::from_millis(ms))).unwrap_or_default()) }
                            td { @if let Some(path) = test.log.as_deref().and_then(log_path) { a href={ (path) "?name=" (url_part(&test.label)) } { "Log" } } }
                        }
                    }
                }
            }
        }
    }
}

fn of_targets(call: &ToolInvocationView, targets: &[TargetView]) -> Markup {
    let kind = |target: &TargetView| target.kind.as_deref().map(|kind| short(kind, 60)).unwrap_or_default();
    html! {
        details id={ "targets-" (call.id) } {
            summary { (targets.len()) " targets" @if targets.len() == ROWS_MAX { " (the first)" } }
            div.wide tabindex="0" role="region" aria-label="Targets" {
                table {
                    thead { tr { th scope="col" { "Target" } th scope="col" { "Status" } th scope="col" { "Kind" } } }
                    tbody {
                        @for target in targets {
                            tr {
                                td { (short(&target.label, 120)) }
                                td { (status(target.status.as_deref().unwrap_or("running"))) }
                                td { (kind(target)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The page of a log that a build tool named; none if the farm's store does not have it.
fn log_path(address: &str) -> Option<String> {
    let rest = address.strip_prefix("bytestream://")?;
    let (_, blob) = rest.split_once("/blobs/")?;
    let blob: BlobDigest = blob.parse().ok()?;
    Some(format!("/blobs/{blob}"))
}

#[cfg(test)]
mod tests {
    use super::log_path;

    #[test]
    fn only_logs_of_the_store_have_a_page() {
        let hash = "a".repeat(64);
        assert_eq!(
            log_path(&format!("bytestream://h:1/ci/blobs/{hash}/7")),
            Some(format!("/blobs/{hash}/7"))
        );
        assert_eq!(log_path("file:///etc/passwd"), None);
        assert_eq!(log_path("javascript:alert(1)"), None);
        assert_eq!(log_path("bytestream://h:1/ci/blobs/../../x"), None);
    }
}
