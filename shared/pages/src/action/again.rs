//! Runs an action again, without the cache.

use std::time::Duration;

use axum::{
    extract::{Form, State as FromState},
    response::Redirect,
};
use http_api::{Failure, PathParameters};
use model::{ErrorCode, Group};
use remote::Remote;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};

use crate::{blob, layout::ErrorPage, site::Site};

/// Maximum number of actions that this process waits for.
const AT_ONCE: usize = 16;
static WAITING: Semaphore = Semaphore::const_new(AT_ONCE);
/// Time to wait for the execution to be accepted.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
pub(crate) struct Again {
    group: String,
}

/// Handles `POST /action-again/{digest}`: executes the action on a gateway of the farm, and shows the action.
pub(crate) async fn again(
    FromState(site): FromState<Site>,
    names: PathParameters,
    Form(form): Form<Again>,
) -> Result<Redirect, ErrorPage> {
    let digest = blob::digest(names.text("digest"))?;
    let group: Group = form.group.parse().map_err(Failure::from)?;
    let busy =
        |_| Failure::new(ErrorCode::Unavailable, "16 actions that were run again have not ended: try later");
    let permit = WAITING.try_acquire().map_err(busy)?;
    let gateway = site.client().bus().gateways().find(&service::host_name()).await.map_err(Failure::from)?;
    let none = || Failure::new(ErrorCode::Unavailable, "no gateway of the farm answers");
    let url = gateway.ok_or_else(none)?.grpc;
    let failed =
        |error: remote::RemoteError| Failure::new(ErrorCode::Unavailable, telemetry::error_chain(&error));
    // By default, the empty instance name is the group `default`, and no other group has an instance of its own.
    let instance = if group.as_str() == "default" { "" } else { group.as_str() };
    let remote = Remote::connect(&url, instance, digest.function).await.map_err(failed)?;
    let (accepted, mut news) = mpsc::unbounded_channel::<Result<(), String>>();
    // The execution goes on only as long as a client waits for it.
    tokio::spawn(async move {
        let progress = accepted.clone();
        let executed = remote
            .execute(&digest, true, 0, move |_, _| {
                let _ = progress.send(Ok(()));
            })
            .await;
        let _ = accepted.send(executed.map(drop).map_err(|error| telemetry::error_chain(&error)));
        drop(permit);
    });
    match tokio::time::timeout(PATIENCE, news.recv()).await {
        Ok(Some(Err(why))) => Err(Failure::new(ErrorCode::Unavailable, why).into()),
        Ok(Some(Ok(()))) | Ok(None) | Err(_) => Ok(Redirect::to(&super::path(digest, Some(&group)))),
    }
}
