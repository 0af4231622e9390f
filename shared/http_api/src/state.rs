//! What the handlers of HTTP requests work with.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::body::Bytes;
use callers::{Caller, Refusal};
use cas::Cas;
use client::{Client, ClientError, OpenLog, RunChoice};
use model::{BuildKey, Group};
use policy::zones::Zones;
use tokio_util::sync::CancellationToken;

use crate::{log_cache::LogCache, origin::WebOrigin};

/// State shared by all request handlers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    pub client: Client,
    /// Holds output files and the frames of console output.
    pub cas: Cas,
    /// The trust zones of the farm.
    pub(crate) zones: Arc<Zones>,
    /// Maximum size of a request body, in bytes.
    pub(crate) request_bytes_max: usize,
    /// How long a client may leave its response unread.
    pub(crate) reading: Duration,
    /// How browsers reach this server.
    pub origin: WebOrigin,
    /// Cancelled when the process must stop.
    pub stop: CancellationToken,
    /// Indexes of logs that were read recently.
    pub(crate) logs: Arc<LogCache>,
    /// The OpenAPI document, made when it is first read.
    pub(crate) openapi: Arc<LazyLock<Bytes>>,
}

impl Api {
    /// The same, with the store as a caller sees it.
    ///
    /// # Errors
    ///
    /// Fails if the caller reaches no zone.
    pub fn seen_by(&self, caller: &Caller) -> Result<Self, Refusal> {
        let cas = match caller.sight(&self.zones, None, None)? {
            Some(sight) => self.cas.seen_by(&sight),
            None => self.cas.clone(),
        };
        Ok(Self { cas, ..self.clone() })
    }

    /// Whether a group is in the zone that the store is seen from.
    pub fn is_in_zone(&self, group: &Group) -> bool {
        self.cas.bounds().is_none_or(|zone| self.zones.of_group(group).as_ref() == Some(zone))
    }

    /// Opens the log of a run; of its index, only what is new is read.
    ///
    /// # Errors
    ///
    /// Fails if there is no such build or run, or if the bus does not answer.
    pub async fn open_log(&self, key: &BuildKey, choice: RunChoice) -> Result<OpenLog, ClientError> {
        let log = self.client.open_log(key, choice, self.logs.get(key)).await?;
        if !log.logs.is_archived() {
            self.logs.put(key.clone(), log.logs.clone());
        }
        Ok(log)
    }
}
