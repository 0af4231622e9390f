//! Compares two builds: their requests, results and actions.

use std::collections::BTreeMap;

use http_api::Failure;
use maud::{Markup, html};
use model::{ActionView, ActionsRequest, BuildKey, BuildView, ListRequest, State, TaskReport};

use super::{Pair, pairs, sections, tasks, words};
use crate::{
    action,
    build::{target_statuses, tasks_so_far},
    layout::{ago, badge, path_of, short, span},
    list::work,
    patience::answer,
    site::{Asked, Site},
    view::View,
};

const ACTIONS_MAX: usize = 1000;

/// Handles `GET /compare?a=GROUP/ID&b=GROUP/ID`; without `b`, offers builds to compare with.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let key = |name: &str| asked.query.last(name).map(|text| key(&text)).transpose();
    let Some(a) = key("a")? else { return Err(Failure::invalid("expected a and b, as GROUP/ID")) };
    let a = site.client().get(&a).await?;
    let Some(b) = asked.query.last("b") else {
        return Ok(View::fixed("Compare builds", choose(&site, &a).await?));
    };
    let b = site.client().get(&other(&site, &a, &b).await?).await?;
    let (of_a, of_b) = tokio::join!(More::read(&site, &a), More::read(&site, &b));
    let content = html! {
        h1 { "Compare two builds" }
        (heads(&a, &b, &site))
        (tasks::part(&of_a.tasks, &of_b.tasks, &a.record.build.group))
        (sections(&[
            ("Command", words(&a.record.build.command, &b.record.build.command)),
            ("Environment", pairs(strings(&a.record.build.env), strings(&b.record.build.env))),
            ("Request", request(&a, &b)),
            ("Labels", pairs(strings(&a.record.build.labels), strings(&b.record.build.labels))),
            ("Outputs", outputs(&a, &b)),
            ("Targets", pairs(strings(&of_a.targets), strings(&of_b.targets))),
        ]))
        (actions(&of_a.actions, &of_b.actions))
    };
    Ok(View::fixed("Compare builds", content))
}

fn key(text: &str) -> Result<BuildKey, Failure> {
    let wrong = || Failure::invalid(format!("invalid build {text:?}: expected GROUP/ID"));
    let (group, id) = text.trim().split_once('/').ok_or_else(wrong)?;
    Ok(BuildKey { group: group.parse()?, id: id.parse()? })
}

/// The build to compare with: GROUP/ID, or an id of the same group or the start of one.
async fn other(site: &Site, a: &BuildView, text: &str) -> Result<BuildKey, Failure> {
    let text = text.trim();
    if text.contains('/') {
        return key(text);
    }
    let group = &a.record.build.group;
    if let Ok(id) = text.parse() {
        return Ok(BuildKey { group: group.clone(), id });
    }
    let request = ListRequest { id_prefix: Some(text.to_owned()), limit: Some(2), ..ListRequest::default() };
    let found = site.client().list(group, &request).await?.builds;
    match found.as_slice() {
        [only] => Ok(only.record.build.key()),
        [] => Err(Failure::missing(format!("no build of group {group} has an id that begins with {text:?}"))),
        _ => Err(Failure::invalid(format!(
            "several builds of group {group} have an id that begins with {text:?}"
        ))),
    }
}

