//! Watches a store that is read through a gateway: while it does not answer, the worker accepts no offers. The calls of
//! builds show whether it answers; it is probed only after a call remained without an answer. A probe asks for a blob:
//! it also fails if the gateway answers, but the object store behind it does not.

use std::{sync::Arc, time::Duration};

use cas::CasError;
use service::ServiceError;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::shared::Shared;

/// Time between two probes.
const PROBE: Duration = Duration::from_secs(1);
/// Time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the store does not answer before no offers are accepted: a gateway that is being replaced is back sooner.
const PATIENCE: Duration = Duration::from_secs(3);

/// Watches until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let Some(mut away) = shared.cas.away() else { return std::future::pending().await };
    loop {
        if away.wait_for(|away| *away).await.is_err() {
            return Err(ServiceError::failed("watching the store", "the store was closed"));
        }
        wait_for_answer(&shared).await;
    }
}

/// Probes the store until it answers.
async fn wait_for_answer(shared: &Shared) {
    let (since, url) = (Instant::now(), shared.cas.url());
    let mut closed = false;
    loop {
        tokio::time::sleep(PROBE).await;
        match tokio::time::timeout(PROBE_TIMEOUT, shared.cas.probe()).await {
            Err(_) => {}
            Ok(Err(error @ CasError::Unreachable { .. })) => {
                debug!(error = telemetry::error_chain(&error), "the store does not answer");
            }
            Ok(Ok(()) | Err(_)) => break,
        }
        if !closed && since.elapsed() >= PATIENCE {
            closed = true;
            let why = format!("the store at {url} does not answer");
            warn!("the worker accepts no builds: {why}");
            shared.workspaces.set_store_away(Some(why));
        }
    }
    if closed {
        info!(url, "the store answers again: accepting builds");
        shared.workspaces.set_store_away(None);
    }
}
