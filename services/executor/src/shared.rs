//! The state shared by all parts of one session.

use std::sync::Arc;

use cas::Cas;
use input_root::InputRoots;
use model::{ExecutorHome, ExecutorId, Millis, Pool};
use parking_lot::Mutex;
use service::Context;
use settings::ExecutorSettings;
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    admission::Admission, cancelled::Cancelled, held_actions::HeldActions, memory::OomKills,
    reservation_queue::ReservationQueue, slot_threads::SlotThreads, usage::Usage,
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
    pub(crate) actions: HeldActions,
    pub(crate) queue: Mutex<ReservationQueue>,
    /// Notified when a delayed reservation arrives.
    pub(crate) later: Notify,
    /// Notified when the content of the lease is outdated.
    pub(crate) changed: Notify,
    pub(crate) cancelled: Cancelled,
    pub(crate) admission: Admission,
    pub(crate) slot_threads: SlotThreads,
    pub(crate) usage: Usage,
    pub(crate) oom: OomKills,
    /// The runtime for everything except the work of slots.
    pub(crate) main: Handle,
}
