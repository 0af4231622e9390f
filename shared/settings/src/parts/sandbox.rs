use std::path::PathBuf;

use crate::Settings;

/// What the sandboxes of actions and builds have in common.
#[derive(Debug, Clone)]
pub struct SandboxSettings {
    pub read_only: Vec<PathBuf>,
    /// Files and folders that are never visible, with the data folder and that of secrets.
    pub hidden: Vec<PathBuf>,
    pub filter: bool,
}

impl Settings {
    pub(super) fn sandboxes(&self) -> SandboxSettings {
        let mut hidden = self.sandbox_hidden.clone();
        hidden.push(self.data.clone());
        hidden.extend(self.secrets_folder.clone());
        SandboxSettings { read_only: self.sandbox_read_only.clone(), hidden, filter: self.sandbox_filter }
    }
}
