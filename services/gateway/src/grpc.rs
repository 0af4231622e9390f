//! The Remote Execution API over gRPC. Any number of gateways serve it, and each can answer for an execution
//! that another one accepted.

mod abandoned;
mod accept;
mod asset;
mod build_events;
mod cached;
mod cancel;
mod config;
mod execution;
mod faults;
mod images;
mod interest;
mod live;
mod log_streams;
mod merging;
mod mount;
mod names;
mod operations;
mod pools;
mod response;
mod senders;
mod server;
mod state;
mod submit;
mod trace;
mod trace_budget;
mod validate;
mod waiters;
mod waiting;
mod watch_stream;

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ::images::{ImageNames, Registries};
use bus::Bus;
use callers::Caller;
use cas::Cas;
use download::{DownloadError, Downloader};
use invariant::impossible;
use model::Group;
use policy::zones::Zones;
use service::Environments;
use tokio_util::sync::CancellationToken;
use tonic::{Status, metadata::MetadataMap};

pub use config::{ConfigError, GrpcConfig};
pub use server::{Serving, serve};
pub use validate::checked;

use index::actions::Actions;
use merging::Merging;
use pools::Pools;
use senders::Senders;
use trace_budget::TraceBudget;
use waiters::Waiters;

/// Retry delay sent to clients with a transient error.
const RETRY: Duration = Duration::from_secs(1);

/// State shared by all calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) bus: Bus,
    /// The store: all of it, or as the caller of one call sees it.
    pub(crate) cas: Cas,
    pub(crate) zones: Arc<Zones>,
    pub(crate) config: Arc<GrpcConfig>,
    /// Set once Redis has answered; until then the gateway works without the index.
    index: Arc<OnceLock<Actions>>,
    pub(crate) pools: Pools,
    pub(crate) senders: Senders,
    pub(crate) waiters: Waiters,
    pub(crate) merging: Merging,
    pub(crate) traces: TraceBudget,
    pub(crate) images: ImageNames,
    pub(crate) environments: Environments,
    /// Cancelled when the gateway must stop.
    pub(crate) stop: CancellationToken,
}

impl Core {
    pub(crate) fn new(
        bus: Bus,
        cas: Cas,
        (config, zones): (GrpcConfig, Zones),
        stop: CancellationToken,
    ) -> Result<Self, DownloadError> {
        let index = Arc::default();
        let waiters = Waiters::new(bus.clone(), config.grace, stop.clone());
        let merging = Merging::new(config.merging, Arc::clone(&index));
        let pools = Pools::new(bus.clone(), Arc::clone(&index));
        let senders = Senders::new(bus.clone());
        let traces = TraceBudget::new(bus.clone(), config.trace_actions_max, stop.clone());
        let downloader = Downloader::new(config.fetch_reach.clone())?;
        let of_images = zones.sight_of_images().map_or_else(|| cas.clone(), |sight| cas.seen_by(&sight));
        let images = ImageNames::new(of_images, Registries::new(config.images.clone(), downloader));
        let environments = Environments::new(bus.clone(), config.images.clone());
        let config = Arc::new(config);
        Ok(Self {
            bus,
            cas,
            zones: Arc::new(zones),
            config,
            index,
            pools,
            senders,
            waiters,
            merging,
            traces,
            images,
            environments,
            stop,
        })
    }

    /// The same, with the store as the caller of a call sees it. `group` is the group that the call is for, if that is known.
    pub(crate) fn seen_by(
        &self,
        call: (&Caller, &MetadataMap),
        group: Option<&Group>,
    ) -> Result<Cow<'_, Self>, Status> {
        if !self.zones.are_used() {
            return Ok(Cow::Borrowed(self));
        }
        let cas = cas_grpc::seen_by_call(&self.cas, &self.zones, call, group)?;
        Ok(Cow::Owned(Self { cas, ..self.clone() }))
    }

    /// Makes the index available to all calls.
    pub(crate) fn set_index(&self, actions: Actions) {
        if self.index.set(actions).is_err() {
            impossible!("the index is connected twice");
        }
    }
}
