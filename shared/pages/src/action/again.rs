//! Runs an action again, without the cache.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    extract::{Extension as FromExtensions, Form, State as FromState},
    response::Redirect,
};
use callers::Caller;
use http_api::{Failure, PathParameters};
use model::{AuditKind, BlobDigest, ErrorCode, Group};
use parking_lot::Mutex;
use policy::access::{Need, Right};
use reapi::execution::ExecuteOperationMetadata;
use remote::{Remote, RemoteError};
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};
use tonic::metadata::MetadataMap;

use crate::{blob, layout::ErrorPage, site::Site};

/// Maximum number of actions that this process waits for.
const AT_ONCE: usize = 16;
static WAITING: Semaphore = Semaphore::const_new(AT_ONCE);
/// Time to wait for the execution to be accepted.
const PATIENCE: Duration = Duration::from_secs(5);

/// The actions that this process runs again: each once at a time.
static RUNNING: Mutex<BTreeSet<BlobDigest>> = Mutex::new(BTreeSet::new());

/// An action that runs again, until it is dropped.
struct Running(BlobDigest);

impl Running {
    /// None: it runs already.
    fn begin(digest: BlobDigest) -> Option<Self> {
        // Not `then_some`: a value that is dropped while the lock is held would deadlock.
        let is_new = RUNNING.lock().insert(digest);
        is_new.then(|| Self(digest))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.lock().remove(&self.0);
    }
}

#[derive(Deserialize)]
pub(crate) struct Again {
    group: String,
}

/// Handles `POST /action-again/{digest}`: executes the action on a gateway of the farm, and shows the action.
pub(crate) async fn again(
    FromState(site): FromState<Site>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    Form(form): Form<Again>,
) -> Result<Redirect, ErrorPage> {
    let digest = blob::digest(names.text("digest"))?;
    let group: Group = form.group.parse().map_err(Failure::from)?;
    caller.check(Need::In(Right::Execute, &group)).map_err(Failure::from)?;
    let busy =
        |_| Failure::new(ErrorCode::Unavailable, "16 actions that were run again have not ended: try later");
    let shown = Redirect::to(&super::path(digest, Some(&group)));
    let Some(running) = Running::begin(digest) else { return Ok(shown) };
    let permit = WAITING.try_acquire().map_err(busy)?;
    let gateway = site.client().bus().gateways().find(&service::host_name()).await.map_err(Failure::from)?;
    let none = || Failure::new(ErrorCode::Unavailable, "no gateway of the farm answers");
    let url = gateway.ok_or_else(none)?.grpc;
    // This process may do more than its caller: an action may read only what the zone of the caller has.
    let store = site.api.seen_by(&caller).map_err(Failure::from)?.cas;
    let connect = async |instance: &str| {
        let remote = Remote::connect(&url, instance, digest.function)
            .await
            .map_err(|error| Failure::new(ErrorCode::Unavailable, telemetry::error_chain(&error)))?;
        Ok::<_, Failure>(match store.bounds() {
            Some(zone) => remote.in_zone(zone),
            None => remote,
        })
    };
    let remotes = if caller.is_ruled {
        // In this group and no other: it is the one to which the caller has a right.
        let mut headers = MetadataMap::new();
        let value = group
            .as_str()
            .parse()
            .map_err(|_| Failure::invalid("the name of the group cannot be a header"))?;
        headers.insert("x-forebay-group", value);
        vec![connect("").await?.with_headers(headers)]
    } else {
        // A farm need not have an instance for each group: the empty name is that of the default group.
        vec![connect(group.as_str()).await?, connect("").await?]
    };
    let (accepted, mut news) = mpsc::unbounded_channel::<Result<(), String>>();
    // The execution goes on only as long as a client waits for it.
    tokio::spawn(async move {
        let mut last = Ok(());
        for remote in remotes {
            let progress = accepted.clone();
            let is_accepted = move |_: &str, _: &ExecuteOperationMetadata| {
                // The page may have gone on already.
                let _ = progress.send(Ok(()));
            };
            let executed = remote.execute(&digest, true, 0, is_accepted).await;
            let is_refused = executed.as_ref().is_err_and(RemoteError::is_invalid_request);
            last = executed.map(drop).map_err(|error| telemetry::error_chain(&error));
            if !is_refused {
                break;
            }
        }
        let _ = accepted.send(last);
        drop((permit, running));
    });
    if let Ok(Some(Err(why))) = tokio::time::timeout(PATIENCE, news.recv()).await {
        return Err(Failure::new(ErrorCode::Unavailable, why).into());
    }
    caller.did(AuditKind::RunAgain, digest.to_string(), Some(&format!("in group {group}")));
    Ok(shown)
}
