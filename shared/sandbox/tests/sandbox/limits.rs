//! Commands that exceed their limits.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Place, Way};
use nix::unistd::geteuid;
use sandbox::{Cause, Cgroups, Ended, Limit, Limits, Over, Parent, Run, Slot, SlotConfig};

in_all_ways! {
    processor_time_counts_for_all_processes_together
    processor_time_of_those_that_are_no_more_counts
    a_fork_bomb_is_stopped
    as_many_processes_as_allowed_may_live
    s7_memory_counts_for_all_processes_together
    s8_files_and_folders_are_counted
    s8_what_is_added_on_disk_is_counted
    many_files_fill_a_disk_too
    a_file_without_a_name_fills_a_disk_too
    who_does_not_heed_the_kernel_is_stopped_as_well
    what_keeps_to_its_limits_is_not_disturbed
    limits_end_with_their_command
}

const MIB: u64 = 1 << 20;

/// A slot without control groups, and one with those of this machine; both are the same if it has none.
async fn slots(place: &Place) -> Vec<Slot> {
    let mut slots = Vec::new();
    for cgroups in [Cgroups::default(), Cgroups::detect(&Parent::Auto)] {
        slots.push(Slot::start(SlotConfig { cgroups, ..place.config() }).await.unwrap());
    }
    slots
}

/// A script that would run for a long time, with these limits.
fn limited(place: &Place, script: &str, limits: Limits) -> Run {
    Run { limits, ..place.script(script) }
}

/// The exceeded limit, which must be this one, detected long before the command would have exited.
fn broken(ended: &Ended, limit: Limit) -> Over {
    let Cause::OverLimit(over) = ended.cause else { panic!("{limit:?} was not broken: {ended:?}") };
    assert!(over.limit == limit && over.used > over.allowed, "{limit:?} is not what was broken: {ended:?}");
    assert!(ended.wall < Duration::from_secs(60), "{ended:?}");
    over
}

