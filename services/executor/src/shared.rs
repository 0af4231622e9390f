//! The state shared by all parts of one session.

use std::sync::{Arc, atomic::AtomicBool};

use cas::Cas;
use images::Images;
use input_root::InputRoots;
use model::{Execution, ExecutorHome, ExecutorId, Millis, Pool, RoomReport, Sight};
use sensors::{MachineLock, OomKills};
use service::Context;
use settings::ExecutorSettings;
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    admission::Admission, cancelled::Cancelled, devices::Devices, held_actions::HeldActions,
    shared_services::SharedServicesHere, slot_threads::SlotThreads, usage::Usage,
};

/// State shared by all parts of one session.
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) settings: Arc<ExecutorSettings>,
    pub(crate) id: ExecutorId,
    pub(crate) home: ExecutorHome,
    pub(crate) host: String,
    /// The pool, with the capacity of this executor.
    pub(crate) pool: Pool,
    pub(crate) started_at: Millis,
    pub(crate) cas: Cas,
    pub(crate) inputs: InputRoots,
    pub(crate) devices: Arc<Devices>,
    /// The images of this machine, if actions may have them.
    pub(crate) images: Option<Images>,
    pub(crate) actions: HeldActions,
    /// Notified when the content of the lease is outdated.
    pub(crate) changed: Notify,
    pub(crate) cancelled: Cancelled,
    /// Whether a heartbeat will soon confirm the actions accepted until then.
    pub(crate) confirming: AtomicBool,
    pub(crate) admission: Admission,
    pub(crate) slot_threads: SlotThreads,
    /// The services that run here for several actions.
    pub(crate) services_here: SharedServicesHere,
    pub(crate) usage: Usage,
    pub(crate) oom: OomKills,
    pub(crate) machine: MachineLock,
    /// The runtime for everything except the work of slots.
    pub(crate) main: Handle,
}

impl Shared {
    /// The store as the trust zone of an execution sees it, for what the execution stores.
    pub(crate) fn store_of(&self, execution: &Execution) -> Cas {
        let Some(zone) = execution.zone.clone() else { return self.cas.clone() };
        self.cas.seen_by(&Sight { zone, parent: None, is_bounded: true })
    }

    /// The room of this executor now, as a new report.
    pub(crate) fn room_report(&self) -> RoomReport {
        RoomReport { executor: self.id.clone(), room: self.actions.room() }
    }
}
