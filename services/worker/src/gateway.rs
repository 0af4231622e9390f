//! The address of the Remote Execution API: requested from the live gateways, cached, and requested again when a
//! gateway joins or leaves.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Subject};
use parking_lot::Mutex;
use service::{ServiceError, host_name};
use tokio::sync::Notify;
use tracing::debug;

/// A killed gateway sends no notice, so the address is also checked at this interval.
const REPAIR: Duration = Duration::from_secs(60);

/// The known state of the gateways.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    known: Mutex<Known>,
    changed: Arc<Notify>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    /// `grpc://HOST:PORT` of one live gateway.
    grpc: Option<String>,
    /// Whether executors ever registered: without executors, tools must not send actions to the farm.
    executes: bool,
}

impl Gateways {
    /// The address for tools in builds that send actions on their own.
    pub(crate) fn for_tools(&self) -> Option<String> {
        let known = self.known.lock();
        known.grpc.clone().filter(|_| known.executes)
    }

    /// Asks now for a live gateway.
    pub(crate) async fn find(&self, bus: &Bus) -> Option<String> {
        match bus.gateways().find(&host_name()).await {
            Ok(found) => {
                let grpc = found.map(|address| address.grpc);
                self.known.lock().grpc.clone_from(&grpc);
                grpc
            }
            Err(error) => {
                debug!(error = telemetry::error_chain(&error), "cannot ask the gateways");
                None
            }
        }
    }

    /// Keeps the known state up to date until the worker ends.
    pub(crate) async fn follow(&self, bus: &Bus) -> Result<(), ServiceError> {
        let listen = |what: &Subject| {
            let changed = Arc::clone(&self.changed);
            bus.on_changed(what, move || changed.notify_one())
        };
        let (came, pools) = (listen(&Subject::GatewayChanged), listen(&Subject::PoolChanged));
        let ask = async {
            loop {
                self.find(bus).await;
                match bus.buckets().pools().await {
                    Ok(pools) => self.known.lock().executes = !pools.is_empty(),
                    Err(error) => debug!(error = telemetry::error_chain(&error), "cannot read the pools"),
                }
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep(REPAIR) => {}
                }
            }
        };
        let failed = |error| ServiceError::failed("following the gateways", error);
        tokio::select! {
            ended = came => ended.map_err(failed),
            ended = pools => ended.map_err(failed),
            () = ask => Ok(()),
        }
    }
}
