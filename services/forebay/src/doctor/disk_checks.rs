//! Checks that streams accept writes and that stores and disks have free space.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use bus::Bus;
use cas::{Refusal, ZoneRoom};
use disk::{Reserve, Space};
use jetstream::Topology;
use model::{FarmRecord, ZoneLimit};
use settings::Settings;
use store_bounds::{StoreRoom, store_rooms};
use telemetry::error_chain;

use super::Finding;
use crate::bytes_text::size;

/// Checks that every stream accepts writes, the stores, and the disks of the data folder and of the farm's store if they
/// are on this machine.
pub(super) async fn run(bus: &Bus, settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![writes(bus, settings).await];
    findings.extend(stores(bus).await);
    findings.extend(Space::of(&settings.data).ok().map(|space| disk(space, settings)));
    if let Some(folder) = store_folder(bus).await
        && device(&folder) != device(&settings.data)
    {
        findings.push(match Space::of(&folder) {
            Ok(space) => store_disk(&folder, space, settings),
            Err(error) => {
                let what = format!("cannot measure the disk of the store in {}: {error}", folder.display());
                Finding::warn("disk", what, "check the permissions of this folder")
            }
        });
    }
    findings
}

/// The folder of the farm's store, if it is on this machine.
async fn store_folder(bus: &Bus) -> Option<PathBuf> {
    // The check of the store reports a record that cannot be read.
    let (_, record) = bus.buckets().get::<FarmRecord>(&()).await.ok()?;
    let folder = PathBuf::from(record?.cas?.url.strip_prefix("file://")?);
    folder.join(cas::STORE_ID).is_file().then_some(folder)
}

/// Number of the file system that contains `path`.
fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.dev())
}

async fn writes(bus: &Bus, settings: &Settings) -> Finding {
    // The check asks for a purge of nothing, which operators may not.
    if bus.server_address().credentials.seed.is_some() {
        return Finding::ok(
            "writes",
            "checked by `forebay up`, which restarts a nats-server that refuses them",
        );
    }
    let streams = Topology::new(&settings.topology()).streams;
    let mut faults = Vec::new();
    for stream in &streams {
        match bus.stream(&stream.name).write_fault().await {
            Ok(None) => {}
            Ok(Some(why)) => faults.push(format!("{} ({why})", stream.name)),
            Err(error) => return Finding::fail("writes", error_chain(&error), "see the log of nats-server"),
        }
    }
    if faults.is_empty() {
        return Finding::ok("writes", format!("{} streams and buckets accept writes", streams.len()));
    }
    let server = bus.server().name;
    Finding::fail(
        "writes",
        format!("refused by {}", faults.join(", ")),
        format!(
            "free space on its disk, then restart nats-server {server} (`forebay up` restarts it automatically)"
        ),
    )
}

/// Time limit for the stores to report their usage.
const STORES_WAIT: Duration = Duration::from_millis(500);

async fn stores(bus: &Bus) -> Vec<Finding> {
    match store_rooms(bus, STORES_WAIT).await {
        Ok(rooms) if rooms.is_empty() => {
            let advice = "the cas service is busy or not running; start it: forebay serve cas";
            vec![Finding::warn("cas", "no store reports its usage", advice)]
        }
        Ok(rooms) => rooms.iter().flat_map(store_and_zones).collect(),
        Err(error) => vec![Finding::fail("cas", error_chain(&error), "see the log of nats-server")],
    }
}

fn store_and_zones(found: &StoreRoom) -> impl Iterator<Item = Finding> {
    std::iter::once(store(found)).chain(found.zones.iter().filter_map(zone))
}

fn store(found: &StoreRoom) -> Finding {
    const LARGER: &str = "increase cas_bytes_max, or try again after cas_keep_min_seconds";
    let room = found.room;
    let percent = room.used.saturating_mul(100) / room.max.max(1);
    let place = if found.place.is_empty() { &found.store } else { &found.place };
    let used = format!("{place}: {percent} % of {} used (cas_bytes_max)", size(room.max));
    match room.refusal {
        // Short of its own maximum, it is the disk that is full.
        Refusal::All if room.used <= room.max => Finding::fail(
            "cas",
            format!("{used}; its disk lacks free space: all writes are refused"),
            "free disk space (disk_left_percent sets the minimum)",
        ),
        Refusal::All => Finding::fail("cas", format!("{used}; all writes are refused"), LARGER),
        Refusal::Large => Finding::fail("cas", format!("{used}; all but small writes are refused"), LARGER),
        Refusal::Nothing if percent >= 95 => {
            Finding::warn("cas", format!("{used}; blobs are evicted before cas_keep_seconds"), LARGER)
        }
        Refusal::Nothing => Finding::ok("cas", used),
    }
}

