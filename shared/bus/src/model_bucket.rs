//! The bucket with the occupancy model that enqueuers use: where its content is kept and what is known of it.

use std::time::Duration;

use futures::StreamExt as _;
use model::{ModelNotice, Sequence};
use tracing::warn;

use crate::{Bus, BusError, Encoding, Stored, encode, stream, transition::Write};

const CURRENT: &str = "$KV.FOREBAY_MODELS.current";
const LIVE: &str = "forebay.model.live.current";
/// For how long a doubtful publication is read back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Told whenever a model is published. May lose one with the connection: read again when that came back.
#[derive(Debug)]
pub struct ModelChanges(async_nats::Subscriber);

impl ModelChanges {
    /// The next model; `None` when the connection is gone for good.
    pub async fn next(&mut self) -> Option<ModelNotice> {
        loop {
            let (stored, _) = Stored::from_live(self.0.next().await?)?;
            // Written by another version: it is no model for us.
            if let Ok(notice) = stored.read() {
                return Some(notice);
            }
        }
    }
}

impl Bus {
    /// The model that was published last, and its position; none at 0 when there never was one, none at a position when
    /// what stands there cannot be read: that must stop neither who uses models nor who replaces it.
    pub async fn current_model(&self) -> Result<(Sequence, Option<ModelNotice>), BusError> {
        let Some(stored) = self.last_stored(stream::MODELS, CURRENT).await? else {
            return Ok((Sequence(0), None));
        };
        let notice = stored.read().inspect_err(|error| {
            warn!(error = %error, "the notice of the occupancy model is taken for none");
        });
        Ok((stored.sequence, notice.ok()))
    }

    /// Publishes a model, whose content is in the store already, if the last one is still that at `expected`; says
    /// whether.
    pub async fn publish_model(&self, notice: &ModelNotice, expected: Sequence) -> Result<bool, BusError> {
        let payload = encode(Encoding::Json, notice);
        let write = Write::new(stream::MODELS, CURRENT.to_owned(), expected, payload);
        Ok(self.compare_and_set(&write, PATIENCE).await?.is_ok())
    }

    /// Tells of every model from now on.
    pub async fn model_changes(&self) -> Result<ModelChanges, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(ModelChanges(subscribed.map_err(BusError::failed("subscribing to models".to_owned()))?))
    }
}
