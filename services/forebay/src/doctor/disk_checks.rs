//! Checks that streams accept writes and that stores and disks have free space.

use std::time::Duration;

use bus::Bus;
use cas::{CasRoom, Refusal};
use disk::{Reserve, Space};
use jetstream::Topology;
use settings::Settings;
use store_bounds::store_rooms;
use telemetry::error_chain;

use super::Finding;

/// Checks that every stream accepts writes, the stores, and the disk of the data folder if it is on this machine.
pub(super) async fn run(bus: &Bus, settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![writes(bus, settings).await];
    findings.extend(stores(bus).await);
    findings.extend(Space::of(&settings.data).ok().map(|space| disk(space, settings)));
    findings
}

async fn writes(bus: &Bus, settings: &Settings) -> Finding {
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
        Ok(rooms) => rooms.iter().map(|found| store(found.room)).collect(),
        Err(error) => vec![Finding::fail("cas", error_chain(&error), "see the log of nats-server")],
    }
}

fn store(room: CasRoom) -> Finding {
    const MORE: &str = "increase cas_bytes_max, or free space on its disk (disk_left_percent)";
    let percent = room.used.saturating_mul(100) / room.max.max(1);
    let found = format!("{percent} % of {} MB used", room.max / 1_000_000);
    match room.refusal {
        Refusal::All => Finding::fail("cas", format!("{found}; all writes are refused"), MORE),
        Refusal::Large => Finding::fail("cas", format!("{found}; all but small writes are refused"), MORE),
        Refusal::Nothing if percent >= 95 => {
            Finding::warn("cas", format!("{found}; blobs are evicted before cas_keep_seconds"), MORE)
        }
        Refusal::Nothing => Finding::ok("cas", found),
    }
}

fn disk(space: Space, settings: &Settings) -> Finding {
    let reserve = Reserve::new(settings.disk_left_percent);
    let folder = settings.data.display();
    let left = format!("{} MB free for {folder}", space.bytes_left / 1_000_000);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn the_disk_is_judged_by_what_stops_working() {
        let settings = Settings { disk_left_percent: 10, ..Settings::default() };
        let space = |bytes_left| Space { bytes: 1000, bytes_left, inodes: 0, inodes_left: 0 };
        let status = |left| disk(space(left), &settings).status;
        assert_eq!([status(100), status(99), status(49)], [Status::Ok, Status::Warn, Status::Fail]);
    }
}
