//! The page of the quotas: what each group uses and may use, over time; and a form that changes a quota.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    extract::{Extension as FromExtensions, Form, State as FromState},
    response::Redirect,
};
use bus::QuotaOf;
use callers::Caller;
use http_api::Failure;
use maud::{Markup, html};
use model::{
    AuditKind, Esu, ExecutorType, Governed, GovernorRecord, Group, GroupStanding, ListReply, ListRequest,
    Millis, Occupancy, Quota, QuotaReply, State, parse_amount,
};
use policy::access::{Need, Right};
use serde::Deserialize;
use telemetry::escaped;

use crate::{
    chart::{Line, over_time},
    layout::{ErrorPage, count, one_of, page_for, table},
    list::builds,
    patience::answer,
    reader::Reader,
    site::{Asked, Site},
    view::{Changes, Part, View},
};

const AGAIN: Duration = Duration::from_secs(2);
/// Number of decisions in a chart.
const POINTS: u64 = 180;
/// Maximum number of charts.
const CHARTS_MAX: usize = 12;
/// Maximum length in bytes of a quota as text.
const TEXT_MAX: usize = 500;
const WITHIN: [(&str, &str, u64); 4] =
    [("15m", "15 minutes", 900), ("1h", "hour", 3600), ("1d", "day", 86_400), ("7d", "7 days", 604_800)];

/// Handles `GET /quota`: shows quotas and their use.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let query = &asked.query;
    let within = query.last("within").unwrap_or_else(|| "15m".to_owned());
    let found = WITHIN.into_iter().find(|(name, ..)| *name == within);
    let (.., seconds) = found.ok_or_else(|| Failure::invalid("within: expected 15m, 1h, 1d or 7d"))?;
    let chosen: Option<Group> = query.parsed("group")?;
    let (client, now) = (site.client(), site.now());
    let since = Millis(now.0.saturating_sub(seconds * 1000));
    let (quota, decisions) = tokio::join!(client.quota(), client.bus().decisions(since, POINTS));
    let (quota, decisions) = (quota?, decisions.unwrap_or_default());
    let groups: Vec<&GroupStanding> =
        quota.groups.iter().filter(|it| chosen.as_ref().is_none_or(|group| it.group == *group)).collect();
    let read = chosen.as_ref().filter(|group| asked.rights.check(Need::In(Right::Read, group)).is_ok());
    let builds = if let Some(group) = read {
        builds_of(&site, group).await
    } else {
        html! {}
    };
    let live = html! {
        (standings(&groups))
        (waits(&groups))
        (builds)
        (charts(&groups, &decisions))
        @if groups.is_empty() { p { "No group has a quota or a build. Without any quota, no group is limited." } }
    };
    let head = html! {
        h1 { "Quota" @if let Some(group) = &chosen { " of " (group) } }
        p {
            "1 ESU (executor service unit) is one processor or 2.5 GB of memory, whichever a build uses more of. The governor lets a group use "
            "its quota and part of what others leave unused (set point, SP); from what it uses now (process variable, PV) it decides how much "
            "more to start (manipulated variable, MV), and so the target up to which builds are in progress."
        }
        (filter(chosen.as_ref(), &within))
    };
    let parts =
        vec![Part::Fixed(head), Part::Live("quota", live), Part::Fixed(change_form(&quota, chosen.as_ref()))];
    Ok(View { title: "Quota".to_owned(), parts, changes: Changes::Every(AGAIN) })
}

fn filter(chosen: Option<&Group>, within: &str) -> Markup {
    let times = WITHIN.into_iter().map(|(name, word, _)| (name, word));
    html! {
        form.filter method="get" action="/quota" {
            label { "Group " input name="group" value=(chosen.map(ToString::to_string).unwrap_or_default()); }
            (one_of("The last", "within", times, within))
            button { "Show" }
            @if chosen.is_some() { " " a href="/quota" { "All groups" } }
        }
    }
}

fn standings(groups: &[&GroupStanding]) -> Markup {
    let esu = |value: Esu| html! { td.number { (value) } };
    let rows = html! {
        @for it in groups {
            @for (kind, governed) in &it.governed {
                tr {
                    td { a href={ "/quota?group=" (it.group) } { (it.group) } }
                    td { (kind) }
                    (esu(governed.quota)) (esu(governed.pv)) (esu(governed.sp)) (esu(governed.borrowed)) (esu(governed.mv))
                    (esu(governed.target)) (esu(governed.in_progress)) (esu(governed.waiting))
                    td.number { (it.queued) }
                }
            }
        }
    };
    let head = [
        "Group",
        "Type",
        "Quota",
        "In use (PV)",
        "May use (SP)",
        "Borrowed",
        "To start (MV)",
        "Target",
        "In progress",
        "Waiting",
        "Builds waiting",
    ];
    html! { @if groups.iter().any(|it| !it.governed.is_empty()) { h2 { "Now" } (table("Quotas of the groups", &head, &rows)) } }
}