fn strings(map: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// Builds of the same group to compare with: those with the same command first.
async fn choose(site: &Site, a: &BuildView) -> Result<Markup, Failure> {
    let build = &a.record.build;
    let same = ListRequest {
        text: build.job.is_none().then(|| build.command.join(" ").chars().take(200).collect()),
        labels: if build.job.is_some() { build.labels.clone() } else { BTreeMap::default() },
        state: Some(State::Finished),
        limit: Some(10),
        ..ListRequest::default()
    };
    let recent = ListRequest { state: Some(State::Finished), limit: Some(10), ..ListRequest::default() };
    let (same, recent) = tokio::join!(
        answer(site.client().builds(Some(&build.group), &same)),
        answer(site.client().builds(Some(&build.group), &recent))
    );
    let mut others: Vec<BuildView> = same.into_iter().chain(recent).flat_map(|reply| reply.builds).collect();
    others.retain(|view| view.record.build.id != build.id);
    let mut seen = std::collections::HashSet::new();
    others.retain(|view| seen.insert(view.record.build.id));
    let now = site.now();
    Ok(html! {
        h1 { "Compare with which build?" }
        p { "Build " a href=(path_of(&build.key())) { (build.id) } ": " (short(&work(a), 120)) }
        @if others.is_empty() { p { "There is no other build in group " (build.group) "." } }
        ul.files {
            @for other in &others {
                li {
                    a href={ "/compare?a=" (build.key()) "&b=" (other.record.build.key()) } { (other.record.build.id) }
                    " " (badge(&other.record)) " " (ago(other.record.build.submitted_at_ms, now)) " " span.command { (short(&work(other), 100)) }
                }
            }
        }
        form.filter method="get" action="/compare" {
            input type="hidden" name="a" value=(build.key());
            label { "Another build: its id or the start of it, or GROUP/ID " input name="b" required; }
            button { "Compare" }
        }
    })
}

/// The tasks of a build, and what the archive knows of it.
struct More {
    tasks: Vec<TaskReport>,
    actions: Vec<ActionView>,
    /// Status of each target by its label.
    targets: BTreeMap<String, String>,
}

impl More {
    async fn read(site: &Site, view: &BuildView) -> Self {
        let build = &view.record.build;
        let (group, id) = (Some(build.group.clone()), Some(build.id));
        let request = ActionsRequest {
            group: group.clone(),
            build: id,
            limit: Some(ACTIONS_MAX),
            ..ActionsRequest::default()
        };
        let tasks =
            async { if build.job.is_some() { tasks_so_far(site, view).await.reports } else { Vec::new() } };
        let (tasks, actions, targets) =
            tokio::join!(tasks, answer(site.client().actions(&request)), target_statuses(site, view));
        Self { tasks, actions: actions.map(|reply| reply.actions).unwrap_or_default(), targets }
    }
}

fn heads(a: &BuildView, b: &BuildView, site: &Site) -> Markup {
    let now = site.now();
    let took = |view: &BuildView| {
        view.record.result().map(|result| {
            span(std::time::Duration::try_from_secs_f64(result.wall_seconds).unwrap_or_default())
        })
    };
    let rows = html! {
        table.compare {
            thead { tr { th scope="col" { "Part" } th scope="col" { "A" } th scope="col" { "B" } } }
            tbody {
                tr { th scope="row" { "Build" } @for it in [a, b] { td { a href=(path_of(&it.record.build.key())) { (it.record.build.id) } } } }
                tr { th scope="row" { "Outcome" } @for it in [a, b] { td { (badge(&it.record)) } } }
                tr { th scope="row" { "Submitted" } @for it in [a, b] { td { (ago(it.record.build.submitted_at_ms, now)) } } }
                tr { th scope="row" { "Ran for" } @for it in [a, b] { td { (took(it).unwrap_or_default()) } } }
            }
        }
    };
    html! { div.wide tabindex="0" role="region" aria-label="The two builds" { (rows) } }
}

/// Other parts of the request.
fn request(a: &BuildView, b: &BuildView) -> Vec<Pair> {
    let of = |view: &BuildView| -> BTreeMap<String, String> {
        let build = &view.record.build;
        let json =
            |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let context = serde_json::to_value(&build.context).unwrap_or_default();
        let mut all: BTreeMap<String, String> = context
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (format!("source: {name}"), json(value.clone())))
            .collect();
        all.extend(
            build.requirements.iter().map(|(name, value)| (format!("requires {name}"), value.to_owned())),
        );
        all.extend([
            ("priority".to_owned(), build.priority.to_string()),
            ("timeout in seconds".to_owned(), build.timeout_seconds.to_string()),
            ("outputs".to_owned(), build.outputs.join(" ")),
            ("workspace".to_owned(), if build.workspace.is_fresh() { "fresh" } else { "warm" }.to_owned()),
        ]);
        if let Some(job) = &build.job {
            all.insert("job".to_owned(), job.digest.to_string());
        }
        if let Some(run) = view.record.invocation() {
            all.insert("worker".to_owned(), run.worker.to_string());
        }
        all
    };
    let (a, b) = (of(a), of(b));
    pairs(strings(&a), strings(&b))
}

fn outputs(a: &BuildView, b: &BuildView) -> Vec<Pair> {
    let of = |view: &BuildView| -> BTreeMap<String, String> {
        let outputs = view.record.result().map(|result| result.outputs.as_slice()).unwrap_or_default();
        outputs.iter().map(|file| (file.path.clone(), file.blob().to_string())).collect()
    };
    let (a, b) = (of(a), of(b));
    pairs(strings(&a), strings(&b))
}

/// Actions of the same target and kind with different digests: the second was no cache hit of the first.
fn actions(a: &[ActionView], b: &[ActionView]) -> Markup {
    let by_name = |all: &[ActionView]| -> BTreeMap<String, ActionView> {
        let name = |it: &ActionView| {
            Some(format!("{} {}", it.mnemonic.as_deref().unwrap_or("action"), it.target.as_deref()?))
        };
        all.iter().filter_map(|it| Some((name(it)?, it.clone()))).collect()
    };
    let (of_a, of_b) = (by_name(a), by_name(b));
    let differ: Vec<(&String, &ActionView, &ActionView)> = of_a
        .iter()
        .filter_map(|(name, a)| Some((name, a, of_b.get(name)?)))
        .filter(|(_, a, b)| a.action != b.action)
        .collect();
    html! {
        h2 { "Actions" }
        p { (a.len()) " and " (b.len()) " were executed; " (differ.len()) " of the same target and kind differ." }
        @if !differ.is_empty() {
            ul.files {
                @for (name, a, b) in differ.iter().take(200) {
                    li {
                        (short(name, 100)) ": "
                        a href={ "/compare-actions?a=" (a.action) "&b=" (b.action) "&group=" (a.group) } { "what differs" }
                        " (" a href=(action::path(&a.action, Some(&a.group))) { "A" } ", " a href=(action::path(&b.action, Some(&b.group))) { "B" } ")"
                    }
                }
            }
        }
    }
}
