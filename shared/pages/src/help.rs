//! The help page: what each page is for, and the keys.

use http_api::Failure;
use maud::html;

use crate::{
    layout::table,
    site::{Asked, Site},
    view::View,
};

const PAGES: [(&str, &str, &str); 7] = [
    (
        "/builds",
        "Builds",
        "All builds, newest first. Filter them by group, submitter, label, state, outcome, priority, text and time; the address of the page keeps the filter.",
    ),
    ("/mine", "My builds", "The builds of one submitter: what waits, runs or failed comes first."),
    (
        "/tests",
        "Tests",
        "The results of tests in the last calls of Bazel: which are flaky, and since when one fails.",
    ),
    (
        "/farm",
        "Farm",
        "What needs attention, the worst first; workers, executors, queues, and the plan of the autoscaler. Processes can be drained here.",
    ),
    ("/quota", "Quota", "What each group uses and may use, over time. Quotas can be changed here."),
    (
        "/simulate",
        "Simulate",
        "What another policy or another number of workspaces would have made of the last days.",
    ),
    ("/help", "Help", "This page."),
];

const KEYS: [(&str, &str); 10] = [
    ("/", "go to the search field"),
    ("j, k", "next and previous row of a table"),
    ("Enter", "open the row"),
    ("e", "go to the end of a log and follow it"),
    ("↑ ↓ Page Up Page Down Home End", "move in a log that has the focus"),
    ("Esc", "leave a field"),
    ("g b, g m", "builds, my builds"),
    ("g t, g f", "tests, farm"),
    ("g q, g s", "quota, simulate"),
    ("?", "this page"),
];

/// Handles `GET /help`: shows how to use the pages.
pub(crate) async fn view(_: Site, _: Asked) -> Result<View, Failure> {
    let content = html! {
        h1 { "Help" }
        h2 { "Pages" }
        dl { @for (path, name, about) in PAGES { dt { a href=(path) { (name) } } dd { (about) } } }
        p { "On the page of a build: why it waits or failed, its phases and actions, its job, targets and tests, its console, its outputs. "
            "A line of the console has an address of its own: follow the number of the line." }
        h2 { "Keys" }
        p { label { input #keys type="checkbox" disabled checked; " Use these keys in this browser" } }
        (table("Keys", &["Key", "What it does"], &html! { @for (key, what) in KEYS { tr { td { kbd { (key) } } td { (what) } } } }))
        h2 { "Programs" }
        p { "Everything here comes from the HTTP API: " a href="/v1/openapi.json" { "its OpenAPI document" } "." }
    };
    Ok(View::fixed("Help", content))
}