/// Why the first build of a group waits if it has quota.
pub(crate) const NOT_QUOTA: &str = "waits for a workspace or a worker, not for quota";
/// Maximum number of builds of a group that are listed, of each kind.
const BUILDS_MAX: usize = 20;

/// The builds of a group that use its quota, and those that wait.
async fn builds_of(site: &Site, group: &Group) -> Markup {
    let of = |state| ListRequest { state: Some(state), limit: Some(BUILDS_MAX), ..ListRequest::default() };
    let (running, waiting) = (of(State::InProgress), of(State::Enqueued));
    let client = site.client();
    let (running, waiting) =
        tokio::join!(answer(client.list(group, &running)), answer(client.list(group, &waiting)));
    let now = site.now();
    let part = |title: &str, none: &str, found: Option<ListReply>| {
        let found = found.map(|reply| reply.builds).unwrap_or_default();
        html! {
            h2 { (title) }
            @if found.is_empty() { p { (none) } } @else { (builds(title, &found, now)) }
        }
    };
    html! {
        (part("Builds that use the quota", "No build of this group runs.", running))
        (part("Builds that wait, the next one first", "No build of this group waits.", waiting))
    }
}

/// Who waits for whom: groups with waiting builds, and those that borrow.
fn waits(groups: &[&GroupStanding]) -> Markup {
    let borrowers: Vec<&Group> = groups
        .iter()
        .filter(|it| it.governed.values().any(|governed| governed.borrowed.units() > 0.0))
        .map(|it| &it.group)
        .collect();
    let waiting: Vec<&&GroupStanding> = groups.iter().filter(|it| it.queued > 0).collect();
    html! {
        @if !waiting.is_empty() {
            h2 { "Who waits" }
            ul {
                @for it in waiting {
                    li {
                        a href={ "/quota?group=" (it.group) } { (it.group) } ", "
                        (count(usize::try_from(it.queued).unwrap_or(usize::MAX), "build", "builds")) ": "
                        (escaped(it.throttled.as_deref().unwrap_or(NOT_QUOTA)))
                    }
                }
            }
            @if !borrowers.is_empty() {
                p { "Borrowing now: " @for group in &borrowers { (group) " " } }
            }
        }
    }
}

fn charts(groups: &[&GroupStanding], decisions: &[GovernorRecord]) -> Markup {
    let times: Vec<Millis> = decisions.iter().map(|decision| decision.at_ms).collect();
    let shown: BTreeSet<(&Group, &ExecutorType)> = decisions
        .iter()
        .flat_map(|decision| &decision.groups)
        .flat_map(|(group, kinds)| kinds.keys().map(move |kind| (group, kind)))
        .filter(|(group, _)| groups.iter().any(|it| it.group == **group))
        .collect();
    let chart = |(number, (group, kind)): (usize, &(&Group, &ExecutorType))| {
        let of = |value: fn(&Governed) -> Esu| -> Vec<Option<f64>> {
            decisions.iter().map(|it| Some(value(it.groups.get(*group)?.get(*kind)?).units())).collect()
        };
        let line = |name, class, value| Line { name, class, values: of(value) };
        let lines = [
            line("In use (PV)", "pv", |it| it.pv),
            line("May use (SP)", "sp", |it| it.sp),
            line("Quota", "quota", |it| it.quota),
            line("Target", "target", |it| it.target),
            line("To start (MV)", "mv", |it| it.mv.or_zero()),
            line("Waiting", "waiting", |it| it.waiting),
        ];
        over_time(&format!("chart-{number}"), &format!("{group}, {kind}"), "ESU", &times, &lines)
    };
    html! {
        @if shown.is_empty() {
            p { "The governor has decided nothing in this time: it does so while a quota is set or executors are running." }
        } @else {
            h2 { "Over time" }
            @for it in shown.iter().enumerate().take(CHARTS_MAX) { (chart(it)) }
            @if shown.len() > CHARTS_MAX { p { (shown.len() - CHARTS_MAX) " more: choose a group." } }
        }
    }
}

fn change_form(quota: &QuotaReply, chosen: Option<&Group>) -> Markup {
    let own = chosen.and_then(|group| quota.groups.iter().find(|it| it.group == *group)?.quota.as_ref());
    let value = own.map(|quota| words(&quota.esu)).unwrap_or_default();
    html! {
        h2 { "Change a quota" }
        form.filter method="post" action="/quota" {
            label { "Group " input name="group" required value=(chosen.map(ToString::to_string).unwrap_or_default()); }
            label { "ESU by type, as x86=4 " input name="esu" value=(value) placeholder="x86=4 gpu=1"; }
            button { "Change…" }
        }
        p { "Nothing changes before you confirm it. Without ESU, the quota of the group is removed." }
    }
}

