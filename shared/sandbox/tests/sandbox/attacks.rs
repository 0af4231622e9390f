//! Attacks on the machine from the sandboxes of actions and of builds. The numbers are those of the table in
//! `docs/sandboxes.md`; other rows of it are tested where their topic is.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::support::{Kind, Place, Way, exists};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use sandbox::{Cause, Limits, Run, Stream};

/// Runs a Python program in one of the sandboxes and returns what it writes.
async fn python(place: &Place, kind: Kind, program: &str) -> String {
    place.output_in(kind, &["python3", "-c", program]).await
}

#[tokio::test]
async fn s1_no_process_shows_the_host() {
    for kind in Kind::ALL {
        let place = Place::new(Way::Kept);
        let secret = place.path("secret");
        fs::write(&secret, "of the host").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
        let program = format!(
            "import glob
def look(path):
    try: return open(path, 'rb').read()
    except OSError: return b''
assert not look('{secret}')
processes = glob.glob('/proc/[0-9]*')
assert '/proc/1' in processes and len(processes) < 6, processes
for process in processes:
    for way in ('root', 'cwd/../../..'): assert not look(process + '/' + way + '{secret}'), process
    assert b'CARGO' not in look(process + '/environ'), process
# The mounts are not on the command line of bubblewrap.
line = look('/proc/1/cmdline').split(b'\\0--\\0')[0]
assert line and b'bind' not in line and b'{work}' not in line and b'bwrap' not in line.split(b'\\0')[1], line
print('ok')",
            secret = secret.display(),
            work = place.path("work").display(),
        );
        assert_eq!(python(&place, kind, &program).await, "ok\n", "{kind:?}");
    }
}

#[tokio::test]
async fn s1_proc_shows_little_of_the_machine_and_changes_nothing() {
    let program = "
import os
for name in ('kcore', 'keys', 'timer_list', 'sched_debug', 'latency_stats'):
    try: assert not open('/proc/' + name, 'rb').read(10), name
    except OSError: pass
for name in ('scsi', 'acpi'):
    assert not os.path.exists('/proc/' + name) or not os.listdir('/proc/' + name), name
for name in ('sys/kernel/core_pattern', 'sys/kernel/modprobe', 'sys/vm/drop_caches', 'sysrq-trigger', 'irq/default_smp_affinity'):
    try: os.close(os.open('/proc/' + name, os.O_WRONLY)); print('writable', name)
    except OSError: pass
flags = {line.split()[1]: line.split()[3].split(',') for line in open('/proc/mounts')}
assert 'ro' in flags.get('/proc/fs', ['ro'])
print('ok')";
    for kind in Kind::ALL {
        assert_eq!(python(&Place::new(Way::Kept), kind, program).await, "ok\n", "{kind:?}");
    }
}

#[tokio::test]
async fn s2_no_call_changes_an_input() {
    if !geteuid().is_root() {
        return; // Its inputs are copies.
    }
    let program = "
import ctypes, mmap, os
name, refused = 'input', []
reading = os.open(name, os.O_RDONLY)
for call in (
    lambda: os.open(name, os.O_RDWR), lambda: os.open(name, os.O_WRONLY | os.O_TRUNC), lambda: os.truncate(name, 0),
    lambda: os.ftruncate(reading, 0), lambda: os.posix_fallocate(reading, 0, 100), lambda: os.chmod(name, 0o666),
    lambda: os.chown(name, os.getuid(), os.getgid()), lambda: os.utime(name, (5, 5)),
    lambda: os.setxattr(name, 'user.x', b'x'), lambda: mmap.mmap(reading, 6, mmap.MAP_SHARED, mmap.PROT_WRITE),
    lambda: os.open('/proc/self/fd/%d' % reading, os.O_RDWR),
):
    try: call(); refused.append(False)
    except OSError: refused.append(True)
print(refused.count(True), refused.count(False))";
    for kind in [Kind::Kept, Kind::Alone] {
        let place = Place::new(Way::Kept);
        let cached = place.path("cached");
        fs::write(&cached, "cached").unwrap();
        fs::set_permissions(&cached, PermissionsExt::from_mode(0o444)).unwrap();
        fs::hard_link(&cached, place.root().join("input")).unwrap();
        let before = fs::metadata(&cached).unwrap();
        assert_eq!(python(&place, kind, program).await, "11 0\n", "{kind:?}");
        let after = fs::metadata(&cached).unwrap();
        assert_eq!(fs::read(&cached).unwrap(), b"cached");
        assert_eq!((after.mode(), after.mtime(), after.uid()), (before.mode(), before.mtime(), before.uid()));
    }
}

