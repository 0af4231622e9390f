//! Publishing a build, for users who may not call `create`: that call names the priority in its body, which nats-server does
//! not read, so only users with all priorities of a group may.

use std::time::Duration;

use bus::{BusError, Denied};
use model::{
    ApiError, BuildId, BuildKey, BuildRequest, BuildView, CreateReply, ErrorCode, Group, Outcome, Sequence,
};
use tokio::time::Instant;

use crate::{Client, ClientError};

/// Time limit until an enqueuer has accepted or rejected a stored build.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which it is asked again without an event, which may be lost.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Client {
    /// Publishes a build, and waits until an enqueuer has accepted it. `denied` is why `create` did not.
    pub(crate) async fn publish(
        &self,
        group: &Group,
        request: &BuildRequest,
        traceparent: Option<&str>,
        denied: Denied,
    ) -> Result<CreateReply, ClientError> {
        // Without an id, nothing of it could be found.
        let Some(id) = request.id else { return Err(BusError::from(denied).into()) };
        let key = BuildKey { group: group.clone(), id };
        let priority = request.priority.unwrap_or_default();
        let mut live = self.live_build(&key).await?;
        self.bus().publish_request(group, priority, request, traceparent).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.get(&key).await {
                Ok(view) => return accepted(group, id, &view),
                Err(ClientError::Api(error)) if error.error == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                // It is stored: an enqueuer will accept it.
                return Ok(CreateReply { id, group: key.group, sequence: Sequence(0), duplicate: false });
            }
            // Any event shows that an enqueuer has read it.
            let _ = tokio::time::timeout(ASK_AGAIN, live.next()).await;
        }
    }
}

fn accepted(group: &Group, id: BuildId, view: &BuildView) -> Result<CreateReply, ClientError> {
    if let Some(result) = view.record.result()
        && result.outcome == Outcome::Rejected
    {
        let message = result.reason.as_ref().map_or("the build was rejected", |reason| &reason.message);
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).into());
    }
    // An enqueuer recognises a repeat by group and id, and says so only to callers of `create`.
    Ok(CreateReply { id, group: group.clone(), sequence: view.sequence, duplicate: false })
}
