use model::FetchHost;

use super::images::ImageSettings;
use crate::Settings;

/// Settings of the service `cas`.
#[derive(Debug, Clone)]
pub struct CasSettings {
    pub listen: String,
    pub instances: String,
    /// How images of environments are read to check them.
    pub images: ImageSettings,
    pub fetch_hosts: Vec<FetchHost>,
}

impl Settings {
    pub fn cas(&self) -> CasSettings {
        CasSettings {
            listen: self.cas_listen.clone(),
            instances: self.instances.clone(),
            images: self.image_settings(),
            fetch_hosts: self.fetch_hosts.clone(),
        }
    }
}
