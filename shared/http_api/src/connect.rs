//! Connects what the handlers work with.

use std::sync::{Arc, LazyLock};

use cas::Cas;
use client::Client;
use service::{Context, ServiceError};
use telemetry::metrics::{Counter, Label, expect};

use crate::{Api, WebOrigin, events::WATCH_ENDPOINT, openapi};

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
        let name = format!("forebay {} {} watches", context.name, context.instance);
        let live = tokio::select! {
            () = context.stop.cancelled() => return Ok(None),
            live = context.bus.connect_live(&name, HEARD_AHEAD) => live?,
        };
        let access = &context.settings.access;
        Ok(Some(Self {
            client: Client::new(context.bus.clone()).with_live_connection(live),
            cas,
            zones: Arc::new(context.zones()?),
            request_bytes_max,
            reading: context.limiter.patience().reading,
            origin: WebOrigin::new(access.public_url.clone(), access.tls.is_some()),
            stop: context.stop.clone(),
            logs: Arc::default(),
            openapi: Arc::new(LazyLock::new(|| openapi().to_string().into())),
        }))
    }
}
