//! The environments that the farm stores, on its page: their versions, and a button that approves one.

use std::sync::Arc;

use axum::{
    extract::{Extension as FromExtensions, State as FromState},
    response::Redirect,
};
use callers::Caller;
use http_api::{Failure, PathParameters};
use maud::{Markup, html};
use model::{
    Environment, EnvironmentChange, EnvironmentName, EnvironmentState, EnvironmentVersion, Millis,
    ParseIdError,
};
use telemetry::escaped;

use crate::{
    layout::{ErrorPage, ago, short, table},
    site::Site,
};

/// The versions of all environments.
pub(crate) fn of_environments(environments: &[Environment], now: Millis) -> Markup {
    let rows = html! {
        @for environment in environments {
            @let current = environment.current().map_or(0, |(version, _)| version.number);
            @for version in environment.versions.iter().rev() {
                tr {
                    td { (environment.name) }
                    td.number { (version.number) }
                    td { (state(version, version.number == current)) }
                    td { (change(&version.proposed, now)) }
                    td {
                        @match &version.approved {
                            Some(approved) => { (change(approved, now)) }
                            None => { (approve(&environment.name, version)) }
                        }
                    }
                    td { (content(&environment.name, version)) }
                }
            }
        }
    };
    table("Environments", &["Environment", "Version", "State", "Proposed", "Approved", "Image"], &rows)
}

fn state(version: &EnvironmentVersion, is_current: bool) -> Markup {
    let (class, sign) = match &version.state {
        EnvironmentState::Ready { .. } => ("good", "✓"),
        EnvironmentState::Proposed => ("warn", "○"),
        EnvironmentState::Approved { .. } => ("busy", "▶"),
        EnvironmentState::Failed { .. } => ("bad", "✗"),
    };
    let current = if is_current { ", current" } else { "" };
    html! { span class={ "badge " (class) } { (sign) " " (version.state.as_str()) (current) } }
}

fn change(change: &EnvironmentChange, now: Millis) -> Markup {
    html! { (ago(change.at_ms, now)) @if let Some(by) = &change.by { " by " (escaped(by)) } }
}

/// A button behind the definition, so that who approves has seen it.
fn approve(name: &EnvironmentName, version: &EnvironmentVersion) -> Markup {
    let definition = serde_json::to_string_pretty(&version.definition).unwrap_or_default();
    html! {
        details id={ "approve-" (name) "-" (version.number) } {
            summary { "Review" }
            pre { (escaped(&definition)) }
            form method="post" action={ "/farm/approve/" (version.number) "/" (name) } {
                button.small { "Approve version " (version.number) " of " (name) }
            }
        }
    }
}

/// The image, or why there is none.
fn content(name: &EnvironmentName, version: &EnvironmentVersion) -> Markup {
    let build = version.state.build();
    html! {
        @match &version.state {
            EnvironmentState::Ready { image, .. } => code { (image) },
            EnvironmentState::Failed { reason, .. } => (short(reason, 200)),
            EnvironmentState::Proposed | EnvironmentState::Approved { .. } => {}
        }
        @if let Some(build) = build { " " a href={ "/builds/" (name.build_key(build)) } { "build" } }
    }
}

/// Handles `POST /farm/approve/{version}/{name}`: approves a version.
pub(crate) async fn approve_one(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Redirect, ErrorPage> {
    let name: EnvironmentName =
        names.text("name").parse().map_err(|error: ParseIdError| Failure::invalid(error.to_string()))?;
    let number =
        names.text("version").parse().map_err(|_| Failure::invalid("invalid version: expected a number"))?;
    http_api::approve_environment(&site.api, &caller, &name, Some(number), None).await?;
    Ok(Redirect::to("/farm"))
}
