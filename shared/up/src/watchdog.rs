//! Stops the processes of a killed `forebay up`, unless another `up` takes over in time.
//!
//! It is a separate process that `up` starts like a server. Its standard input is a pipe from `up`, which closes at the
//! end of `up` regardless of the cause.

use std::time::Duration;

use bus::{Bus, Patience};
use client::Client;
use model::Control;
use settings::WatchdogSettings;
use tracing::{info, warn};

use crate::{
    error::UpError,
    folder, input, names, process,
    roster::Roster,
    running::running,
    signals::Signals,
    stages::{STAGES, stage},
};

/// Interval of checks for running builds.
const LOOK: Duration = Duration::from_millis(500);
/// Time limit for nats-server to answer.
const SILENCE: Duration = Duration::from_secs(5);

/// Waits for the end of `up`, then stops its children. A signal ends it early.
pub async fn run(settings: &WatchdogSettings) -> Result<(), UpError> {
    let mut signals = Signals::listen(std::future::pending())?;
    tokio::select! {
        () = signals.next() => {}
        () = watch(settings) => {}
    }
    Ok(())
}

async fn watch(settings: &WatchdogSettings) {
    input::ended().await;
    let patience = settings.orphan_patience;
    warn!("`forebay up` has ended: stopping its processes unless another takes over within {patience:?}");
    tokio::time::sleep(patience).await;
    if folder::is_held(&settings.data) {
        return info!("another `forebay up` has taken over");
    }
    let roster = Roster::new(&settings.data);
    let workers: Vec<u32> = roster
        .left()
        .into_iter()
        .filter(|(name, _)| names::is_worker(name))
        .map(|(_, (pid, _))| pid)
        .collect();
    let bus = Bus::connect(&settings.nats, "forebay watchdog", Patience::None);
    if let Ok(Ok(bus)) = tokio::time::timeout(SILENCE, bus).await {
        until_idle(&bus, &workers).await;
    }
    for now in 0..STAGES {
        let left = roster.left();
        let part: Vec<_> = left
            .iter()
            .filter(|(name, _)| name != names::WATCHDOG && stage(name, settings.drain).0 == now)
            .collect();
        let grace = part.iter().map(|(name, _)| stage(name, settings.drain).1).max().unwrap_or_default();
        let part: Vec<(u32, u64)> = part.iter().map(|(_, process)| *process).collect();
        process::end_all(&part, grace).await;
    }
    roster.withdraw();
    roster.close();
    info!("stopped the processes of `forebay up`");
}

/// Drains the workers and waits until none of them runs a build. This ends because every build has a timeout.
async fn until_idle(bus: &Bus, workers: &[u32]) {
    let client = Client::new(bus.clone());
    loop {
        let found = running(bus, workers).await;
        for worker in found.keys() {
            // A lost order is sent again in the next round.
            let _ = client.control(worker, &Control::Drain).await;
        }
        if found.values().all(Vec::is_empty) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}