/// What a zone with a limit has.
fn zone(room: &ZoneRoom) -> Option<Finding> {
    const LARGER: &str =
        "store less in the zone, try again after cas_keep_min_seconds, or increase zone_limits";
    if room.limit == ZoneLimit::default() {
        return None;
    }
    let (limit, used, percent) = (room.limit, room.used, room.limit.percent(room.used));
    let of = |max: u64, text: String| if max == 0 { String::new() } else { format!(" of {text}") };
    let found = format!(
        "zone {} has {}{} and {} blobs{}",
        room.zone,
        size(used.bytes),
        of(limit.bytes_max, size(limit.bytes_max)),
        used.blobs,
        of(limit.blobs_max, limit.blobs_max.to_string()),
    );
    Some(if room.is_refused {
        Finding::fail("zone", format!("{found}; its new blobs are refused"), LARGER)
    } else if percent >= 95 {
        Finding::warn("zone", format!("{found}; it loses blobs before cas_keep_seconds"), LARGER)
    } else {
        Finding::ok("zone", found)
    })
}

fn disk(space: Space, settings: &Settings) -> Finding {
    let reserve = Reserve::new(settings.disk_left_percent);
    let folder = settings.data.display();
    let left = format!("{} free for {folder}", size(space.bytes_left));
    if space.bytes_left < reserve.for_stores(space.bytes) {
        let found = format!("{left}; workers and executors accept nothing, stores refuse writes");
        return Finding::fail("disk", found, "free disk space (disk_left_percent sets the minimum)");
    }
    match reserve.shortage(space) {
        Some(why) => Finding::warn(
            "disk",
            format!("{left}; workers and executors accept nothing: {why}"),
            "free disk space",
        ),
        None => Finding::ok("disk", left),
    }
}

/// Judges the disk of a store that is not the disk of the data folder.
fn store_disk(folder: &Path, space: Space, settings: &Settings) -> Finding {
    let left = format!("{} free for {}", size(space.bytes_left), folder.display());
    if space.bytes_left < Reserve::new(settings.disk_left_percent).for_stores(space.bytes) {
        let found = format!("{left}; the store refuses writes");
        return Finding::fail("disk", found, "free disk space (disk_left_percent sets the minimum)");
    }
    Finding::ok("disk", left)
}

#[cfg(test)]
mod tests {
    use cas::CasRoom;
    use model::ZoneUse;

    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_store_that_refuses_writes_says_why() {
        let of = |used, refusal| {
            let room = CasRoom { used, max: 42_949_672_960, refusal };
            store(&StoreRoom { store: "id".to_owned(), place: "h:/data/cas".to_owned(), room, zones: vec![] })
        };
        let short = of(0, Refusal::All);
        assert!(short.status == Status::Fail && short.found.contains("its disk lacks free space"));
        assert!(short.found.starts_with("h:/data/cas: 0 % of 42.9 GB used"), "{}", short.found);
        let full = of(50_000_000_000, Refusal::All);
        assert!(full.status == Status::Fail && !full.found.contains("disk"), "{}", full.found);
        assert_eq!(of(0, Refusal::Nothing).status, Status::Ok);
    }

    #[test]
    fn a_zone_at_its_limit_is_named() {
        let of = |blobs, blobs_max, is_refused| {
            let limit = ZoneLimit { bytes_max: 0, blobs_max };
            let used = ZoneUse { blobs, bytes: 4096 * blobs };
            zone(&ZoneRoom { zone: "pulls".parse().unwrap(), used, limit, is_refused })
        };
        assert!(of(5, 0, false).is_none());
        let little = of(50, 100, false).unwrap();
        assert_eq!(
            (little.status, &*little.found),
            (Status::Ok, "zone pulls has 205 kB and 50 blobs of 100")
        );
        assert_eq!(of(96, 100, false).unwrap().status, Status::Warn);
        let full = of(100, 100, true).unwrap();
        assert!(full.status == Status::Fail && full.found.contains("refused"), "{}", full.found);
    }

    #[test]
    fn the_disk_is_judged_by_what_stops_working() {
        let settings = Settings { disk_left_percent: 10, ..Settings::default() };
        let space = |bytes_left| Space { bytes: 1000, bytes_left, inodes: 0, inodes_left: 0 };
        let status = |left| disk(space(left), &settings).status;
        assert_eq!([status(100), status(99), status(49)], [Status::Ok, Status::Warn, Status::Fail]);
    }

    #[test]
    fn the_disk_of_a_store_is_judged_by_whether_it_refuses_writes() {
        let settings = Settings { disk_left_percent: 10, ..Settings::default() };
        let space = |bytes_left| Space { bytes: 1000, bytes_left, inodes: 0, inodes_left: 0 };
        let status = |left| store_disk(Path::new("/store"), space(left), &settings).status;
        assert_eq!([status(50), status(49), status(0)], [Status::Ok, Status::Fail, Status::Fail]);
    }
}