/// A quota as it is written in the form.
fn words(esu: &Occupancy) -> String {
    esu.iter().map(|(kind, amount)| format!("{kind}={}", amount.units())).collect::<Vec<_>>().join(" ")
}

#[derive(Deserialize)]
pub(crate) struct Change {
    group: String,
    #[serde(default)]
    esu: String,
    /// Set by the second form.
    #[serde(default)]
    sure: String,
}

/// Handles `POST /quota`: asks whether to change a quota, and changes it after the second form.
pub(crate) async fn change(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    Form(change): Form<Change>,
) -> Result<axum::response::Response, ErrorPage> {
    use axum::response::IntoResponse as _;
    let group: Group = change.group.trim().parse().map_err(Failure::from)?;
    caller.check(Need::In(Right::Operate, &group)).map_err(Failure::from)?;
    let esu = parse(&change.esu)?;
    check(&site, esu.as_ref())?;
    let key = QuotaOf::Group(group.clone());
    let (_, before) = site.client().bus().buckets().get::<Quota>(&key).await.map_err(Failure::from)?;
    if change.sure != "yes" {
        let question = question(&group, before.as_ref(), esu.as_ref(), &change);
        let reader = Reader::of(&caller, &site.callers);
        return Ok(page_for("Change a quota", &question, false, &reader).into_response());
    }
    let changed = change_text(before.as_ref(), esu.as_ref());
    let quota = esu.map(|esu| Quota { esu });
    site.client().bus().buckets().put(&key, quota.as_ref()).await.map_err(Failure::from)?;
    caller.did(AuditKind::Quota, group.to_string(), Some(&changed));
    Ok(Redirect::to(&format!("/quota?group={group}")).into_response())
}

/// Refuses executor types that the farm does not have.
fn check(site: &Site, esu: Option<&Occupancy>) -> Result<(), Failure> {
    let known = &site.settings.executor_types;
    match esu.into_iter().flat_map(Occupancy::iter).find(|(kind, _)| !known.contains(*kind)) {
        None => Ok(()),
        Some((kind, _)) => {
            let known: Vec<&str> = known.iter().map(ExecutorType::as_str).collect();
            Err(Failure::invalid(format!("unknown executor type {kind}: expected {}", known.join(", "))))
        }
    }
}

fn words_or_none(esu: Option<&Occupancy>) -> String {
    esu.map_or_else(|| "none".to_owned(), words)
}

/// What changes, for the record of it.
fn change_text(before: Option<&Quota>, after: Option<&Occupancy>) -> String {
    format!("from {} to {}", words_or_none(before.map(|quota| &quota.esu)), words_or_none(after))
}

fn question(group: &Group, before: Option<&Quota>, after: Option<&Occupancy>, change: &Change) -> Markup {
    let text = words_or_none;
    html! {
        h1 { "Change the quota of " (group) "?" }
        dl.facts {
            div { dt { "Now" } dd { (text(before.map(|quota| &quota.esu))) } }
            div { dt { "Then" } dd { (text(after)) } }
        }
        p { "It takes effect at the next decision of the governor. Builds that run go on." }
        form method="post" action="/quota" {
            input type="hidden" name="group" value=(group);
            input type="hidden" name="esu" value=(change.esu);
            input type="hidden" name="sure" value="yes";
            button { "Change it" }
            " " a href={ "/quota?group=" (group) } { "Leave it as it is" }
        }
    }
}

/// The quota that is written in the form; none: it is removed.
fn parse(text: &str) -> Result<Option<Occupancy>, Failure> {
    if text.len() > TEXT_MAX {
        return Err(Failure::invalid(format!("a quota has at most {TEXT_MAX} bytes as text")));
    }
    let mut esu = Occupancy::default();
    for word in text.split_whitespace() {
        let (kind, amount) = parse_amount(word).map_err(|error| Failure::invalid(error.to_string()))?;
        if esu.iter().any(|(known, _)| *known == kind) {
            return Err(Failure::invalid(format!("invalid amount {word:?}: {kind} is given twice")));
        }
        esu.add(&kind, amount);
    }
    Ok((!text.trim().is_empty()).then_some(esu))
}

#[cfg(test)]
mod tests {
    use super::{parse, words};

    #[test]
    fn a_quota_is_written_as_it_is_read() {
        let esu = parse(" x86=4 gpu=0.5 ").unwrap().unwrap();
        assert_eq!(parse(&words(&esu)).unwrap().unwrap(), esu);
        assert!(parse("").unwrap().is_none());
        for wrong in ["x86", "x86=", "x86=-1", "x86=nan", "=4", "x86=1e400", "x86=1 x86=2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
