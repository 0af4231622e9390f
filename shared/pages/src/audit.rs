//! The page of audit events: what callers did to the farm, and what they were refused.

use http_api::{Failure, QueryParameters, audit_request};
use maud::{Markup, html};
use model::{AuditDecision, AuditEntry, AuditEvent, AuditKind, AuditText, Millis};

use crate::{
    layout::{ago, choice, table},
    patience::needed,
    site::{Asked, Site},
    view::View,
};

/// Times back from now.
const WITHIN: [(&str, &str, u64); 4] = [
    ("1h", "the last hour", 3600),
    ("1d", "the last day", 86_400),
    ("7d", "the last 7 days", 7 * 86_400),
    ("30d", "the last 30 days", 30 * 86_400),
];

/// Handles `GET /audit`: lists the events that match.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let (query, now) = (&asked.query, site.now());
    let mut request = audit_request(query)?;
    if let Some(within) = query.last("within") {
        let found = WITHIN.into_iter().find(|(name, ..)| *name == within);
        let (.., seconds) = found.ok_or_else(|| Failure::invalid("within: expected 1h, 1d, 7d or 30d"))?;
        request.since_ms = Some(Millis(now.0.saturating_sub(seconds * 1000)));
    }
    let found = needed(site.client().audit(&request)).await?;
    let content = html! {
        h1 { "Audit" }
        (filter(query))
        @if found.events.is_empty() { p { "Nothing was recorded that matches." } } @else { (events(&found.events, now)) }
        @if let Some(next) = &found.next { p { a href={ "/audit?" (query.with("cursor", next)) } { "Older events" } } }
    };
    Ok(View::fixed("Audit", content))
}

fn filter(query: &QueryParameters) -> Markup {
    let value = |name| query.last(name).unwrap_or_default();
    let kinds = AuditKind::ALL.map(|kind| (kind.as_str(), word(kind)));
    let within = WITHIN.into_iter().map(|(name, word, _)| (name, word));
    html! {
        form.filter role="search" method="get" action="/audit" {
            label { "Caller " input name="who" value=(value("who")) placeholder="key:web-*"; }
            (choice("Kind", "kind", kinds.into_iter(), &value("kind")))
            label { "About " input name="target" value=(value("target")) placeholder="GROUP/ID"; }
            (choice("In", "within", within, &value("within")))
            button { "Show" }
            @if !query.is_empty() { " " a href="/audit" { "All events" } }
        }
    }
}

fn word(kind: AuditKind) -> &'static str {
    match kind {
        AuditKind::Refusal => "refused",
        AuditKind::Grant => "let in",
        AuditKind::Cancel => "cancelled",
        AuditKind::Quota => "quota changed",
        AuditKind::Drain => "drained or resumed",
        AuditKind::Environment => "environment changed",
        AuditKind::RunAgain => "run again",
        AuditKind::Purge => "cache purged",
        AuditKind::Access => "access changed",
        AuditKind::Login => "signed in",
        AuditKind::Logout => "signed out",
    }
}

fn events(events: &[AuditEntry], now: Millis) -> Markup {
    let rows = html! { @for entry in events { (row(&entry.event, now)) } };
    table(
        "Audit events",
        &["When", "What", "Caller", "Proved by", "Address", "Call", "About", "Reason"],
        &rows,
    )
}

fn row(event: &AuditEvent, now: Millis) -> Markup {
    let (class, sign) = match event.decision {
        AuditDecision::Allowed => ("good", "✓"),
        AuditDecision::Refused => ("bad", "✗"),
    };
    let text = |text: &Option<AuditText>| html! { @if let Some(text) = text { (text) } };
    html! {
        tr {
            td { (ago(event.at_ms, now)) }
            td { span class={ "badge " (class) } { (sign) " " (word(event.kind)) } }
            td { @if event.who.is_empty() { "no name" } @else { (event.who) } }
            td { (event.proof.as_str()) }
            td { (text(&event.address)) }
            td { code { (event.call) } }
            td { (text(&event.target)) }
            td {
                (text(&event.reason))
                @if event.dropped > 0 { " (and " (event.dropped) " more of this caller before)" }
            }
        }
    }
}
