//! Ends what a killed `forebay up` left, unless another `up` takes it over in time.
//!
//! A process of its own, kept by `up` like the servers. Its standard input is a pipe that `up` holds open: the end of the pipe is
//! the end of `up`, whatever ended it.

use std::{io::Read as _, process::ExitCode, time::Duration};

use bus::{Bus, Patience};
use client::Client;
use model::Control;
use settings::Settings;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    UpError,
    farm::{STAGES, stage},
    folder, process,
    roster::Roster,
    running::running,
    services,
    signals::Signals,
};

/// The child's name.
pub(crate) const NAME: &str = "watchdog";
/// How often it is looked whether builds still run.
const LOOK: Duration = Duration::from_millis(500);
/// How long nats-server may take to answer.
const SILENCE: Duration = Duration::from_secs(5);

/// Waits for the end of `up`, then ends its children. Returns when told to stop.
pub(crate) async fn run(settings: &Settings) -> Result<ExitCode, UpError> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        () = signals.next() => {}
        () = watch(settings) => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(settings: &Settings) {
    end_of_input().await;
    let patience = Duration::from_secs(settings.orphan_seconds);
    warn!("`forebay up` is gone: unless another takes over within {patience:?}, everything here ends");
    tokio::time::sleep(patience).await;
    if folder::is_held(&settings.data) {
        return info!("another `forebay up` has the folder");
    }
    let roster = Roster::new(&settings.data);
    let workers: Vec<u32> = roster
        .left()
        .into_iter()
        .filter(|(name, _)| services::is_worker(name))
        .map(|(_, (pid, _))| pid)
        .collect();
    let bus = Bus::connect(&settings.nats_url, "forebay watchdog", Patience::None);
    if let Ok(Ok(bus)) = tokio::time::timeout(SILENCE, bus).await {
        until_idle(&bus, &workers).await;
    }
    let drain = Duration::from_secs(settings.drain_seconds);
    for now in 0..STAGES {
        let left = roster.left();
        let part: Vec<_> =
            left.iter().filter(|(name, _)| name != NAME && stage(name, drain).0 == now).collect();
        let grace = part.iter().map(|(name, _)| stage(name, drain).1).max().unwrap_or_default();
        let part: Vec<(u32, u64)> = part.iter().map(|(_, process)| *process).collect();
        process::end_all(&part, grace).await;
    }
    roster.withdraw();
    roster.close();
    info!("ended what `forebay up` left");
}

/// Has the workers take nothing new, and returns when none of them runs a build. Every build has its timeout.
async fn until_idle(bus: &Bus, workers: &[u32]) {
    let client = Client::new(bus.clone());
    loop {
        let found = running(bus, workers).await;
        for worker in found.keys() {
            // One that does not hear it now is told again.
            let _ = client.control(worker, &Control::Drain).await;
        }
        if found.values().all(Vec::is_empty) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns when every process has closed the other end of the standard input.
async fn end_of_input() {
    let (sender, receiver) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut rest = [0_u8; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|read| read > 0) {}
        drop(sender);
    });
    let _ = receiver.await;
}
