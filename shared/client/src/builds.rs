//! Lists of builds of one group or all.

use bus::{Message as _, Subject};
use model::{ArchivedBuildsRequest, BuildKey, BuildView, Group, ListReply, ListRequest, State};
use policy::listing;

use crate::{
    Client, ClientError,
    calls::{ENQUEUER, TRIES},
};

impl Client {
    /// The builds of a group, or of all groups, newest first. The archive adds expired builds, if it answers
    /// within 3 seconds; a request that only the archive can answer goes to the archive.
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
        match group {
            Some(group) => self.list(group, request).await,
            None => self.call(&Subject::Builds, ENQUEUER, request.to_json(), None, TRIES).await,
        }
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
}
