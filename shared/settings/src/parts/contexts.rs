use std::path::PathBuf;

use model::FetchHost;

use crate::Settings;

/// What builds may name as their sources.
#[derive(Debug, Clone)]
pub struct ContextSettings {
    /// Folders of the machine in or below which sources may be.
    pub context_paths: Vec<PathBuf>,
    /// Hosts that may be fetched from although their addresses are closed.
    pub fetch_hosts: Vec<FetchHost>,
}

impl Settings {
    pub(super) fn contexts(&self) -> ContextSettings {
        ContextSettings { context_paths: self.context_paths.clone(), fetch_hosts: self.fetch_hosts.clone() }
    }
}
