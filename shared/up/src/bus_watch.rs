//! Restarts nats-server after a full disk: a stream whose store ran out of space refuses writes until the server is
//! restarted, even if there is space again.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bus::{Bus, Patience};
use credentials::Server;
use disk::{Reserve, Space};
use tokio::{sync::Notify, time::Instant};
use tracing::warn;

use crate::nats;

/// Interval of checks of the disk, which are cheap.
const LOOK: Duration = Duration::from_millis(500);
/// Interval of queries to the server if the disk was never seen full, since it may have been full briefly.
const ASK: Duration = Duration::from_secs(15);
/// Delay of the next check after a restart of the server.
const AGAIN: Duration = Duration::from_secs(3);
/// Maximum delay after restarts that did not help.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// Watches the nats-server that `up` started.
#[derive(Debug)]
pub(crate) struct BusWatch {
    pub(crate) server: Server,
    pub(crate) folder: PathBuf,
    /// Disk space that is reserved for other uses.
    pub(crate) reserve: Reserve,
    /// Names of the streams of the farm.
    pub(crate) streams: Vec<String>,
}

impl BusWatch {
    /// Watches without end. Notifies `restart` if a stream refuses writes although there is space.
    pub(crate) async fn restart_when_broken(self, restart: Arc<Notify>) {
        let bus = match nats::connect(&self.server, Patience::Wait).await {
            Ok(bus) => bus,
            Err(error) => {
                warn!(%error, "nats-server is not watched: it is not restarted after a full disk");
                return;
            }
        };
        let (mut asked, mut was_low, mut pause) = (Instant::now(), false, AGAIN);
        loop {
            tokio::time::sleep(LOOK).await;
            // Without a reading, it is not known whether there is space.
            let Ok(space) = Space::of(&self.folder) else { continue };
            // A query before there is space would change nothing.
            let is_low = space.bytes_left < self.reserve.for_bus(space.bytes).max(LEAST)
                || (space.inodes > 0
                    && space.inodes_left < self.reserve.for_bus(space.inodes).max(INODES_LEAST));
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
            // A nats-server that cannot write at its start does not start: one that serves reads is better.
            if !self.accepts_files() {
                continue;
            }
            warn!(stream, why, "nats-server refuses writes although the disk has space: restarting it");
            restart.notify_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    /// Whether a file can be written next to those of the streams.
    fn accepts_files(&self) -> bool {
        let probe = self.folder.join(".forebay-probe");
        let is_written = std::fs::write(&probe, [0; 4096]).is_ok();
        // It does not exist if it could not be created.
        let _ = std::fs::remove_file(&probe);
        is_written
    }

    async fn fault(&self, bus: &Bus) -> Option<(String, String)> {
        for stream in &self.streams {
            match bus.stream(stream).write_fault().await {
                Ok(None) => {}
                Ok(Some(why)) => return Some((stream.clone(), why)),
                Err(error) => {
                    tracing::debug!(
                        error = telemetry::error_chain(&error),
                        "cannot check whether the server accepts writes"
                    );
                    return None;
                }
            }
        }
        None
    }
}

/// Free bytes below which a disk counts as full, regardless of the reserve.
const LEAST: u64 = 1 << 20;
/// Free inodes below which a disk counts as full, regardless of the reserve.
const INODES_LEAST: u64 = 64;
