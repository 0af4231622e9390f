//! Twenty thousand waiting clients, each with a different action: number of connections to Redis, and memory.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    error::BenchError,
    farm::BenchFarm,
    progress::say,
    report::line,
    shell::{Shell, until},
};

const WAITERS: usize = 20_000;
const CONNECTIONS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

/// Figures of the scenario.
#[expect(clippy::struct_field_names, reason = "the fields are named after the figures")]
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Waiters {
    waiters: usize,
    /// Number of connections of the clients.
    connections: usize,
    /// Seconds until all actions were accepted.
    accepted_seconds: f64,
    /// Connections of all services to Redis, without and with the clients.
    redis_clients: [usize; 2],
    /// Memory of the gateway in KiB per client.
    gateway_kib_each: Option<f64>,
}

/// Runs the scenario `waiters`.
pub(crate) async fn measure() -> Result<Waiters, BenchError> {
    say("waiting for different actions with 20,000 clients");
    let farm = BenchFarm::of_actions(&[]).await?;
    // From now on the pool exists, without an executor.
    farm.executor("first", &[]).await?.end(Signal::SIGTERM).await;
    let shell = Shell::new(&farm, CONNECTIONS).await?;
    let actions = shell.upload_many("true", &[], WAITERS).await?;
    let (clients, memory) = (redis_clients(&farm).await?, gateway_kib(&farm));
    let (accepted, begun) = (AtomicUsize::new(0), Instant::now());
    let waiting = async {
        until("all wait", LIMIT, || accepted.load(Ordering::Relaxed) == WAITERS).await?;
        let took = begun.elapsed().as_secs_f64();
        Ok::<_, BenchError>((took, redis_clients(&farm).await?, gateway_kib(&farm)))
    };
    let (took, clients_then, memory_then) = tokio::select! {
        found = waiting => found?,
        ended = shell.execute_all("", &actions, &accepted) => {
            ended?;
            return Err(BenchError::plain("an action ended that should wait"));
        }
    };
    farm.stop().await;
    let grown = memory.zip(memory_then).map(|(before, then)| (then - before) / WAITERS as f64);
    Ok(Waiters {
        waiters: WAITERS,
        connections: CONNECTIONS,
        accepted_seconds: took,
        redis_clients: [clients, clients_then],
        gateway_kib_each: grown,
    })
}

async fn redis_clients(farm: &BenchFarm) -> Result<usize, BenchError> {
    let info = info(&farm.endpoints.redis).await;
    let info = info.map_err(|error| BenchError::new("reading the number of Redis clients", &error))?;
    let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    // Without the connection of this query.
    let count: Option<usize> = line.and_then(|count| count.trim().parse().ok());
    count
        .map(|count| count - 1)
        .ok_or_else(|| BenchError::plain("Redis does not report its number of clients"))
}

async fn info(url: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(url.strip_prefix("redis://").unwrap_or(url)).await?;
    connection.write_all(b"INFO clients\r\nQUIT\r\n").await?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await?;
    Ok(text)
}

/// Resident memory of the farm's gateway.
fn gateway_kib(farm: &BenchFarm) -> Option<f64> {
    let (_, pid) = farm.endpoints.processes.iter().find(|(name, _)| name.starts_with("gateway"))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

impl fmt::Display for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiters, connections, .. } = self;
        let name = format!("{waiters} waiters on {connections} connections, all accepted after");
        line(f, &name, Some(self.accepted_seconds), "s")?;
        let [before, then] = self.redis_clients;
        line(f, "connections to Redis without them", Some(before as f64), "")?;
        line(f, "connections to Redis with them", Some(then as f64), "")?;
        line(f, "gateway memory per waiter", self.gateway_kib_each, "KiB")
    }
}
