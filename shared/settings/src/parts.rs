//! The parts of the settings: what each consumer reads, with its units as types. A field means what the setting does
//! that it is made from.

mod access;
mod archive;
mod autoscaler;
mod cas;
mod connection;
mod contexts;
mod dispatcher;
mod enqueuer;
mod executor;
mod gateway;
mod governor;
mod images;
mod reaper;
mod sandbox;
mod scheduler;
mod sensors;
mod servers;
mod service;
mod store;
mod topology;
mod trainer;
mod watchdog;
mod web;
mod worker;

pub use access::{AccessSettings, GatewayLogin, TlsSettings};
pub use archive::ArchiveSettings;
pub use autoscaler::AutoscalerSettings;
pub use cas::CasSettings;
pub use connection::ConnectionSettings;
pub use contexts::ContextSettings;
pub use dispatcher::DispatcherSettings;
pub use enqueuer::EnqueuerSettings;
pub use executor::ExecutorSettings;
pub use gateway::GatewaySettings;
pub use governor::GovernorSettings;
pub use images::{ImageSettings, RegistrySettings};
pub use reaper::ReaperSettings;
pub use sandbox::SandboxSettings;
pub use scheduler::{HedgeSettings, SchedulerSettings};
pub use sensors::{SensorSettings, WindowSettings};
pub use service::ServiceSettings;
pub use store::StoreSettings;
pub use topology::TopologySettings;
pub use trainer::TrainerSettings;
pub use watchdog::WatchdogSettings;
pub use web::{PageSettings, WebSettings};
pub use worker::{EnvironmentBuilds, WorkerSettings};

#[cfg(test)]
mod tests;
