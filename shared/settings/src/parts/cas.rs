use crate::Settings;

/// Settings of the service `cas`.
#[derive(Debug, Clone)]
pub struct CasSettings {
    pub listen: String,
    pub instances: String,
}

impl Settings {
    pub fn cas(&self) -> CasSettings {
        CasSettings { listen: self.cas_listen.clone(), instances: self.instances.clone() }
    }
}
