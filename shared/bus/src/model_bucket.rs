//! The bucket with the occupancy model that enqueuers use: where its content is kept and what is known of it.

use async_nats::HeaderMap;
use futures::StreamExt as _;
use model::ModelNotice;

use crate::{Bus, BusError, Encoding, Stored, encode, stream};

const CURRENT: &str = "$KV.FOREBAY_MODELS.current";
const LIVE: &str = "forebay.model.live.current";

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
    /// The model that was published last.
    pub async fn current_model(&self) -> Result<Option<ModelNotice>, BusError> {
        match self.last_stored(stream::MODELS, CURRENT).await? {
            None => Ok(None),
            Some(stored) => stored.read().map(Some),
        }
    }

    /// Publishes a model, whose content is in the store already.
    pub async fn publish_model(&self, notice: &ModelNotice) -> Result<(), BusError> {
        let written = self.publish_once(CURRENT, HeaderMap::new(), encode(Encoding::Json, notice)).await;
        written.map(drop).map_err(BusError::failed("publishing an occupancy model".to_owned()))
    }

    /// Tells of every model from now on.
    pub async fn model_changes(&self) -> Result<ModelChanges, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(ModelChanges(subscribed.map_err(BusError::failed("subscribing to models".to_owned()))?))
    }
}
