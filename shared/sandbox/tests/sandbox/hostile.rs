//! Commands that try to escape or to interfere with others.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Place, USER, Way, exists, host};
use nix::unistd::geteuid;
use sandbox::{Cause, Cgroups, Parent, Slot, SlotConfig, Stream, User};
use tokio::process::Command;

in_all_ways! {
    s2_an_input_cannot_be_changed
    s9_nothing_of_a_command_outlives_it
    a_timeout_is_kept_against_the_deaf
    a_polite_command_may_finish_at_its_timeout
    a_killed_command_says_so
    s15_endless_output_is_stopped
    a_dropped_command_is_dead_before_the_next
    s13_no_descriptor_or_variable_of_the_executor_shows
}

/// An input as the executor creates it: a link into the cache, owned by root.
fn input(place: &Place) -> File {
    let cached = place.path("cached");
    fs::write(&cached, "cached").unwrap();
    fs::set_permissions(&cached, PermissionsExt::from_mode(0o444)).unwrap();
    fs::hard_link(&cached, place.root().join("input")).unwrap();
    File::open(cached).unwrap()
}

async fn s2_an_input_cannot_be_changed(way: Way) {
    if !geteuid().is_root() {
        return; // Its inputs are copies.
    }
    let place = Place::new(way);
    let cached = input(&place);
    let before = cached.metadata().unwrap();
    let mut slot = place.slot().await;
    let script = "
        echo x >input; echo x >>input; chmod 666 input; chmod u+s input; touch -d @5 input; id -u
        dd if=/dev/zero of=input conv=notrunc bs=1 count=1; ln input other; chmod 777 other; echo x >other
        cat input; echo new >mine && mv -f mine input; cat input; exit 0";
    let ended = place.ended(&mut slot, place.script(script)).await;
    let user = if way == Way::Rooted { "0" } else { "65534" };
    assert_eq!(place.stdout(), format!("{user}\ncachednew\n"), "{}", place.stderr());
    assert_eq!(ended.cause, Cause::Ended);
    // It owns its folder, so it could replace the file. The cached file is unchanged.
    let after = cached.metadata().unwrap();
    assert_eq!(fs::read(place.path("cached")).unwrap(), b"cached");
    assert_eq!((after.mode(), after.mtime(), after.uid()), (before.mode(), before.mtime(), 0));
    assert_ne!(fs::metadata(place.root().join("input")).unwrap().ino(), after.ino());
    // It does not own the folder above, so it cannot replace its root.
    let script = "mv ../root ../x; mkdir ../y; ln -s / ../z; echo x >../w; exit 0";
    place.ended(&mut slot, place.script(script)).await;
    let names: Vec<_> =
        fs::read_dir(place.path("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["root"]);
}

/// A typical daemon: own session, orphaned, ignores SIGTERM.
const DAEMON: &str = "setsid sh -c 'trap \"\" TERM HUP; while :; do echo x >>alive; sleep 0.01; done' &";

/// Whether a process still writes.
async fn lives(place: &Place) -> bool {
    let length = || fs::metadata(place.root().join("alive")).unwrap().len();
    let before = length();
    tokio::time::sleep(Duration::from_millis(100)).await;
    length() != before
}

async fn s9_nothing_of_a_command_outlives_it(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let script = format!("{DAEMON} while ! [ -e alive ]; do sleep 0.01; done; exit 3");
    let ended = place.ended(&mut slot, place.script(&script)).await;
    assert_eq!((ended.exit_code, ended.cause), (3, Cause::Ended));
    assert!(!lives(&place).await);
}

async fn a_timeout_is_kept_against_the_deaf(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut run = place.script(&format!("{DAEMON} trap '' TERM; echo log; while :; do sleep 0.01; done"));
    (run.timeout, run.kill_grace) = (Some(Duration::from_millis(300)), Duration::from_millis(200));
    let began = Instant::now();
    let ended = place.ended(&mut slot, run).await;
    assert_eq!((ended.exit_code, ended.cause), (137, Cause::Deadline));
    assert!(
        ended.wall >= Duration::from_millis(500) && began.elapsed() < Duration::from_secs(5),
        "{ended:?}"
    );
    assert_eq!(place.stdout(), "log\n");
    assert!(!lives(&place).await);
}

async fn a_polite_command_may_finish_at_its_timeout(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut run = place.script("trap 'echo bye; exit 9' TERM; while :; do sleep 0.01; done");
    (run.timeout, run.kill_grace) = (Some(Duration::from_millis(300)), Duration::from_secs(20));
    let ended = place.ended(&mut slot, run).await;
    assert_eq!((ended.exit_code, ended.cause), (9, Cause::Deadline));
    assert!(ended.wall < Duration::from_secs(10), "{ended:?}");
    assert_eq!(place.stdout(), "bye\n");
}

async fn a_killed_command_says_so(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut running = slot.run(place.script("echo up; sleep 1000")).await.unwrap();
    running.next_event().await.unwrap();
    running.stdout().tail(0).next().await.unwrap();
    let control = running.control();
    control.kill(Duration::ZERO).await.unwrap();
    let outcome = running.finish().await.unwrap();
    let sandbox::Outcome::Ended(ended) = outcome else { panic!("{outcome:?}") };
    assert_eq!((ended.exit_code, ended.cause), (137, Cause::Killed));
    // A late kill affects no other command.
    let running = slot.run(place.script("sleep 0.1; exit 4")).await.unwrap();
    control.kill(Duration::ZERO).await.unwrap();
    let outcome = running.finish().await.unwrap();
    assert!(matches!(outcome, sandbox::Outcome::Ended(ended) if ended.exit_code == 4));
}

async fn s15_endless_output_is_stopped(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut run = place.script("echo fine; while :; do echo 0123456789 >&2; done");
    run.output_bytes_max = 100_000;
    let ended = place.ended(&mut slot, run).await;
    assert!(matches!(ended.cause, Cause::OutputTooLarge(Stream::Stderr, 100_001..)), "{ended:?}");
    assert_eq!((ended.stdout_bytes, ended.stderr_bytes), (5, 100_000));
    assert_eq!(fs::metadata(place.path("stderr")).unwrap().len(), 100_000);
    // A command that ends before the first check is not exempt.
    let mut run = place.script("echo 0123456789");
    run.output_bytes_max = 10;
    let ended = place.ended(&mut slot, run).await;
    assert_eq!((ended.cause, ended.stdout_bytes), (Cause::OutputTooLarge(Stream::Stdout, 11), 10));
}

async fn a_dropped_command_is_dead_before_the_next(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut running = slot.run(place.script(&format!("{DAEMON} sleep 1000"))).await.unwrap();
    running.next_event().await.unwrap();
    exists(&place.root().join("alive")).await;
    drop(running);
    let ended = place.ended(&mut slot, place.script("ls alive")).await;
    assert_eq!((ended.exit_code, ended.cause), (0, Cause::Ended));
    assert!(!lives(&place).await);
}

#[tokio::test]
async fn a_dropped_command_leaves_no_trace_either() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    for (leave, look) in
        TRACES.iter().filter(|(leave, _)| leave.starts_with("ipcmk") || leave.starts_with("echo"))
    {
        let leave = format!("rm -f left; {leave}; echo early; : >left; sleep 1000");
        let running = slot.run(place.script(&leave)).await.unwrap();
        exists(&place.root().join("left")).await;
        drop(running);
        let ended = place.ended(&mut slot, place.script(look)).await;
        assert_eq!(ended.exit_code, 0, "{look}: {}", place.stderr());
        assert_eq!(place.stdout(), "", "after {leave}");
        fs::remove_file(place.root().join("left")).unwrap();
    }
}

async fn s13_no_descriptor_or_variable_of_the_executor_shows(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    // The tests' environment represents the executor's secrets: nextest and cargo fill it.
    assert!(std::env::vars().any(|(name, _)| name.starts_with("CARGO")));
    let script =
        "for pid in /proc/[0-9]*; do cat $pid/environ; done; cat /proc/1/mem; ls -l /proc/1/fd /proc/1/cwd/";
    place.ended(&mut slot, place.script(script)).await;
    assert!(!place.stdout().contains("CARGO"), "{}", place.stdout());
}

#[tokio::test]
async fn s15_a_gigabyte_of_output_takes_no_memory_of_ours() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    let ended = place.ended(&mut slot, place.script("head -c 1073741824 /dev/zero")).await;
    assert_eq!((ended.exit_code, ended.cause, ended.stdout_bytes), (0, Cause::Ended, 1 << 30));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 64 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn s1_the_host_does_not_show_in_a_sandbox() {
    for way in [Way::Kept, Way::Rooted] {
        let place = Place::new(way);
        let mut slot = place.slot().await;
        fs::write(place.path("secret"), "x").unwrap();
        fs::set_permissions(place.path("secret"), PermissionsExt::from_mode(0o644)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!(
            "cat {secret} /home/* /root/* /run/*; ls /work /home /root /var/lib
             kill -9 {own}; kill -9 -1
             echo x >/usr/x; echo x >/etc/x; touch /x /forebay/x /dev/x /proc/sys/kernel/x; exit 0",
            secret = place.path("secret").display(),
            own = std::process::id(),
        );
        let ended = place.ended(&mut slot, place.script(&script)).await;
        assert_eq!(place.stdout(), "", "{way:?}");
        assert!(ended.exit_code == 0 || ended.exit_code == 137, "{ended:?}");
        assert!(!Path::new("/usr/x").exists() && !Path::new("/etc/x").exists() && !Path::new("/x").exists());
        if way == Way::Kept {
            let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected");
            let ended = place.ended(&mut slot, place.run(&["/bin/bash", "-c", &connect])).await;
            assert_ne!(ended.exit_code, 0);
            let connect = "exec 3<>/dev/tcp/192.0.2.1/80 && echo connected";
            place.ended(&mut slot, place.run(&["/bin/bash", "-c", connect])).await;
            assert!(place.stderr().contains("unreachable"), "{}", place.stderr());
            place.ended(&mut slot, place.script("set -- /proc/[0-9]*; echo $#; hostname")).await;
            // The first process, and `sh`.
            assert_eq!(place.stdout(), "2\nforebay\n");
        }
    }
}

#[tokio::test]
async fn a_rooted_command_has_its_input_root_and_no_more() {
    let place = Place::new(Way::Rooted);
    let mut slot = place.slot().await;
    let script = "id -u; id -g; ls /; echo made >/usr/made; touch /tmp/x && echo tmp; ls /usr/share; exit 0";
    place.ended(&mut slot, place.script(script)).await;
    let output = place.stdout();
    let mut lines: Vec<_> = output.lines().collect();
    lines.retain(|line| !line.starts_with("lib"));
    assert_eq!(lines, ["0", "0", "bin", "dev", "etc", "proc", "tmp", "usr", "tmp"]);
    assert_eq!(fs::read_to_string(place.root().join("usr/made")).unwrap(), "made\n");
    for made in ["proc", "dev", "tmp"] {
        assert!(!place.root().join(made).exists(), "{made} is left");
    }
}

/// Traces that one command leaves in its sandbox, and how the next command would see them.
const TRACES: [(&str, &str); 6] = [
    ("mkdir -p /tmp/a/b; echo x >/tmp/a/b/c; ln -s / /tmp/l", "ls -A /tmp"),
    ("mkdir -p /tmp/a/b; echo x >/tmp/a/b/c; chmod 0 /tmp/a/b", "ls -A /tmp /var/tmp"),
    ("echo x >/dev/shm/x", "ls -A /dev/shm"),
    ("ipcmk -Q >/dev/null && ipcmk -M 100 >/dev/null && ipcmk -S 1 >/dev/null", "ipcs | grep 0x || :"),
    (TIME_WAIT, "grep -h ^TCP: /proc/net/sockstat | grep -v 'inuse 0 orphan [0-9]* tw 0' || :"),
    ("ulimit -c 0; umask 0; cd /tmp; nice true", "ls -A /tmp"),
];

/// A connection closed first by this side holds its port for a minute.
const TIME_WAIT: &str = r#"python3 -c '
import socket
listener = socket.create_server(("127.0.0.1", 4711))
client = socket.create_connection(("127.0.0.1", 4711))
server, _ = listener.accept()
server.close(); client.close()'"#;

#[tokio::test]
async fn s14_no_command_finds_traces_of_another() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    for (leave, look) in TRACES {
        let run = place.script(leave);
        let mut python = place.run(&["/bin/sh", "-c", leave]);
        python.env = vec![("PATH".into(), std::env::var("PATH").unwrap() + ":/usr/bin")];
        let ended = place.ended(&mut slot, if leave == TIME_WAIT { python } else { run }).await;
        assert_eq!(ended.exit_code, 0, "{leave}: {}", place.stderr());
        let ended = place.ended(&mut slot, place.script(look)).await;
        assert_eq!(ended.exit_code, 0, "{look}: {}", place.stderr());
        let left: String =
            place.stdout().lines().filter(|line| line.starts_with(|c: char| c != '/')).collect();
        assert_eq!(left, "", "after {leave}");
    }
}

#[tokio::test]
async fn s5_two_slots_do_not_see_each_other() {
    let (one, two) = (Place::new(Way::Kept), Place::new(Way::Kept));
    let (mut first, mut second) = (one.slot().await, two.slot().await);
    let mut running =
        first.run(one.script("echo up; while ! [ -e go ]; do sleep 0.01; done; exit 6")).await.unwrap();
    running.next_event().await.unwrap();
    running.stdout().tail(0).next().await.unwrap();
    let script = format!("kill -9 -1; ls {} /forebay", one.root().display());
    two.ended(&mut second, two.run(&["/usr/bin/setsid", "/bin/sh", "-c", &script])).await;
    let script = "for pid in 1 2 3 4 5 6 7 8 9; do [ $pid = $$ ] || kill -9 $pid; done; ls /forebay";
    two.ended(&mut second, two.script(script)).await;
    assert_eq!(two.stdout(), "root\n");
    fs::write(one.root().join("go"), "").unwrap();
    let outcome = running.finish().await.unwrap();
    assert!(matches!(outcome, sandbox::Outcome::Ended(ended) if ended.exit_code == 6));
}

#[tokio::test]
async fn s16_killing_the_executor_kills_its_command() {
    for sandbox in ["none", "bubblewrap"] {
        let place = Place::new(Way::Kept);
        let script = format!("{DAEMON} sleep 1000");
        let mut executor = Command::new(host())
            .args(["executor", sandbox, place.folder.path().to_str().unwrap(), &script])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        exists(&place.root().join("alive")).await;
        executor.kill().await.unwrap();
        // All processes die soon, but not at this very moment.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!lives(&place).await, "{sandbox}");
    }
}

#[tokio::test]
async fn s6_a_fork_bomb_is_bounded() {
    if !geteuid().is_root() {
        return;
    }
    for cgroups in [Cgroups::default(), Cgroups::detect(&Parent::Auto)] {
        for way in [Way::None, Way::Kept] {
            let place = Place::new(way);
            // A separate user: without control groups all processes of a user count.
            let user = USER_OF_BOMB;
            chown(place.root(), Some(user.uid), Some(user.gid)).unwrap();
            let config = SlotConfig {
                cgroups: cgroups.clone(),
                processes_max: Some(40),
                user: Some(user),
                ..place.config()
            };
            let mut slot = Slot::start(config).await.unwrap();
            let script = "$| = 1; for (1..200) { my $pid = fork; defined $pid or die \"fork: $!\"; $pid or exec \"sleep\", 1000; \
                          print \"$_\\n\" }";
            let ended = place.ended(&mut slot, place.run(&["/usr/bin/perl", "-e", script])).await;
            assert!(place.stdout().lines().count() <= 40, "{way:?}: {}", place.stdout());
            assert!(ended.exit_code != 0 && place.stderr().contains("fork"), "{way:?}: {}", place.stderr());
            // The next command is not affected.
            assert_eq!(place.ended(&mut slot, place.run(&["/bin/true"])).await.exit_code, 0);
            slot.stop().await.unwrap();
        }
    }
}

const USER_OF_BOMB: User = User { uid: 61000, gid: 61000 };

#[tokio::test]
async fn s11_rights_are_not_to_be_had() {
    if !geteuid().is_root() {
        return;
    }
    for way in [Way::None, Way::Kept] {
        let place = Place::new(way);
        // A program that runs as root, whichever user executes it.
        let program = place.root().join("id");
        fs::copy("/usr/bin/id", &program).unwrap();
        chown(&program, Some(0), Some(0)).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).unwrap();
        let mut slot = place.slot().await;
        let script = "./id -u; ./id -G; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status; mount -t tmpfs x /mnt";
        place.ended(&mut slot, place.script(script)).await;
        let none = "0000000000000000";
        let wanted = format!("{0}\n{0}\nCapPrm:\t{none}\nCapEff:\t{none}\nNoNewPrivs:\t1\n", USER.uid);
        assert_eq!(place.stdout(), wanted, "{way:?}");
    }
}
