//! Where the services of an action run.

use std::path::PathBuf;

use sandbox::SlotConfig;

/// Where services run: their folder, and the slot that those of all services are made after.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) slot: SlotConfig,
}

impl Place {
    /// The slot of a service in `work`.
    pub(crate) fn slot_of(&self, service: &str, work: PathBuf) -> SlotConfig {
        SlotConfig { name: format!("{}-service-{service}", self.slot.name), work, ..self.slot.clone() }
    }
}
