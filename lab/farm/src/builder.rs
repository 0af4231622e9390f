//! Configuration of a farm before it starts.

use std::collections::BTreeMap;

/// The services of a farm.
pub const SERVICES: [&str; 5] = ["enqueuer", "dispatcher", "worker", "reaper", "gateway"];

/// Services that run actions, in addition to the gateway.
pub const ACTION_SERVICES: [&str; 3] = ["scheduler", "executor", "cas"];

/// A farm that is not started yet.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) services: Vec<&'static str>,
    pub(crate) nodes: usize,
    pub(crate) bus_megabytes: Option<u32>,
}

impl Default for Builder {
    fn default() -> Self {
        let short = [
            ("FOREBAY_LEASE_TTL_SECONDS", "2"),
            ("FOREBAY_HEARTBEAT_SECONDS", "1"),
            ("FOREBAY_OVERRUN_SECONDS", "2"),
            ("FOREBAY_OFFER_TIMEOUT_MS", "1000"),
            ("FOREBAY_KILL_GRACE_MS", "300"),
            ("FOREBAY_DRAIN_SECONDS", "5"),
            ("FOREBAY_WORKSPACES", "2"),
            ("FOREBAY_EXECUTOR_SLOTS", "2"),
            ("FOREBAY_ACTION_WAITER_GRACE_MS", "1000"),
            ("FOREBAY_HTTP_LISTEN", "127.0.0.1:0"),
            ("FOREBAY_GRPC_LISTEN", "127.0.0.1:0"),
            ("FOREBAY_METRICS_LISTEN", "127.0.0.1:0"),
        ];
        let env = short.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { env, services: SERVICES.to_vec(), nodes: 1, bus_megabytes: None }
    }
}

impl Builder {
    /// Sets the duration of a lease in seconds; the default is 2.
    #[must_use]
    pub fn lease_ttl(self, seconds: u64) -> Self {
        self.env("FOREBAY_LEASE_TTL_SECONDS", seconds.to_string())
    }

    /// Sets the number of workspaces of each worker; the default is 2.
    #[must_use]
    pub fn workspaces(self, count: u16) -> Self {
        self.env("FOREBAY_WORKSPACES", count.to_string())
    }

    /// Sets an environment variable of every service.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    /// Starts without this service.
    #[must_use]
    pub fn without(mut self, service: &str) -> Self {
        self.services.retain(|known| *known != service);
        self
    }

    /// Starts one more process of this service, for example several workers.
    #[must_use]
    pub fn with(mut self, service: &'static str) -> Self {
        self.services.push(service);
        self
    }

    /// Starts the services that run actions, too.
    #[must_use]
    pub fn with_actions(mut self) -> Self {
        self.services.extend(ACTION_SERVICES);
        self
    }

    /// Starts these services and no others.
    #[must_use]
    pub fn only(mut self, services: &[&'static str]) -> Self {
        self.services = services.to_vec();
        self
    }

    /// Starts a cluster of `nodes` nats-servers, with every stream on three of them.
    #[must_use]
    pub fn cluster(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self.env("FOREBAY_REPLICAS", "3")
    }

    /// Gives each nats-server a disk of this size for its streams, where one can be mounted.
    #[must_use]
    pub fn bus_disk(mut self, megabytes: u32) -> Self {
        self.bus_megabytes = Some(megabytes);
        self
    }
}
