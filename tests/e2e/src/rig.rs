//! The farm of an end-to-end test.

use farm::{SOON, Up, alive};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Place, until};

/// A `forebay up` on free ports, which stops when dropped.
#[derive(Debug)]
pub struct Rig {
    up: Up,
    grpc: String,
}

impl Rig {
    /// Starts a farm in this place and waits until it is up.
    pub async fn start(place: &Place, env: &[(&str, &str)]) -> Self {
        let mut up = Up::start(place.path(), place.guard(), &["--grpc-port", "0"], env).await;
        let endpoints = up.endpoints().await;
        let grpc = endpoints.grpc.expect("the farm serves the Remote Execution API");
        Self { up, grpc }
    }

    /// URL `grpc://HOST:PORT` of the farm.
    pub fn grpc(&self) -> &str {
        &self.grpc
    }

    /// Creates a client of its API.
    pub async fn client(&mut self) -> client::Client {
        self.up.client().await
    }

    /// Returns its processes and its command line.
    pub fn up(&self) -> &Up {
        &self.up
    }

    /// Sends SIGKILL to every process of this service; returns when all have been replaced.
    pub async fn kill9(&self, service: &str) {
        let of_service = || -> Vec<u32> {
            let named = self.up.children().into_iter();
            let numbered = |name: &str| name.strip_prefix(service).is_some_and(|rest| rest.starts_with('-'));
            named.filter(|(name, _)| name == service || numbered(name)).map(|(_, pid)| pid).collect()
        };
        let before = of_service();
        assert!(!before.is_empty(), "no {service} among {:?}", self.up.children());
        for pid in &before {
            let id = Pid::from_raw(i32::try_from(*pid).expect("process ids are small"));
            kill(id, Signal::SIGKILL).unwrap_or_else(|error| panic!("{service} {pid}: {error}"));
        }
        let replaced = || {
            let now = of_service();
            now.len() == before.len() && now.iter().all(|pid| !before.contains(pid) && alive(*pid))
        };
        until(&format!("another {service}"), SOON, replaced).await;
    }
}
