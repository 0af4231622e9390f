//! What the handlers of HTTP requests work with.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::body::Bytes;
use cas::Cas;
use client::{Client, ClientError, OpenLog, RunChoice};
use model::BuildKey;
use service::{Context, ServiceError};
use telemetry::metrics::{Counter, Label, expect};
use tokio_util::sync::CancellationToken;

use crate::{events::WATCH_ENDPOINT, log_cache::LogCache, openapi};

/// State shared by all request handlers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    pub client: Client,
    /// Holds output files and the frames of console output.
    pub cas: Cas,
    /// Maximum size of a request body, in bytes.
    pub(crate) request_bytes_max: usize,
    /// How long a client may leave its response unread.
    pub(crate) reading: Duration,
    /// Cancelled when the process must stop.
    pub stop: CancellationToken,
    /// Indexes of logs that were read recently.
    pub(crate) logs: Arc<LogCache>,
    /// The OpenAPI document, made when it is first read.
    pub(crate) openapi: Arc<LazyLock<Bytes>>,
}

/// Maximum number of messages buffered for a watcher that does not read. Messages beyond it are dropped and read
/// from the stream later.
const HEARD_AHEAD: usize = 32;

impl Api {
    /// Connects what handlers work with; none if the context was stopped meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the bus or the store cannot be used.
    pub async fn connect(
        context: &Context,
        cas: Cas,
        request_bytes_max: usize,
    ) -> Result<Option<Self>, ServiceError> {
        expect(Counter::ApiRequests, &[(Label::Endpoint, WATCH_ENDPOINT), (Label::Status, "unavailable")]);
        let name = format!("forebay {} watches", context.instance);
        let live = tokio::select! {
            () = context.stop.cancelled() => return Ok(None),
            live = context.bus.connect_live(&name, HEARD_AHEAD) => live?,
        };
        Ok(Some(Self {
            client: Client::new(context.bus.clone()).with_live_connection(live),
            cas,
            request_bytes_max,
            reading: context.limiter.patience().reading,
            stop: context.stop.clone(),
            logs: Arc::default(),
            openapi: Arc::new(LazyLock::new(|| openapi().to_string().into())),
        }))
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
