use super::{AccessSettings, ConnectionSettings, StoreSettings, TopologySettings};
use crate::Settings;

/// Settings that every service reads.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    pub nats_url: String,
    pub redis_url: String,
    pub metrics_listen: String,
    pub connections: ConnectionSettings,
    pub access: AccessSettings,
    pub store: StoreSettings,
    pub topology: TopologySettings,
}

impl Settings {
    pub fn service(&self) -> ServiceSettings {
        ServiceSettings {
            nats_url: self.nats_url.clone(),
            redis_url: self.redis_url.clone(),
            metrics_listen: self.metrics_listen.clone(),
            connections: self.connections(),
            access: self.access(),
            store: self.store(),
            topology: self.topology(),
        }
    }
}