/// Empties the input root, except for the files that a `/` needs.
fn clear(place: &Place) {
    for entry in fs::read_dir(place.root()).unwrap().flatten() {
        let name = entry.file_name();
        if ["bin", "usr", "etc", "lib", "lib64"].iter().any(|keep| name == *keep) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

async fn processor_time_counts_for_all_processes_together(way: Way) {
    let place = Place::new(way);
    let script = "for i in 1 2 3 4 5; do (while :; do :; done) & done; wait";
    let limits = Limits { cpu: Some(Duration::from_millis(500)), ..Limits::default() };
    for mut slot in slots(&place).await {
        let ended = place.ended(&mut slot, limited(&place, script, limits)).await;
        let over = broken(&ended, Limit::Cpu);
        assert_eq!((over.allowed, ended.exit_code), (500, 137));
        assert!(over.used < 1000 && ended.cpu >= Duration::from_millis(500), "{ended:?}");
        // Each process ran less than half as long.
        assert!(ended.cpu < Duration::from_secs(1), "{ended:?}");
    }
}

async fn processor_time_of_those_that_are_no_more_counts(way: Way) {
    let place = Place::new(way);
    let limits = Limits { cpu: Some(Duration::from_millis(300)), ..Limits::default() };
    for mut slot in slots(&place).await {
        // Thousands of processes, none of which lives long enough to be measured.
        let ended = place.ended(&mut slot, limited(&place, "while :; do /bin/true; done", limits)).await;
        broken(&ended, Limit::Cpu);
        // A command that ends before the first check is not exempt.
        let brief = Limits { cpu: Some(Duration::from_micros(100)), ..Limits::default() };
        let ended = place.ended(&mut slot, limited(&place, "exit 0", brief)).await;
        assert_eq!(broken(&ended, Limit::Cpu).allowed, 0);
    }
}

async fn a_fork_bomb_is_stopped(way: Way) {
    let place = Place::new(way);
    let limits = Limits { processes: Some(50), ..Limits::default() };
    for mut slot in slots(&place).await {
        let script = "bomb() { bomb | bomb & }; bomb; sleep 1000";
        let ended = place.ended(&mut slot, limited(&place, script, limits)).await;
        assert_eq!(broken(&ended, Limit::Processes).allowed, 50);
        assert_eq!(place.ended(&mut slot, place.run(&["/bin/true"])).await.exit_code, 0);
    }
}

async fn as_many_processes_as_allowed_may_live(way: Way) {
    let place = Place::new(way);
    // Four processes including the shell.
    let script = "sleep 0.3 & sleep 0.3 & sleep 0.3 & wait";
    for mut slot in slots(&place).await {
        let run = |processes| Limits { processes: Some(processes), ..Limits::default() };
        let ended = place.ended(&mut slot, limited(&place, script, run(4))).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
        let ended = place.ended(&mut slot, limited(&place, script, run(3))).await;
        assert_eq!(broken(&ended, Limit::Processes), Over { limit: Limit::Processes, allowed: 3, used: 4 });
    }
}

async fn s7_memory_counts_for_all_processes_together(way: Way) {
    let place = Place::new(way);
    let limits = Limits { memory_bytes: Some(100 * MIB), ..Limits::default() };
    let one = "dd if=/dev/zero of=/dev/null bs=32M count=100 2>/dev/null";
    for mut slot in slots(&place).await {
        let ended = place.ended(&mut slot, limited(&place, one, limits)).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
        let many = one.replace("100 2", "100000 2");
        let many = format!("for i in 1 2 3 4 5 6; do {many} & done; wait");
        let ended = place.ended(&mut slot, limited(&place, &many, limits)).await;
        let over = broken(&ended, Limit::Memory);
        assert_eq!(over.allowed, 100 * MIB);
        assert!(over.used < 300 * MIB, "{over:?}");
    }
}

async fn s8_files_and_folders_are_counted(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        clear(&place);
        let run = |files| Limits { files: Some(files), ..Limits::default() };
        let script = "mkdir -p a/b; : >a/b/c; ln -s c a/b/d; : >e";
        let ended = place.ended(&mut slot, limited(&place, script, run(5))).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
        clear(&place);
        let ended = place.ended(&mut slot, limited(&place, script, run(4))).await;
        assert_eq!(broken(&ended, Limit::Files), Over { limit: Limit::Files, allowed: 4, used: 5 });
        for script in ["i=0; while :; do i=$((i+1)); : >f$i; done", "while mkdir d; do cd d; done; sleep 100"]
        {
            clear(&place);
            let ended = place.ended(&mut slot, limited(&place, script, run(200))).await;
            assert_eq!(broken(&ended, Limit::Files), Over { limit: Limit::Files, allowed: 200, used: 201 });
        }
    }
    clear(&place);
}

async fn s8_what_is_added_on_disk_is_counted(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        let run = |script: &str, disk_bytes| {
            clear(&place);
            let limits = Limits { disk_bytes: Some(disk_bytes), ..Limits::default() };
            Run { output_bytes_max: MIB, ..limited(&place, script, limits) }
        };
        let script = "head -c 1000000 /dev/zero >a; echo 23456789 >b";
        let ended = place.ended(&mut slot, run(script, 1_000_009)).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
        let ended = place.ended(&mut slot, run(script, 1_000_008)).await;
        assert_eq!(broken(&ended, Limit::Disk).used, 1_000_009);
        // The kernel stops a command that grows too fast to be measured: close to the limit.
        let ended = place.ended(&mut slot, run("cat /dev/zero >big", 10 * MIB)).await;
        broken(&ended, Limit::Disk);
        let length = fs::metadata(place.root().join("big")).unwrap().len();
        assert!(length > 10 * MIB && length < 13 * MIB, "{length}");
    }
    clear(&place);
}

/// Bytes in the files directly below the input root.
fn on_disk(root: &Path) -> u64 {
    fs::read_dir(root).unwrap().flatten().map(|entry| entry.metadata().unwrap().len()).sum()
}

async fn many_files_fill_a_disk_too(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        clear(&place);
        let script = "i=0; while :; do i=$((i+1)); head -c 500000 /dev/zero >f$i; done";
        let limits = Limits { disk_bytes: Some(20 * MIB), ..Limits::default() };
        let ended = place.ended(&mut slot, limited(&place, script, limits)).await;
        broken(&ended, Limit::Disk);
        let filled = on_disk(&place.root());
        assert!(filled > 20 * MIB && filled < 400 * MIB, "{filled}");
    }
    clear(&place);
}

