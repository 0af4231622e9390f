//! The calls of build tools in a build, with their targets and tests.

use std::{collections::BTreeMap, time::Duration};

use http_api::Failure;
use maud::{Markup, html};
use model::{
    BlobDigest, BuildView, TargetView, TargetsRequest, TestView, TestsRequest, ToolInvocationView,
    ToolInvocationsRequest,
};
use telemetry::escaped;

use crate::{
    layout::{ago, count, fact, short, span, url_part},
    patience::answer,
    site::{Asked, Site},
    view::View,
};

/// Maximum number of calls, and of targets and tests of each, on a page.
const CALLS_MAX: usize = 10;
const ROWS_MAX: usize = 500;

/// A call of a build tool, with its targets and tests; failed ones first.
pub(crate) struct Call {
    view: ToolInvocationView,
    targets: Vec<TargetView>,
    tests: Vec<TestView>,
}

/// The calls of build tools in a build, as far as the archive knows them.
pub(super) async fn read(site: &Site, view: &BuildView) -> Vec<Call> {
    let build = &view.record.build;
    let request = ToolInvocationsRequest {
        group: Some(build.group.clone()),
        build: Some(build.id),
        limit: Some(CALLS_MAX),
        ..ToolInvocationsRequest::default()
    };
    let found = answer(site.client().tool_invocations(&request)).await.map(|reply| reply.tool_invocations);
    let mut calls = Vec::new();
    for view in found.unwrap_or_default() {
        calls.push(Call::read(site, view).await);
    }
    calls
}

/// Status of each target of the calls in a build by its label.
pub(crate) async fn statuses(site: &Site, view: &BuildView) -> BTreeMap<String, String> {
    let targets = read(site, view).await.into_iter().flat_map(|call| call.targets);
    targets.map(|it| (it.label, it.test_status.or(it.status).unwrap_or_default())).collect()
}

/// The part about calls of build tools; empty without any.
pub(super) fn part(calls: &[Call]) -> Markup {
    html! {
        @if !calls.is_empty() {
            h2 #targets { "Targets and tests" }
            @for call in calls { (call.shown()) }
        }
    }
}

/// The first tests that failed, with their logs.
pub(super) fn failed_tests(calls: &[Call]) -> Markup {
    let all = calls.iter().flat_map(|call| &call.tests);
    let failed: Vec<&TestView> = all.filter(|test| rank(&test.status) == 0).take(FAILED_MAX).collect();
    html! {
        @if !failed.is_empty() {
            ul { @for test in failed { li { (short(&test.label, 120)) " " (status(&test.status)) " " (log_link(test)) } } }
        }
    }
}

/// Maximum number of failed tests that are shown where a failure is explained.
const FAILED_MAX: usize = 10;

/// Handles `GET /calls/{group}/{id}`: a call of a build tool outside of builds.
pub(crate) async fn call(site: Site, asked: Asked) -> Result<View, Failure> {
    let (group, id) = (asked.names.group()?, asked.names.tool_invocation()?);
    let missing = Failure::missing(format!("the archive has no call {id} of group {group}"));
    let request =
        ToolInvocationsRequest { group: Some(group), id: Some(id), ..ToolInvocationsRequest::default() };
    let found = site.client().tool_invocations(&request).await?.tool_invocations;
    let call = Call::read(&site, found.into_iter().next().ok_or(missing)?).await;
    let now = site.now();
    let content = html! {
        h1 { "Call of a build tool" }
        dl.facts {
            (fact("Group", Some(call.view.group.to_string())))
            (fact("User", call.view.user.as_deref().map(|user| short(user, 60))))
            (fact("Machine", call.view.host.as_deref().map(|host| short(host, 60))))
            (fact("Started", call.view.started_at_ms.map(|at| ago(at, now))))
            (fact("Build", call.view.build.map(|build| html! { a href={ "/builds/" (call.view.group) "/" (build) } { (build) } })))
        }
        (call.shown())
    };
    Ok(View::fixed("Call of a build tool", content))
}

impl Call {
    async fn read(site: &Site, view: ToolInvocationView) -> Self {
        let (group, id, limit) = (view.group.clone(), view.id.clone(), Some(ROWS_MAX));
        let targets =
            TargetsRequest { group: group.clone(), id: id.clone(), status: None, cursor: None, limit };
        let tests = TestsRequest { group, id, status: None, cursor: None, limit };
        let (targets, tests) =
            tokio::join!(answer(site.client().targets(&targets)), answer(site.client().tests(&tests)));
        let mut targets = targets.map(|reply| reply.targets).unwrap_or_default();
        let mut tests = tests.map(|reply| reply.tests).unwrap_or_default();
        tests.sort_by_key(|test| rank(&test.status));
        targets.sort_by_key(|target| rank(target.status.as_deref().unwrap_or("running")));
        Self { view, targets, tests }
    }

    fn shown(&self) -> Markup {
        let call = &self.view;
        let words = [call.command.as_deref(), call.patterns.as_deref()];
        let words = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let class = if call.exit_code == Some(0) { "good" } else { "bad" };
        html! {
            h3 { (short(&words, 120)) " " @if let Some(name) = &call.exit_name { span class={ "badge " (class) } { (escaped(name)) } } }
            p {
                @if let Some(version) = &call.version { "Version " (escaped(version)) ", " }
                "call " code { (call.id) } ", " (call.events) " events"
                @if !call.complete { ", goes on or broke off" }
            }
            @if !self.tests.is_empty() { (of_tests(call, &self.tests)) }
            @if !self.targets.is_empty() { (of_targets(call, &self.targets)) }
        }
    }
}

/// The log of a test, if the store has it.
fn log_link(test: &TestView) -> Markup {
    html! { @if let Some(path) = test.log.as_deref().and_then(log_path) { a href={ (path) "?name=" (url_part(&test.label)) } { "Log" } } }
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
    let is_one_of_many = |test: &TestView| test.run > 1 || test.shard > 1 || test.attempt > 1;
    html! {
        div.wide tabindex="0" role="region" aria-label="Tests" {
            table {
                thead { tr { th scope="col" { "Test" } th scope="col" { "Status" } th scope="col" { "Took" } th scope="col" { "Log" } } }
                tbody {
                    @for test in tests {
                        tr {
                            td {
                                a href={ "/tests?group=" (call.group) "&text=" (url_part(&test.label)) } { (short(&test.label, 120)) }
                                @if is_one_of_many(test) { " (run " (test.run) ", shard " (test.shard) ", attempt " (test.attempt) ")" }
                            }
                            td { (status(&test.status)) @if test.cached { " (cached)" } }
                            td.number { (test.duration_ms.map(|ms| span(Duration::from_millis(ms))).unwrap_or_default()) }
                            td { (log_link(test)) }
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
            summary { (count(targets.len(), "target", "targets")) @if targets.len() == ROWS_MAX { " (the first)" } }
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
