//! Heals nats-server: a stream whose store met a full disk refuses writes until its server is started again, also when there
//! is room by then.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bus::{Bus, Patience};
use disk::{Reserve, Space};
use tokio::{sync::Notify, time::Instant};
use tracing::warn;

use super::nats;

/// Between two looks at the disk, which cost next to nothing.
const LOOK: Duration = Duration::from_millis(500);
/// Between two questions to the server where the disk never seemed full: it may have been for a moment.
const ASK: Duration = Duration::from_secs(15);
/// How long the server may take to start again before it is looked at again.
const AGAIN: Duration = Duration::from_secs(3);
/// The same where starting it again did not help.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// The nats-server that `up` started.
#[derive(Debug)]
pub(super) struct BusWatch {
    /// Where it listens.
    pub(super) url: String,
    /// Its folder.
    pub(super) folder: PathBuf,
    /// What is kept of the disk for others.
    pub(super) reserve: Reserve,
    /// The streams of the farm.
    pub(super) streams: Vec<String>,
}

impl BusWatch {
    /// Watches for ever, and has the server started again by `again` when a stream refuses writes though there is room.
    pub(super) async fn heal(self, again: Arc<Notify>) {
        let Ok(bus) = nats::connect(&self.url, Patience::Wait).await else { return };
        let (mut asked, mut was_low, mut pause) = (Instant::now(), false, AGAIN);
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(space) = Space::of(&self.folder) else { continue };
            // What is asked of it before there is room changes nothing.
            let is_low = space.bytes_left < self.reserve.for_bus(space.bytes).max(LEAST);
            was_low |= is_low;
            if is_low || (!was_low && asked.elapsed() < ASK) {
                continue;
            }
            asked = Instant::now();
            let Some((stream, why)) = self.fault(&bus).await else {
                was_low = false;
                pause = AGAIN;
                continue;
            };
            warn!(stream, why, "nats-server refuses writes though the disk has room: starting it again");
            again.notify_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    async fn fault(&self, bus: &Bus) -> Option<(String, String)> {
        for stream in &self.streams {
            match bus.write_fault(stream).await {
                Ok(None) => {}
                Ok(Some(why)) => return Some((stream.clone(), why)),
                Err(error) => {
                    tracing::debug!(
                        error = telemetry::error_chain(&error),
                        "the server does not say whether it takes writes"
                    );
                    return None;
                }
            }
        }
        None
    }
}

/// Bytes below which a disk is full, whatever is kept of it.
const LEAST: u64 = 1 << 20;
