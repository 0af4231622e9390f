//! Orders that people give on the page of a build: cancel it, or submit it again.

use std::sync::Arc;

use axum::{
    extract::{Extension as FromExtensions, State as FromState},
    response::Redirect,
};
use callers::Caller;
use http_api::{PathParameters, authorize_cancel, authorize_submit, record_cancel};
use maud::{Markup, html};
use model::{
    Attempt, AuditKind, Build, BuildId, BuildRequest, BuildRequirements, BuildView, JobSource, Occupancy,
    SECRETS_PROPERTY, State, StoredJob,
};

use crate::{
    layout::{ErrorPage, path_of},
    site::Site,
};

/// Handles `POST /builds/{group}/{id}/cancel`, and shows the build again.
pub(crate) async fn cancel(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Redirect, ErrorPage> {
    let key = names.key()?;
    authorize_cancel(site.client(), &caller, &key).await?;
    let reason = Some("cancelled on its page".to_owned());
    let reply = site.client().cancel_as(&key, reason, caller.submitter()).await?;
    record_cancel(&caller, &reply, None);
    Ok(Redirect::to(&path_of(&key)))
}

/// Handles `POST /builds/{group}/{id}/resubmit`: submits the same request with a new id, and shows that build.
pub(crate) async fn resubmit(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Redirect, ErrorPage> {
    let key = names.key()?;
    let view = site.client().get(&key).await?;
    let mut request = BuildRequest { id: Some(BuildId::generate()), ..request_of(&view.record.build) };
    authorize_submit(&caller, &key.group, &mut request)?;
    let reply = site.client().create(&key.group, &request, None).await?;
    caller.did(AuditKind::RunAgain, key.to_string(), Some(&format!("as build {}", reply.id)));
    Ok(Redirect::to(&format!("/builds/{}/{}", reply.group, reply.id)))
}

/// The request that a build was made of, without its id.
pub(super) fn request_of(build: &Build) -> BuildRequest {
    let job = build.job.as_ref();
    BuildRequest {
        id: None,
        group: Some(build.group.clone()),
        priority: Some(build.priority),
        command: build.command.clone(),
        job: job.map(|job| {
            JobSource::Stored(StoredJob { digest: job.digest.clone(), size_bytes: job.size_bytes })
        }),
        env: build.env.clone(),
        context: build.context.clone(),
        timeout_seconds: Some(build.timeout_seconds),
        queue_timeout_seconds: Some(build.queue_timeout_seconds),
        max_attempts: Some(build.max_attempts).map(|Attempt(attempts)| attempts),
        lease_ttl_seconds: Some(build.lease_ttl_seconds),
        outputs: build.outputs.clone(),
        require_outputs: build.require_outputs,
        tool: build.tool.clone(),
        workspace: Some(build.workspace),
        executor_types: build.occupancy.iter().map(|(kind, _)| kind.clone()).collect(),
        requirements: requirements_of(build),
        secrets: build.secrets.clone(),
        services: build.services.clone(),
        limits: build.limits,
        // An estimate of the farm is made again.
        occupancy: Occupancy::default(),
        submitter: build.submitter.clone(),
        labels: build.labels.clone(),
    }
}

/// The requirements of the request, without those that follow from its secrets.
pub(super) fn requirements_of(build: &Build) -> BuildRequirements {
    let mut requirements = build.requirements.clone();
    requirements.0.retain(|name, _| !name.starts_with(SECRETS_PROPERTY));
    requirements
}

/// Buttons, each behind a question.
pub(super) fn forms(view: &BuildView) -> Markup {
    let path = path_of(&view.record.build.key());
    let key = view.record.build.key();
    html! {
        div.orders {
            a href={ "/compare?a=" (key.group) "/" (key.id) } { "Compare it with another build" }
            @if view.state == State::Finished {
                details #resubmit {
                    summary { "Run it again" }
                    form method="post" action={ (path) "/resubmit" } {
                        p { "The same request is submitted with a new id." }
                        button { "Submit it again" }
                    }
                }
            } @else {
                details #cancel {
                    summary { "Cancel this build" }
                    form method="post" action={ (path) "/cancel" } {
                        p { "Its processes are killed, and what they wrote so far is kept." }
                        button { "Cancel the build" }
                    }
                }
            }
        }
    }
}
