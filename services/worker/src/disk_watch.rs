//! Watches the disk under the workspaces: below the reserve the worker accepts no offers and empties idle workspaces;
//! below half of the reserve it ends the build that fills the disk, before the bus on the same disk suffers.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use disk::{Reserve, Space, used};
use policy::disk::{DiskUse, to_blame};
use service::ServiceError;
use tracing::{info, warn};

use crate::{Shared, stop::Cause};

/// Time between two checks while there is plenty of room.
const SLOW: Duration = Duration::from_secs(1);
/// Time between two checks when the disk may fill up at any moment.
const FAST: Duration = Duration::from_millis(10);
/// Assumed maximum rate at which a disk fills, in bytes per second.
const RATE: u64 = 2 << 30;
/// Time that an ended build has to free its space before the next one is ended.
const ROOM_BACK: Duration = Duration::from_secs(2);

/// Watches until the worker ends. Checks frequently only while a build runs or space is short.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let reserve = Reserve::new(shared.context.settings.disk_left_percent);
    let mut watch = Watch { shared, reserve, first: None };
    loop {
        let next = watch.look().await;
        let idle = watch.shared.slots.busy().is_empty() && watch.shared.slots.shortage().is_none();
        if idle {
            // The start of a run wakes this loop; an idle worker still checks at each heartbeat.
            tokio::select! {
                () = watch.shared.slots.begun.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(watch.shared.context.settings.heartbeat_seconds)) => {}
            }
        } else {
            tokio::time::sleep(next).await;
        }
    }
}

struct Watch {
    shared: Arc<Shared>,
    reserve: Reserve,
    /// When space became short: the bytes left, and the bytes used by each busy workspace.
    first: Option<(u64, HashMap<u16, u64>)>,
}

impl Watch {
    /// Checks once; returns the time until the next check.
    async fn look(&mut self) -> Duration {
        let Ok(space) = Space::of(self.shared.folder.path()) else { return SLOW };
        self.judge(space);
        let floor = self.reserve.for_stores(space.bytes);
        if space.bytes_left >= self.reserve.for_new_work(space.bytes) {
            self.first = None;
            return until(space.bytes_left - floor);
        }
        let busy = self.shared.slots.busy();
        let sizes = sizes(self.shared.folder.path(), busy).await;
        if space.bytes_left >= floor {
            // Read again after the sizes: data written while they were measured is part of them and must not
            // count as lost since.
            let left = Space::of(self.shared.folder.path()).map_or(space.bytes_left, |now| now.bytes_left);
            self.first.get_or_insert((left, sizes));
            return until(left.saturating_sub(floor));
        }
        self.end_one(space, &sizes, floor)
    }

    /// Accepts no offers while space is short.
    fn judge(&self, space: Space) {
        let slots = &self.shared.slots;
        let shortage = self.reserve.shortage(space);
        if shortage.is_some() == slots.shortage().is_some() {
            return;
        }
        if let Some(why) = &shortage {
            warn!("the worker accepts no builds: {why}");
        } else {
            info!("the disk has enough space again: accepting builds");
        }
        slots.set_shortage(shortage);
    }

    fn end_one(&mut self, space: Space, sizes: &HashMap<u16, u64>, floor: u64) -> Duration {
        let (left, before) = self.first.get_or_insert((space.bytes_left, HashMap::new()));
        let lost = left.saturating_sub(space.bytes_left);
        let mut numbers: Vec<u16> = sizes.keys().copied().collect();
        numbers.sort_unstable();
        let used = |number: &u16| DiskUse {
            before: before.get(number).copied().unwrap_or(0),
            now: sizes.get(number).copied().unwrap_or(0),
        };
        let runs: Vec<DiskUse> = numbers.iter().map(used).collect();
        let Some(number) = to_blame(&runs, lost, floor / 4).and_then(|index| numbers.get(index).copied())
        else {
            return FAST * 20;
        };
        let bytes = sizes.get(&number).copied().unwrap_or(0);
        warn!(
            workspace = number,
            bytes,
            left = space.bytes_left,
            reserve = floor,
            "ending a build that fills the disk"
        );
        self.shared.slots.stop(number, Cause::FilledDisk { bytes, left: space.bytes_left, reserve: floor });
        // Other tasks end the run; they may be waiting for the bus, and the bus may be waiting for this space.
        if let Err(error) = self.shared.folder.empty(number) {
            warn!(workspace = number, %error, "cannot empty the workspace before its build ends");
        }
        let others = sizes.iter().filter(|(other, _)| **other != number);
        self.first = Some((space.bytes_left, others.map(|(other, bytes)| (*other, *bytes)).collect()));
        ROOM_BACK
    }
}

/// Minimum time in which `bytes` can be filled, halved for safety.
fn until(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / RATE as f64 / 2.0).clamp(FAST, SLOW)
}

/// Bytes of disk used by each of these workspaces.
async fn sizes(folder: &Path, numbers: Vec<u16>) -> HashMap<u16, u64> {
    let folder = folder.to_owned();
    let all =
        move || numbers.into_iter().map(|number| (number, used(&folder.join(number.to_string())))).collect();
    tokio::task::spawn_blocking(all).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_sooner() {
        assert_eq!(until(0), FAST);
        assert_eq!(until(u64::MAX), SLOW);
        assert!(until(RATE / 10) < SLOW && until(RATE / 10) > FAST);
    }
}
