//! The bucket with the occupancy model in use: the location of its content and its description.

use std::time::Duration;

use futures::StreamExt as _;
use model::{ModelNotice, Sequence};
use tracing::warn;

use crate::{Bus, BusError, Encoding, Stored, encode, stream, transition::Write};

const CURRENT: &str = "$KV.FOREBAY_MODELS.current";
const LIVE: &str = "forebay.model.live.current";
/// Time for which an uncertain publication is read back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Yields each model that is published. A connection loss may lose one: read the current model after a reconnection.
#[derive(Debug)]
pub struct ModelChanges(async_nats::Subscriber);

impl ModelChanges {
    /// The next model; `None` when the connection is closed for good.
    pub async fn next(&mut self) -> Option<ModelNotice> {
        loop {
            let (stored, _) = Stored::from_live(self.0.next().await?)?;
            // A notice that cannot be read was written by another version; skip it.
            if let Ok(notice) = stored.read() {
                return Some(notice);
            }
        }
    }
}

impl Bus {
    /// The last published model and its position. `(0, None)` if none was ever published; `(position, None)` if the
    /// notice cannot be read, so that an unreadable notice blocks neither users of models nor its replacement.
    pub async fn current_model(&self) -> Result<(Sequence, Option<ModelNotice>), BusError> {
        let Some(stored) = self.last_stored(stream::MODELS, CURRENT).await? else {
            return Ok((Sequence(0), None));
        };
        let notice = stored.read().inspect_err(|error| {
            warn!(error = %error, "ignoring the unreadable notice of the occupancy model");
        });
        Ok((stored.sequence, notice.ok()))
    }

    /// Publishes a model whose content is already in the store, if the last one is still at `expected`; returns
    /// whether it was published.
    pub async fn publish_model(&self, notice: &ModelNotice, expected: Sequence) -> Result<bool, BusError> {
        let payload = encode(Encoding::Json, notice);
        let write = Write::new(stream::MODELS, CURRENT.to_owned(), expected, payload);
        Ok(self.compare_and_set(&write, PATIENCE).await?.is_ok())
    }

    /// Subscribes to all models published from now on.
    pub async fn model_changes(&self) -> Result<ModelChanges, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(ModelChanges(subscribed.map_err(BusError::failed("subscribing to models".to_owned()))?))
    }
}