async fn a_file_without_a_name_fills_a_disk_too(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        let script = "exec 3>f; rm f; head -c 50000000 /dev/zero >&3; sleep 1000";
        let limits = Limits { disk_bytes: Some(20 * MIB), ..Limits::default() };
        let ended = place.ended(&mut slot, limited(&place, script, limits)).await;
        broken(&ended, Limit::Disk);
    }
}

async fn who_does_not_heed_the_kernel_is_stopped_as_well(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        clear(&place);
        let limits = Limits { disk_bytes: Some(MIB), cpu: Some(Duration::from_secs(5)), ..Limits::default() };
        let script = "trap '' XFSZ XCPU; cat /dev/zero >big; exit 0";
        let run = Run { output_bytes_max: MIB, ..limited(&place, script, limits) };
        let ended = place.ended(&mut slot, run).await;
        broken(&ended, Limit::Disk);
    }
    clear(&place);
}

/// Limits of all kinds that a small command stays within.
const AMPLE: Limits = Limits {
    cpu: Some(Duration::from_secs(5)),
    memory_bytes: Some(200 * MIB),
    processes: Some(20),
    files: Some(20),
    disk_bytes: Some(10 * MIB),
};

async fn what_keeps_to_its_limits_is_not_disturbed(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        clear(&place);
        let script = "mkdir out; for i in 1 2 3 4 5; do head -c 1000000 /dev/zero >out/$i & done; wait
            i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.3; echo $i; ls out; exit 7";
        let ended = place.ended(&mut slot, limited(&place, script, AMPLE)).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 7), "{}", place.stderr());
        assert_eq!(place.stdout(), "20000\n1\n2\n3\n4\n5\n");
    }
    clear(&place);
}

async fn limits_end_with_their_command(way: Way) {
    let place = Place::new(way);
    for mut slot in slots(&place).await {
        let tight = Limits { processes: Some(1), disk_bytes: Some(10), files: Some(0), ..AMPLE };
        let run = Run { output_bytes_max: 10, ..limited(&place, "exit 3", tight) };
        let ended = place.ended(&mut slot, run).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 3), "{}", place.stderr());
        let script = "head -c 2000000 /dev/zero >big; sleep 0.1 & sleep 0.1 & wait";
        let ended = place.ended(&mut slot, place.script(script)).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
        clear(&place);
    }
}

/// Python programs; the input root of a rooted command does not contain Python.
fn python(place: &Place, program: &str, limits: Limits) -> Run {
    Run { limits, ..place.run(&["/usr/bin/env", "python3", "-c", program]) }
}

#[tokio::test]
async fn s6_threads_are_counted() {
    for way in [Way::None, Way::Kept] {
        let place = Place::new(way);
        let program = "import threading, time
for _ in range(5): threading.Thread(target=time.sleep, args=(0.4,)).start()";
        for mut slot in slots(&place).await {
            let run = |processes| Limits { processes: Some(processes), ..Limits::default() };
            let ended = place.ended(&mut slot, python(&place, program, run(6))).await;
            assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
            let ended = place.ended(&mut slot, python(&place, program, run(5))).await;
            broken(&ended, Limit::Processes);
        }
    }
}

#[tokio::test]
async fn memory_that_processes_share_counts_once() {
    for way in [Way::None, Way::Kept] {
        let place = Place::new(way);
        let program = "import os, time
block = b'x' * 60_000_000
children = [os.fork() for _ in range(4)]
time.sleep(0.5)";
        // Sixteen processes in total.
        let limits = Limits { memory_bytes: Some(250 * MIB), ..Limits::default() };
        for mut slot in slots(&place).await {
            let ended = place.ended(&mut slot, python(&place, program, limits)).await;
            assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 0), "{}", place.stderr());
            let own = program.replace("time.sleep(0.5)", "block = b'y' * 60_000_000\ntime.sleep(100)");
            let ended = place.ended(&mut slot, python(&place, &own, limits)).await;
            broken(&ended, Limit::Memory);
        }
    }
}

