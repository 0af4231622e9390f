//! Twenty thousand waiting clients, each with a different action: number of connections to Redis, and memory.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use command_line::failure::say;
use nix::sys::signal::Signal;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    memory::status_kib,
    redis_info::RedisInfo,
    shell::{Shell, until},
};

const WAITERS: usize = 20_000;
const CONNECTIONS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the scenario `waiters`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
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
    let name = format!("{WAITERS} waiters on {CONNECTIONS} connections, all accepted after");
    let mut figures = Figures::default();
    figures.field("waiters", WAITERS).field("connections", CONNECTIONS);
    figures.figure("accepted_seconds", &name, took, "s");
    figures.line("connections to Redis without them", clients as f64, "");
    figures.line("connections to Redis with them", clients_then as f64, "");
    figures.field("redis_clients", vec![clients, clients_then]);
    figures.figure("gateway_kib_each", "gateway memory per waiter", grown, "KiB");
    Ok(figures)
}

async fn redis_clients(farm: &BenchFarm) -> Result<u64, BenchError> {
    // Without the connection of this query.
    Ok(RedisInfo::read(farm).await?.value("connected_clients")?.saturating_sub(1))
}

/// Resident memory of the farm's gateway.
fn gateway_kib(farm: &BenchFarm) -> Option<f64> {
    let (_, pid) = farm.endpoints.processes.iter().find(|(name, _)| name.starts_with("gateway"))?;
    status_kib(*pid, "VmRSS")
}
