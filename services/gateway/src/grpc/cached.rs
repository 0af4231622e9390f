//! Results of actions in the action cache.

use model::BlobDigest;
use reapi::execution::ActionResult;
use tonic::Status;

use super::{Core, faults};

/// The cached result of an action, if it is complete and successful.
pub(crate) async fn look_up(
    core: &Core,
    instance: &str,
    action: &BlobDigest,
) -> Result<Option<ActionResult>, Status> {
    let found = core.cas.get_action(instance, action).await.map_err(|error| faults::store(&error))?;
    // A failure stored by a client does not count: the action is executed again.
    Ok(found.filter(|result| result.exit_code == 0).map(|result| (*result).clone()))
}
