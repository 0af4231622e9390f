//! Watches the disk under the workspaces: below the reserve the worker accepts no offers and empties idle workspaces;
//! below half of the reserve it ends the build that fills the disk, before the bus on the same disk suffers.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use disk::{Reserve, Resource, Space, Used, unlinked_bytes};
use policy::disk::{DiskUse, to_blame};
use service::ServiceError;
use tracing::{info, warn};

use crate::{shared::Shared, stop::Cause};

/// Time between two checks while there is plenty of room.
const SLOW: Duration = Duration::from_secs(1);
/// Time between two checks when the disk may fill up at any moment.
const FAST: Duration = Duration::from_millis(10);
/// Assumed maximum rate at which a disk fills, in bytes per second.
const RATE: u64 = 2 << 30;
/// Assumed maximum rate at which files are created, per second.
const FILES_RATE: u64 = 200_000;
/// Time that an ended build has to free its space before the next one is ended.
const ROOM_BACK: Duration = Duration::from_secs(2);

/// Watches until the worker ends. Checks frequently only while a build runs or space is short.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let reserve = Reserve::new(shared.settings.disk_left_percent);
    let mut begun = shared.workspaces.begun();
    let mut watch = Watch { shared, reserve, first: None, is_unreadable: false };
    loop {
        let next = watch.check().await;
        let idle = watch.shared.workspaces.busy().is_empty() && watch.shared.workspaces.shortage().is_none();
        if idle {
            // The start of a run wakes this loop; an idle worker still checks at each heartbeat.
            tokio::select! {
                _ = begun.changed() => {}
                () = tokio::time::sleep(watch.shared.settings.heartbeat) => {}
            }
        } else {
            tokio::time::sleep(next).await;
        }
    }
}

struct Watch {
    shared: Arc<Shared>,
    reserve: Reserve,
    /// The state when space became short.
    first: Option<Measured>,
    /// Whether the space could not be read at the last check.
    is_unreadable: bool,
}

/// What was free, and what each busy workspace used, when space became short.
struct Measured {
    space: Space,
    sizes: HashMap<u16, Used>,
}

impl Watch {
    /// Checks once; returns the time until the next check.
    async fn check(&mut self) -> Duration {
        let space = match Space::of(self.shared.folder.path()) {
            Ok(space) => space,
            Err(error) => {
                if !std::mem::replace(&mut self.is_unreadable, true) {
                    warn!(%error, "cannot read the free space: a full disk is not noticed");
                }
                return SLOW;
            }
        };
        self.is_unreadable = false;
        self.update_shortage(space);
        if !self.reserve.is_scarce(space) {
            self.first = None;
            return self.until_floor(space);
        }
        let busy = self.shared.workspaces.busy();
        let sizes = sizes(self.shared.folder.path(), busy).await;
        if let Some(resource) = self.reserve.exhausted(space) {
            return self.end_one(space, resource, sizes);
        }
        // Read again after the sizes: data written while they were measured is part of them and must not
        // count as lost since. If that fails, the first reading remains valid.
        let space = Space::of(self.shared.folder.path()).unwrap_or(space);
        self.first.get_or_insert(Measured { space, sizes });
        self.until_floor(space)
    }

    /// Minimum time until a build may have to be ended.
    fn until_floor(&self, space: Space) -> Duration {
        let above =
            |resource| space.left(resource).saturating_sub(self.reserve.for_stores(space.total(resource)));
        let bytes = until(above(Resource::Bytes), RATE);
        if space.inodes == 0 { bytes } else { bytes.min(until(above(Resource::Inodes), FILES_RATE)) }
    }

    /// Accepts no offers while space is short.
    fn update_shortage(&self, space: Space) {
        let workspaces = &self.shared.workspaces;
        let shortage = self.reserve.shortage(space);
        if shortage.is_some() == workspaces.shortage().is_some() {
            return;
        }
        if let Some(why) = &shortage {
            warn!("the worker accepts no builds: {why}");
        } else {
            info!("the disk has enough space again: accepting builds");
        }
        workspaces.set_shortage(shortage);
    }

    fn end_one(&mut self, space: Space, resource: Resource, sizes: HashMap<u16, Used>) -> Duration {
        let (left, reserve) = (space.left(resource), self.reserve.for_stores(space.total(resource)));
        let first = self.first.get_or_insert_with(|| Measured { space, sizes: HashMap::new() });
        let lost = first.space.left(resource).saturating_sub(left);
        let mut numbers: Vec<u16> = sizes.keys().copied().collect();
        numbers.sort_unstable();
        let amount = |sizes: &HashMap<u16, Used>, number: &u16| {
            sizes.get(number).copied().unwrap_or_default().amount(resource)
        };
        let runs: Vec<DiskUse> = numbers
            .iter()
            .map(|number| DiskUse { before: amount(&first.sizes, number), now: amount(&sizes, number) })
            .collect();
        let Some(number) = to_blame(&runs, lost, reserve / 4).and_then(|index| numbers.get(index).copied())
        else {
            return FAST * 20;
        };
        let used = amount(&sizes, &number);
        warn!(workspace = number, %resource, used, left, reserve, "ending a build that fills the disk");
        self.shared.workspaces.stop(number, Cause::FilledDisk { resource, used, left, reserve });
        // Other tasks end the run; they may be waiting for the bus.
        self.shared.empty_workspace(number);
        let others = sizes.into_iter().filter(|(other, _)| *other != number).collect();
        self.first = Some(Measured { space, sizes: others });
        ROOM_BACK
    }
}

/// Whether the files of this workspace are the reason that the disk is full.
pub(crate) async fn is_own_fault(shared: &Shared, number: u16) -> bool {
    let reserve = Reserve::new(shared.settings.disk_left_percent);
    let Ok(space) = Space::of(shared.folder.path()) else { return true };
    let sizes = sizes(shared.folder.path(), vec![number]).await;
    let used = sizes.get(&number).copied().unwrap_or_default();
    Resource::ALL.into_iter().any(|resource| {
        let least = reserve.for_new_work(space.total(resource));
        space.left(resource) < least.max(1) && policy::disk::is_own_fault(used.amount(resource), least)
    })
}

/// Minimum time in which `amount` can be filled at `rate` per second, halved for safety.
fn until(amount: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(amount as f64 / rate as f64 / 2.0).clamp(FAST, SLOW)
}

/// Disk usage of each of these workspaces, with the files that were removed but are open.
async fn sizes(folder: &Path, numbers: Vec<u16>) -> HashMap<u16, Used> {
    let folder = folder.to_owned();
    let measure = move || {
        let folders: Vec<PathBuf> = numbers.iter().map(|number| folder.join(number.to_string())).collect();
        let unlinked = unlinked_bytes(&folders);
        let used = folders.iter().zip(unlinked).map(|(folder, unlinked)| {
            let used = Used::of(folder);
            Used { bytes: used.bytes.saturating_add(unlinked), ..used }
        });
        numbers.into_iter().zip(used).collect()
    };
    let measured = tokio::task::spawn_blocking(measure).await;
    measured.inspect_err(|error| warn!(%error, "cannot measure the workspaces")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_sooner() {
        assert_eq!(until(0, RATE), FAST);
        assert_eq!(until(u64::MAX, RATE), SLOW);
        assert!(until(RATE / 10, RATE) < SLOW && until(RATE / 10, RATE) > FAST);
    }
}