#[tokio::test]
async fn s4_nothing_is_typed_into_a_terminal() {
    let program = "
import errno, fcntl, os
try: os.open('/dev/tty', os.O_RDWR); print('a terminal')
except OSError as error: print(errno.errorcode[error.errno])
_, own = os.openpty()
for terminal in (0, own):
    for request in (0x5412, 0x541c):
        try: fcntl.ioctl(terminal, request, b'x'); print('typed')
        except OSError as error: print(errno.errorcode[error.errno])";
    for kind in Kind::ALL {
        let said = python(&Place::new(Way::Kept), kind, program).await;
        assert_eq!(said, "ENXIO\nEPERM\nEPERM\nEPERM\nEPERM\n", "{kind:?}");
    }
}

#[tokio::test]
async fn s5_the_first_process_is_neither_killed_nor_stopped_nor_traced() {
    let signals = "
import ctypes, os, signal
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    for process in (1, -1):
        try: os.kill(process, number)
        except OSError: pass
print('goes on', flush=True)";
    let traces = "print('traced' if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 'refused', flush=True)";
    for kind in Kind::ALL {
        assert_eq!(python(&Place::new(Way::Kept), kind, signals).await, "goes on\n", "{kind:?}");
    }
    let all = format!("{signals}\n{traces}");
    if geteuid().is_root() {
        for kind in [Kind::Kept, Kind::Build] {
            let said = python(&Place::new(Way::Kept), kind, &all).await;
            assert_eq!(said, "goes on\nrefused\n", "{kind:?}");
        }
    }
    // In a sandbox of its own, the first process is the command's: to stop it only delays the end until the timeout.
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    let run = Run { devices: vec!["/dev/null".into()], ..place.run(&["python3", "-c", &all]) };
    let ended = place.ended(&mut slot, Run { timeout: Some(Duration::from_secs(3)), ..run }).await;
    assert!(matches!(ended.cause, Cause::Ended | Cause::Deadline), "{ended:?}");
    assert_eq!(place.ended(&mut slot, place.script("exit 4")).await.exit_code, 4);
}

#[tokio::test]
async fn s12_nothing_that_listens_on_the_machine_is_reachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SocketAddr::from_abstract_name(format!("forebay-attack-{}", std::process::id())).unwrap();
    let _local = UnixListener::bind_addr(&address).unwrap();
    UnixStream::connect_addr(&address).expect("reachable outside");
    let program = format!(
        "import socket
for family, address in (
    (socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('169.254.169.254', 80)), (socket.AF_INET, ('192.0.2.1', 80)),
    (socket.AF_UNIX, '\\0forebay-attack-{own}'), (socket.AF_VSOCK, (2, 1)),
):
    try:
        connection = socket.socket(family)
        connection.settimeout(5)
        connection.connect(address)
        print('reached', address)
    except TimeoutError: print('tried', address)
    except OSError: pass
print('ok')",
        port = listener.local_addr().unwrap().port(),
        own = std::process::id(),
    );
    for kind in Kind::ALL {
        assert_eq!(python(&Place::new(Way::Kept), kind, &program).await, "ok\n", "{kind:?}");
    }
}

#[tokio::test]
async fn s13_a_command_has_three_descriptors_and_its_own_variables() {
    let program = "
import os
def is_open(number):
    try: os.fstat(number); return True
    except OSError: return False
print([number for number in range(1024) if is_open(number)])
print(sorted(set(os.environ) - {'PWD', 'LC_CTYPE'}))";
    for kind in Kind::ALL {
        let said = python(&Place::new(Way::Kept), kind, program).await;
        assert_eq!(said, "[0, 1, 2]\n['PATH']\n", "{kind:?}");
    }
}

#[tokio::test]
async fn s14_a_command_starts_as_if_it_were_the_first() {
    // Only a sandbox that is kept has the first of these folders.
    let folders = if geteuid().is_root() { "/dev/mqueue /dev/shm /tmp" } else { "/dev/shm /tmp" };
    let look = "
import os, resource
print(os.umask(0), os.nice(0), sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE),
      open('/proc/self/timerslack_ns').read(), open('/proc/self/coredump_filter').read(),
      [os.listdir(folder) for folder in 'FOLDERS'.split()], open('/proc/net/unix').read().count('forebay-left'))";
    let leave = "
