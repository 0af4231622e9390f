//! A service in a separate process.

use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::Process;

/// Addresses of a service, as written by the service when it was ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listening {
    /// URL `http://HOST:PORT` of a gateway.
    pub http: Option<String>,
    /// URL `grpc://HOST:PORT` of a gateway or cas.
    pub grpc: Option<String>,
    /// URL `http://HOST:PORT/metrics` of any service.
    pub metrics: Option<String>,
}

/// A service process, which is killed when dropped.
#[derive(Debug)]
pub struct ServiceProcess {
    process: Process,
    listen_file: PathBuf,
}

impl ServiceProcess {
    pub(crate) fn new(process: Process, listen_file: PathBuf) -> Self {
        Self { process, listen_file }
    }

    /// Returns its addresses; `None` until it is ready.
    pub fn listening(&self) -> Option<Listening> {
        let content = std::fs::read(&self.listen_file).ok()?;
        let value: serde_json::Value = serde_json::from_slice(&content).ok()?;
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Listening { http: text("http"), grpc: text("grpc"), metrics: text("metrics") })
    }

    /// Waits until the service is ready.
    pub async fn ready(&mut self, limit: Duration) -> Listening {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(listening) = self.listening() {
                return listening;
            }
            let (name, ended) = (self.name().to_owned(), self.try_exit());
            assert!(ended.is_none(), "{name} ended with {ended:?} before it was ready\n{}", self.log_tail());
            assert!(Instant::now() < deadline, "{name} is not ready after {limit:?}\n{}", self.log_tail());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Deref for ServiceProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for ServiceProcess {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
