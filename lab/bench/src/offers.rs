//! Rate of accepted offers: the live dispatcher with a worker that starts and finishes every build immediately.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bus::{Bus, Received};
use command_line::failure::say;
use model::{
    BuildKey, BuildResult, Heartbeat, Invocation, InvocationId, LogSummary, Occupancy, Offer, OfferReply,
    OfferVerdict, Offers, Outcome, WorkerId, WorkerStatus, WorkspaceState,
};

use crate::{error::BenchError, farm::BenchFarm, rates};

const WORKSPACES: usize = 512;
const PATIENCE: Duration = Duration::from_secs(5);

/// Accepted offers per second with `queued` builds and an active governor.
pub(crate) async fn measure(queued: u64, window: Duration) -> Result<f64, BenchError> {
    let farm = BenchFarm::start(1, &[]).await?;
    farm.drain(true).await?;
    // Large enough not to be a limit, but governed.
    farm.set_quota(2000.0).await?;
    say(&format!("queueing {queued} builds"));
    rates::fill(&farm, queued).await?;
    while farm.unfinished().await? < queued {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    say("accepting offers");
    let accepted = Arc::new(AtomicU64::new(0));
    let worker = tokio::spawn(serve(farm.client.bus().clone(), accepted.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, begun) = (accepted.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(window).await;
    let rate = (accepted.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
    worker.abort();
    farm.stop().await;
    Ok(rate)
}

async fn serve(bus: Bus, accepted: Arc<AtomicU64>) -> Result<(), BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::new("simulating a worker", error);
    let worker: WorkerId = "bench".parse().map_err(|error: model::ParseIdError| failed(&error))?;
    let mut offers = bus.listen::<Offers>(&worker).await.map_err(|error| failed(&error))?;
    let heartbeat = Heartbeat {
        worker,
        host: "bench".to_owned(),
        pid: std::process::id(),
        started_at_ms: bus.now(),
        status: WorkerStatus::Ready,
        short: None,
        window: model::WindowState::default(),
        properties: model::WorkerProperties::default(),
        workspaces: vec![WorkspaceState::Idle { warm: None }; WORKSPACES],
        ttl_ms: 3_600_000,
        clock_skew_ms: None,
    };
    bus.send(&(), &heartbeat).await.map_err(|error| failed(&error))?;
    while let Some(message) = offers.next().await {
        tokio::spawn(accept(bus.clone(), message, accepted.clone()));
    }
    Ok(())
}

async fn accept(bus: Bus, message: Received<Offers>, accepted: Arc<AtomicU64>) {
    if !message.wants_answer() {
        return;
    }
    let (offers, answering) = message.split();
    let verdicts = vec![OfferVerdict::Started; offers.offers.len()];
    let keys: Vec<BuildKey> =
        offers.offers.iter().map(|offer| BuildKey { group: offer.group.clone(), id: offer.id }).collect();
    let Ok(records) = bus.records().latest_many(&keys).await else { return };
    let runs = records.into_iter().filter_map(|(_, record)| {
        let offer = offers.offers.iter().find(|offer| offer.id == record.build.id)?;
        Some(run(&bus, offer, record))
    });
    let started = futures::future::join_all(runs).await.into_iter().filter(|started| *started).count();
    accepted.fetch_add(started as u64, Ordering::Relaxed);
    answering.send(&OfferReply { verdicts, queued: Vec::new() }).await;
}

/// Writes INVOCATION_STARTED and INVOCATION_FINISHED like a worker. Returns whether both were written.
async fn run(bus: &Bus, offer: &Offer, record: model::BuildRecord) -> bool {
    let Ok(worker) = "bench".parse() else {
        unreachable!("the name of the worker is invalid");
    };
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker,
        workspace: offer.workspace,
        lease_revision: 1,
        started_at_ms: bus.now(),
        dispatched_at_us: offer.dispatched_at_us,
        dispatched_at_sequence: offer.dispatched_at_sequence,
        workspace_kind: None,
    };
    let started = record.started(invocation, offer.sequence);
    let Ok(bus::Written::Won(position)) = bus.transition(&started, offer.sequence, PATIENCE).await else {
        return false;
    };
    let result = BuildResult {
        outcome: Outcome::Succeeded,
        reason: None,
        exit_code: Some(0),
        signal: None,
        command_started_at_us: None,
        wall_seconds: 0.0,
        cpu_seconds: 0.0,
        peak_memory_bytes: 0,
        usage: Occupancy::default(),
        on_executors: Occupancy::default(),
        preparation_seconds: None,
        outputs: Vec::new(),
        outputs_missing: Vec::new(),
        outputs_not_kept: Vec::new(),
        outputs_not_kept_count: 0,
        job: None,
        tool: None,
        log: LogSummary::default(),
    };
    let finished = started.finished(result, bus.now());
    matches!(bus.transition(&finished, position, PATIENCE).await, Ok(bus::Written::Won(_)))
}
