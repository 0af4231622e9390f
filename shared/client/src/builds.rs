//! Lists of builds of one group or all.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use model::{ArchivedBuildsRequest, BuildKey, BuildView, Group, ListReply, ListRequest, State};
use policy::listing;
use tokio::time::timeout;

use crate::{Client, ClientError};

/// Maximum number of groups that are asked at a time.
const GROUPS_AT_ONCE: usize = 16;
const LIMIT: usize = 50;
/// Time limit of the archive, if the builds of the bus are an answer, too.
const PATIENCE: Duration = Duration::from_secs(3);

impl Client {
    /// The builds of a group, or of all groups, newest first. Each group is asked, and the archive adds what the bus has
    /// no more, if it answers within 3 seconds; a request that only the archive can answer goes to the archive.
    pub async fn builds(
        &self,
        group: Option<&Group>,
        request: &ListRequest,
    ) -> Result<ListReply, ClientError> {
        if request.is_for_archive() {
            let request = ArchivedBuildsRequest { group: group.cloned(), list: request.clone() };
            let found = self.archived_builds(&request).await?;
            return self.current(found, request.list.state).await;
        }
        if let Some(group) = group {
            return self.list(group, request).await;
        }
        let of_group = |group: Group| async move { self.list(&group, request).await };
        let groups = futures::stream::iter(self.groups().await?).map(of_group);
        let replies: Vec<ListReply> = groups.buffer_unordered(GROUPS_AT_ONCE).try_collect().await?;
        let limit = request.limit.unwrap_or(LIMIT);
        // The archive may not know yet what became of waiting and running builds.
        let is_unfinished = matches!(request.state, Some(State::Enqueued | State::InProgress));
        let page = if is_unfinished { None } else { self.archived_page(request, limit).await };
        let Some(page) = page else { return Ok(listing::of_all_groups(replies, limit)) };
        let live = listing::of_all_groups(replies, usize::MAX).builds;
        let newer = listing::not_archived(&live, &page);
        let left = limit.saturating_sub(newer.len());
        let rest = if newer.is_empty() || left == 0 {
            page
        } else {
            self.archived_page(request, left).await.unwrap_or(page)
        };
        Ok(listing::with_archived(newer, rest, &live, limit))
    }

    /// The list with the current state of the builds that had not ended when the archive read them, without those that
    /// are not in `state` any more.
    async fn current(&self, found: ListReply, state: Option<State>) -> Result<ListReply, ClientError> {
        let is_open = |view: &&BuildView| view.state != State::Finished;
        let open: Vec<BuildKey> =
            found.builds.iter().filter(is_open).map(|view| view.record.build.key()).collect();
        if open.is_empty() {
            return Ok(found);
        }
        let records = self.bus().records().latest_many(&open).await?;
        let live: Vec<BuildView> =
            records.into_iter().map(|(sequence, record)| BuildView::new(sequence, record)).collect();
        let limit = found.builds.len();
        let mut found = listing::with_archived(Vec::new(), found, &live, limit);
        found.builds.retain(|view| state.is_none_or(|state| view.state == state));
        Ok(found)
    }

    /// A page of builds of all groups from the archive; none if it does not answer.
    async fn archived_page(&self, request: &ListRequest, limit: usize) -> Option<ListReply> {
        let list = ListRequest { limit: Some(limit), ..request.clone() };
        let request = ArchivedBuildsRequest { group: None, list };
        timeout(PATIENCE, self.archived_builds(&request)).await.ok()?.ok()
    }
}
