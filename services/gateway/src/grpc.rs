//! The Remote Execution API over gRPC: any number of gateways serve it, and any of them can answer for what another
//! accepted.

mod asset;
mod config;
mod execution;
mod faults;
mod live;
mod log_streams;
mod mount;
mod names;
mod nobody;
mod operations;
mod pools;
mod response;
mod server;
mod state;
mod submit;
mod trace;
mod validate;
mod waiting;
mod watch_stream;

use std::{sync::Arc, time::Duration};

use bus::Bus;
use cas::Cas;
use tokio_util::sync::CancellationToken;

pub use config::{ConfigError, GrpcConfig};
pub use server::{Serving, serve};

use pools::Pools;
use waiting::Waiters;

/// When a client is told to try again what failed for a reason that passes.
const RETRY: Duration = Duration::from_secs(1);

/// What every call is answered from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) bus: Bus,
    pub(crate) cas: Cas,
    pub(crate) config: Arc<GrpcConfig>,
    pub(crate) pools: Pools,
    pub(crate) waiters: Waiters,
    /// Cancelled when the gateway is to end.
    pub(crate) stop: CancellationToken,
}

impl Core {
    /// Nothing is read yet.
    pub(crate) fn new(bus: Bus, cas: Cas, config: GrpcConfig, stop: CancellationToken) -> Self {
        let waiters = Waiters::new(bus.clone(), config.grace, stop.clone());
        Self { pools: Pools::new(bus.clone()), waiters, bus, cas, config: Arc::new(config), stop }
    }
}