#[tokio::test]
async fn memory_of_who_may_not_be_looked_into_counts() {
    for way in [Way::None, Way::Kept] {
        let place = Place::new(way);
        // Any process may request this from the kernel.
        let program = "import ctypes, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
block = b'x' * 200_000_000
time.sleep(100)";
        let limits = Limits { memory_bytes: Some(100 * MIB), ..Limits::default() };
        for mut slot in slots(&place).await {
            broken(&place.ended(&mut slot, python(&place, program, limits)).await, Limit::Memory);
        }
    }
}

#[tokio::test]
async fn s7_what_is_put_into_private_folders_counts() {
    if !geteuid().is_root() {
        return; // Its sandbox is made for one command, with no more room than that may use.
    }
    let place = Place::new(Way::Kept);
    for mut slot in slots(&place).await {
        let fill = "head -c 50000000 /dev/zero >/tmp/x; sleep 1000";
        let disk = Limits { disk_bytes: Some(20 * MIB), ..Limits::default() };
        broken(&place.ended(&mut slot, limited(&place, fill, disk)).await, Limit::Disk);
        let memory = Limits { memory_bytes: Some(40 * MIB), ..Limits::default() };
        let shared = fill.replace("/tmp/x", "/dev/shm/x");
        broken(&place.ended(&mut slot, limited(&place, &shared, memory)).await, Limit::Memory);
        let files = Limits { files: Some(30), ..Limits::default() };
        let many = "i=0; while [ $i -lt 31 ]; do i=$((i+1)); : >/tmp/f$i; done";
        broken(&place.ended(&mut slot, limited(&place, many, files)).await, Limit::Files);
        // The files are gone for the next command.
        let ended = place.ended(&mut slot, limited(&place, "ls -A /tmp /dev/shm; exit 4", AMPLE)).await;
        assert_eq!((ended.cause, ended.exit_code), (Cause::Ended, 4));
    }
}

#[tokio::test]
async fn a_sandbox_for_one_command_has_no_more_room_than_that() {
    let place = Place::new(Way::Rooted);
    let mut slot = place.slot().await;
    let limits = Limits { disk_bytes: Some(MIB), ..Limits::default() };
    let script =
        "head -c 3000000 /dev/zero >/tmp/x || echo full; head -c 3000000 /dev/zero >/dev/shm/x || echo full";
    place.ended(&mut slot, limited(&place, script, limits)).await;
    assert_eq!(place.stdout(), "full\nfull\n", "{}", place.stderr());
}

#[tokio::test]
async fn a_control_group_keeps_memory_at_the_very_moment() {
    let cgroups = Cgroups::detect(&Parent::At("/sys/fs/cgroup/memory".into()));
    if !cgroups.limits_memory() {
        return;
    }
    for way in [Way::None, Way::Kept, Way::Rooted] {
        let place = Place::new(way);
        let mut slot = Slot::start(SlotConfig { cgroups: cgroups.clone(), ..place.config() }).await.unwrap();
        let script = "dd if=/dev/zero of=/dev/null bs=150M count=1; exit 0";
        let run = |limit, given| {
            let limits = Limits { memory_bytes: limit, ..Limits::default() };
            Run { memory_bytes_max: given, ..limited(&place, script, limits) }
        };
        let ended = place.ended(&mut slot, run(Some(60 * MIB), None)).await;
        assert_eq!(broken(&ended, Limit::Memory).allowed, 60 * MIB, "{way:?}");
        let ended = place.ended(&mut slot, run(Some(200 * MIB), None)).await;
        assert_eq!(ended.cause, Cause::Ended, "{way:?}: {}", place.stderr());
        // A command given less memory than its limit is not at fault.
        let mut given = run(Some(200 * MIB), Some(60 * MIB));
        given.argv = place.script(script.trim_end_matches("; exit 0")).argv;
        assert_eq!(place.ended(&mut slot, given).await.cause, Cause::OutOfMemory, "{way:?}");
    }
}
