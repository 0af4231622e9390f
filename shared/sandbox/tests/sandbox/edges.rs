//! Limits at their edges, and the state after a slot has ended.

use std::fs;
use std::time::Duration;

use crate::support::{Place, Way, exists};
use sandbox::{Cause, Cgroups, Cores, Limits, Parent, Run, Slot, SlotConfig};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn what_is_put_into_a_sandbox_for_one_command_has_a_limit_everywhere() {
    let place = Place::new(Way::Rooted);
    let mut slot = place.slot().await;
    let script = "mkdir /dev/x || echo none; echo x >/dev/null && echo null; echo x >/dev/shm/x && echo shm
        head -c 5 /dev/zero; : </dev/urandom && : >/dev/ptmx && ls /dev/pts && echo pts
        head -c 9000000 /dev/zero >/tmp/x || echo full";
    // The larger limit must not allow more bytes in memory.
    let limits = Limits { memory_bytes: Some(8 * MIB), disk_bytes: Some(100 * MIB), ..Limits::default() };
    place.ended(&mut slot, Run { limits, ..place.script(script) }).await;
    let said = place.stdout().replace('\0', "");
    assert_eq!(said, "none\nnull\nshm\nptmx\npts\nfull\n", "{}", place.stderr());
}

#[tokio::test]
async fn limits_that_no_machine_has_are_none() {
    for way in [Way::None, Way::Kept, Way::Rooted] {
        let place = Place::new(way);
        let vast = Limits {
            cpu: Some(Duration::MAX),
            memory_bytes: Some(u64::MAX),
            processes: Some(u64::MAX),
            files: Some(u64::MAX),
            disk_bytes: Some(u64::MAX),
        };
        for cgroups in [Cgroups::default(), Cgroups::detect(&Parent::Auto)] {
            let mut slot = Slot::start(SlotConfig { cgroups, ..place.config() }).await.unwrap();
            let ended =
                place.ended(&mut slot, Run { limits: vast, ..place.script("sleep 0.1; exit 3") }).await;
            assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 3), "{way:?}: {}", place.stderr());
        }
    }
}

#[tokio::test]
async fn a_control_group_ends_with_its_slot() {
    let cgroups = Cgroups::detect(&Parent::Auto);
    for way in [Way::None, Way::Kept] {
        let place = Place::new(way);
        let config = SlotConfig { cgroups: cgroups.clone(), ..place.config() };
        let name = format!("forebay-{}", config.name);
        let mut slot = Slot::start(config).await.unwrap();
        let groups = || {
            let all = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
            all.filter(|parent| parent.path().join(&name).exists()).count()
        };
        assert_eq!(groups() > 0, cgroups.limits_memory() || cgroups.limits_processes(), "{way:?}");
        // Also while it runs a command that ignores SIGTERM.
        let running = slot.run(place.script("trap '' TERM; : >up; sleep 1000")).await.unwrap();
        exists(&place.root().join("up")).await;
        drop(running);
        slot.stop().await.unwrap();
        assert_eq!(groups(), 0, "{way:?}");
        fs::remove_file(place.root().join("up")).unwrap();
    }
}

/// Whether the kernel knows NUMA nodes; without them there is nothing to bind to.
fn has_nodes() -> bool {
    std::path::Path::new("/proc/self/numa_maps").exists()
        && std::path::Path::new("/sys/devices/system/node/node0").exists()
}

#[tokio::test]
async fn commands_use_the_cores_and_the_memory_of_their_slot() {
    if !has_nodes() {
        return;
    }
    let place = Place::new(Way::Kept);
    let cores = Cores { processors: vec![0], memory_nodes: vec![0] };
    let mut slot = Slot::start(SlotConfig { cores, ..place.config() }).await.unwrap();
    let script = "grep Cpus_allowed_list /proc/self/status | cut -f 2; grep -c bind:0 /proc/self/numa_maps";
    place.ended(&mut slot, place.script(script)).await;
    let printed = place.stdout();
    let [processors, bound] = <[&str; 2]>::try_from(printed.lines().collect::<Vec<_>>()).unwrap();
    assert_eq!(processors, "0");
    assert!(bound.parse::<u32>().unwrap() > 0, "{printed}");
    slot.stop().await.unwrap();
}
