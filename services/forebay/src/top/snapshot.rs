//! What `forebay top` shows: the state of the farm at one time.

use std::{collections::HashSet, time::Duration};

use client::{Client, ClientError};
use model::{
    BuildKey, BuildView, ExecutorHeartbeat, ListRequest, Millis, QuotaReply, State, WhyReply, WorkerView,
};
use serde::Serialize;

/// Maximum number of builds of each state.
const BUILDS_MAX: usize = 500;

/// The state of the farm, as the services reported it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Snapshot {
    /// Time of the answers by the clock of the farm.
    pub(crate) at_ms: Millis,
    /// Running builds, then waiting ones in the order of their start, then the newest that ended.
    pub(crate) builds: Vec<BuildView>,
    /// Whether the farm has more builds than these.
    pub(crate) more_builds: bool,
    pub(crate) workers: Vec<WorkerView>,
    pub(crate) executors: Vec<ExecutorHeartbeat>,
    pub(crate) quota: Option<QuotaReply>,
    /// Why the build that is shown in detail waits.
    #[serde(skip)]
    pub(crate) why: Option<WhyReply>,
    /// Address of a gateway that this machine can reach, for its pages.
    #[serde(skip)]
    pub(crate) pages: Option<String>,
}

impl Snapshot {
    /// Asks the services. `detail` is the build that is shown in detail.
    pub(crate) async fn read(client: &Client, detail: Option<&BuildKey>) -> Result<Self, ClientError> {
        let of =
            |state| ListRequest { state: Some(state), limit: Some(BUILDS_MAX), ..ListRequest::default() };
        let (running, waiting) = (of(State::InProgress), of(State::Enqueued));
        let newest = ListRequest { limit: Some(BUILDS_MAX / 5), ..ListRequest::default() };
        let (running, waiting, newest, workers, executors, quota, pages) = tokio::try_join!(
            client.builds(None, &running),
            client.builds(None, &waiting),
            client.builds(None, &newest),
            client.workers(),
            async { Ok(client.bus().leases().executors().await?) },
            client.quota(),
            async { Ok(pages(client).await) },
        )?;
        let why = match detail {
            // It may have started meanwhile, or be gone.
            Some(key) => client.why(key).await.ok(),
            None => None,
        };
        let more_builds = running.truncated || waiting.truncated;
        // A build that started or was requeued between the answers is in both lists, or in the newest alone.
        let mut seen = HashSet::new();
        let all = running.builds.into_iter().chain(waiting.builds).chain(newest.builds);
        let builds = all.filter(|view| seen.insert(view.record.build.key())).collect();
        let at_ms = client.bus().now();
        Ok(Self { at_ms, builds, more_builds, workers, executors, quota: Some(quota), why, pages })
    }
}

/// Time limit of the question for gateways: a farm may have none.
const GATEWAYS: Duration = Duration::from_millis(300);

async fn pages(client: &Client) -> Option<String> {
    let found = tokio::time::timeout(GATEWAYS, client.bus().gateways().find(&service::host_name())).await;
    Some(found.ok()?.ok()??.http)
}
