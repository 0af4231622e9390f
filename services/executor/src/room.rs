//! Reports the room of this executor to the schedulers, when no record of a finished action carries it.

use std::sync::Arc;

use service::ServiceError;

use crate::{sensor_readings, shared::Shared};

/// Reports the room after changes that no record or heartbeat reports, until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    loop {
        shared.actions.room_changed.notified().await;
        sensor_readings::read(&shared);
        // If it is lost, the next heartbeat reports the room.
        shared.context.bus.send_or_log(&(), &shared.room_report()).await;
    }
}
