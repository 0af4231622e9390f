//! System calls that sandboxed commands must not reach the kernel with, and those that tools need.

use std::collections::BTreeMap;

use crate::support::{Kind, Place, Way};
use sandbox::{Cause, Run, User};

/// Prints the error number of each call, 0 for none.
const CALLS: &str = r#"
import ctypes, errno, os, platform, subprocess, threading
library = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()
NUMBERS = {
    "x86_64": dict(clone=56, unshare=272, setns=308, mount=165, umount2=166, pivot_root=155, bpf=321, perf_event_open=298,
        userfaultfd=323, keyctl=250, add_key=248, request_key=249, open_by_handle_at=304, personality=135, socket=41,
        ioctl=16, ptrace=101, kexec_load=246, swapon=167, syslog=103, quotactl=179, init_module=175, fanotify_init=300),
    "aarch64": dict(clone=220, unshare=97, setns=268, mount=40, umount2=39, pivot_root=41, bpf=280, perf_event_open=241,
        userfaultfd=282, keyctl=219, add_key=217, request_key=218, open_by_handle_at=265, personality=92, socket=198,
        ioctl=29, ptrace=117, kexec_load=104, swapon=224, syslog=116, quotactl=60, init_module=105, fanotify_init=262),
}[MACHINE]
NUMBERS |= dict(pidfd_getfd=438, io_uring_setup=425, open_tree=428, move_mount=429, fsopen=430, clone3=435, mount_setattr=442)

def call(name, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(it) if isinstance(it, int) else it for it in arguments]
    answer = library.syscall(ctypes.c_long(NUMBERS[name]), *wide)
    if name == "clone" and os.getpid() != OWN: os._exit(0)
    return ctypes.get_errno() if answer == -1 else 0

OWN = os.getpid()
USER, CHILD = 0x10000000, 17
def show(name, number): print(name, errno.errorcode.get(number, number), flush=True)
for name in ("setns", "mount", "umount2", "pivot_root", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key",
             "request_key", "open_by_handle_at", "kexec_load", "swapon", "syslog", "quotactl", "init_module",
             "fanotify_init", "io_uring_setup", "open_tree", "move_mount", "fsopen", "mount_setattr", "pidfd_getfd", "clone3"):
    show(name, call(name, 0, 0, 0, 0, 0, 0))
show("unshare-user", call("unshare", USER))
show("unshare-user-and-mounts", call("unshare", USER | 0x20000))
show("clone-user", call("clone", USER | CHILD, 0, 0, 0, 0))
show("personality-read-implies-exec", call("personality", 0x400000))
show("terminal-input", call("ioctl", 0, 0x5412, ctypes.c_char_p(b"x")))
for name, family, protocol in (("vsock", 40, 0), ("packet", 17, 0), ("alg", 38, 0), ("netlink-generic", 16, 16)):
    show("socket-" + name, call("socket", family, 3 if family != 38 else 5, protocol))
# What tools need.
show("socket-unix", call("socket", 1, 1, 0))
show("socket-netlink-route", call("socket", 16, 3, 0))
show("personality-query", call("personality", 0xffffffff))
show("personality-without-random-addresses", call("personality", 0x40000))
show("unshare-files", call("unshare", 0x400))
traced = os.fork()
if traced == 0: os._exit(call("ptrace", 0, 0, 0, 0))
show("debugger", os.waitstatus_to_exitcode(os.waitpid(traced, 0)[1]))
thread = threading.Thread(target=lambda: show("thread", 0))
thread.start()
thread.join()
show("child", subprocess.run(["/bin/true"]).returncode)
"#;

/// The calls that must work as without a sandbox.
const NEEDED: [&str; 8] = [
    "socket-unix",
    "socket-netlink-route",
    "personality-query",
    "personality-without-random-addresses",
    "unshare-files",
    "debugger",
    "thread",
    "child",
];

#[tokio::test]
async fn s3_a_build_is_refused_the_same_calls() {
    let place = Place::new(Way::Kept);
    check(&place.output_in(Kind::Build, &["python3", "-c", CALLS]).await, "");
}

#[tokio::test]
async fn s3_calls_that_reach_rare_parts_of_the_kernel_are_refused() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    // Twice: each command of a slot gets the filters.
    for _ in 0..2 {
        let ended = place.ended(&mut slot, place.run(&["python3", "-c", CALLS])).await;
        assert_eq!(ended.cause, Cause::Ended, "{}", place.stderr());
        check(&place.stdout(), &place.stderr());
    }
}

#[tokio::test]
async fn s3_a_command_with_the_user_of_an_image_is_refused_the_same_calls() {
    if !nix::unistd::geteuid().is_root() {
        return; // Overlays need root.
    }
    for id in [0, 1000] {
        // A device gives the command a sandbox of its own.
        for devices in [Vec::new(), vec!["/dev/null".into()]] {
            let place = Place::new(Way::Kept);
            let image = Some(place.image(Some(User { uid: id, gid: id }), None));
            let run = Run { image, devices, ..place.run(&["python3", "-c", CALLS]) };
            let ended = place.ended(&mut place.slot().await, run).await;
            assert_eq!(ended.cause, Cause::Ended, "{}", place.stderr());
            check(&place.stdout(), &place.stderr());
        }
    }
}

#[tokio::test]
async fn s3_a_command_in_its_own_sandbox_is_refused_the_same_calls() {
    let place = Place::new(Way::Kept);
    let mut config = place.config();
    // Without a user of its own, each command has its own sandbox.
    config.user = None;
    let mut slot = sandbox::Slot::start(config).await.unwrap();
    let ended = place.ended(&mut slot, place.run(&["python3", "-c", CALLS])).await;
    assert_eq!(ended.cause, Cause::Ended, "{}", place.stderr());
    check(&place.stdout(), &place.stderr());
}

fn check(stdout: &str, stderr: &str) {
    let found: BTreeMap<&str, &str> = stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(found.len() > 35, "{stdout}{stderr}");
    for (name, answer) in &found {
        let expected = match *name {
            "clone3" => "ENOSYS",
            name if NEEDED.contains(&name) => "0",
            _ => "EPERM",
        };
        assert_eq!(*answer, expected, "{name}: {stdout}{stderr}");
    }
}
