use credentials::Server;

use super::{AccessSettings, ConnectionSettings, StoreSettings, TopologySettings};
use crate::Settings;

/// Settings that every service reads.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    pub nats: Server,
    pub redis: Server,
    pub metrics_listen: String,
    pub connections: ConnectionSettings,
    pub access: AccessSettings,
    pub store: StoreSettings,
    pub topology: TopologySettings,
}

impl Settings {
    /// Settings of the service with this name.
    pub fn service(&self, name: &str) -> ServiceSettings {
        ServiceSettings {
            nats: self.nats(name),
            redis: self.redis(name),
            metrics_listen: self.metrics_listen.clone(),
            connections: self.connections(),
            access: self.access(),
            store: self.store(),
            topology: self.topology(),
        }
    }
}