import os, resource, socket
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))
open('/proc/self/coredump_filter', 'w').write('7f')
for folder in 'FOLDERS'.split(): open(folder + '/left', 'w').close()
socket.socket(socket.AF_UNIX).bind('\\0forebay-left')";
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    let mut seen = Vec::new();
    for program in [look, leave, look] {
        let program = program.replace("FOLDERS", folders);
        let ended = place.ended(&mut slot, place.run(&["python3", "-c", &program])).await;
        assert_eq!(ended.exit_code, 0, "{}", place.stderr());
        seen.push(place.stdout());
    }
    assert_eq!(seen[0], seen[2]);
}

#[tokio::test]
async fn s15_bytes_of_all_kinds_are_cut_at_the_limit() {
    for kind in [Kind::Kept, Kind::Alone] {
        let place = Place::new(Way::Kept);
        let mut slot = place.slot().await;
        let devices = if kind == Kind::Alone { vec!["/dev/null".into()] } else { Vec::new() };
        let flood = "printf '\\000\\033]0;x\\007\\377\\376'; exec cat /dev/urandom";
        let run = Run { output_bytes_max: 1_000_000, devices, ..place.script(flood) };
        let ended = place.ended(&mut slot, run).await;
        assert!(matches!(ended.cause, Cause::OutputTooLarge(Stream::Stdout, 1_000_001..)), "{ended:?}");
        let kept = fs::read(place.path("stdout")).unwrap();
        assert_eq!((kept.len(), &kept[..3]), (1_000_000, &b"\0\x1b]"[..]));
    }
}

#[tokio::test]
async fn s15_a_limit_on_the_disk_bounds_the_output_exactly() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    let limits = Limits { disk_bytes: Some(2_000_000), ..Limits::default() };
    let run = Run { output_bytes_max: 1_000_000, limits, ..place.script("exec cat /dev/zero") };
    let ended = place.ended(&mut slot, run).await;
    let Cause::OutputTooLarge(Stream::Stdout, written) = ended.cause else { panic!("{ended:?}") };
    assert!(written <= 2_000_000 + 4096, "{ended:?}");
}

#[tokio::test]
async fn s16_a_killed_bubblewrap_leaves_no_survivor() {
    let place = Place::new(Way::Kept);
    let mut slot = place.slot().await;
    let marker = format!("forebay-killed-{}", std::process::id());
    let script = format!(
        "setsid sh -c 'trap \"\" TERM HUP; while :; do echo x >>alive; sleep 0.01; done' & : {marker}; sleep 1000"
    );
    let run = Run { devices: vec!["/dev/null".into()], ..place.script(&script) };
    let running = slot.run(run).await.unwrap();
    exists(&place.root().join("alive")).await;
    let wrappers: Vec<i32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("--args") && line.contains(&marker)
        })
        .collect();
    assert!(!wrappers.is_empty());
    kill(Pid::from_raw(*wrappers.iter().min().unwrap()), Signal::SIGKILL).unwrap();
    // Whether it counts as the command's end or as a failure of the sandbox: all of its processes are dead.
    let _ = tokio::time::timeout(Duration::from_secs(20), running.finish()).await.expect("it ends");
    let length = || fs::metadata(place.root().join("alive")).unwrap().len();
    let before = length();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(length(), before);
    assert_eq!(place.ended(&mut slot, place.script("exit 4")).await.exit_code, 4);
}

#[tokio::test]
async fn s17_clocks_cannot_be_set_and_timers_end_with_their_command() {
    let program = "
import ctypes, errno, time
try: time.clock_settime(time.CLOCK_REALTIME, 5); print('set')
except OSError as error: print(errno.errorcode[error.errno])
library = ctypes.CDLL(None, use_errno=True)
# ADJ_FREQUENCY: a question would be allowed.
change = (ctypes.c_long * 40)(2)
print(errno.errorcode[ctypes.get_errno()] if library.adjtimex(change) == -1 else 'adjusted')
timer = ctypes.c_void_p()
made = 0
while made < 20000 and library.timer_create(0, None, ctypes.byref(timer)) == 0: made += 1
print('timers' if made > 0 else 'none')";
    for kind in Kind::ALL {
        let place = Place::new(Way::Kept);
        for _ in 0..2 {
            assert_eq!(python(&place, kind, program).await, "EPERM\nEPERM\ntimers\n", "{kind:?}");
        }
    }
}
