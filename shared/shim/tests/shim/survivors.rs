//! Survivors of a command stay as long as allowed, and no longer.

use std::time::{Duration, Instant};

use crate::support::{Life, Outcome, command, finish, output, run, script, shim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shim::{Cause, Command, Deadline, Event, Mode, Shim, ShimError, Stream};
use tempfile::TempDir;

in_both_modes! {
    survivors_stay_and_are_adopted
    a_command_that_does_not_keep_leaves_nothing
    forgetting_asks_first_and_kills_then
    forgetting_again_is_quicker
    closing_the_socket_kills_survivors
    killing_the_shim_kills_survivors
    a_later_deadline_kills_survivors
    a_later_kill_kills_survivors
    a_deadline_goes_on_for_what_is_left
    held_pipes_delay_nothing
    a_writer_without_end_delays_nothing
    the_end_of_survivors_is_told
    nothing_left_is_told
    use_is_counted_in_the_command_that_causes_it
    a_running_command_can_be_measured
    a_command_that_cannot_start_leaves_survivors_be
    held_survivors_change_nothing_until_they_go_on
    nothing_of_the_kernel_wakes_held_survivors
}

/// Runs a command to its end and keeps its survivors.
async fn keep(shim: &mut Shim, command: &Command) -> Outcome {
    finish(shim.run_and_keep(command).await.unwrap()).await
}

/// Starts a daemon that holds `life` and runs `body`.
async fn leave(shim: &mut Shim, life: &Life, body: &str) {
    let text = format!("{} setsid sh -c '{body}' </dev/null >/dev/null 2>&1 & exit 3", life.hold());
    let outcome = keep(shim, &script(&text)).await;
    let exit = outcome.exit();
    assert_eq!((exit.exit_code, exit.cause), (Some(3), Cause::Ended));
    assert!(shim.has_survivors());
}

async fn survivors_stay_and_are_adopted(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    let folder = TempDir::new().unwrap();
    let pid = folder.path().join("pid");
    leave(&mut shim, &life, &format!("echo $$ > {}; exec sleep 1000", pid.display())).await;
    for round in 0..20 {
        // The daemon may not have written its id yet.
        let look = format!(
            "while ! [ -s {0} ]; do sleep 0.01; done; kill -0 $(cat {0}); echo {round}",
            pid.display()
        );
        let outcome = keep(&mut shim, &script(&format!("set -e; {look}"))).await;
        assert_eq!(outcome.exit().exit_code, Some(0));
        assert_eq!(outcome.all(Stream::Stdout), format!("{round}\n").into_bytes());
        assert!(shim.has_survivors() && life.is_held());
    }
    shim.stop().await.unwrap();
    assert!(!life.is_held());
}

async fn a_command_that_does_not_keep_leaves_nothing(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    leave(&mut shim, &life, "exec sleep 1000").await;
    assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
    assert!(!life.is_held() && !shim.has_survivors());
    assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
}

async fn forgetting_asks_first_and_kills_then(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    shim.forget(Duration::from_mins(1)).await.unwrap();
    let folder = TempDir::new().unwrap();
    let mark = folder.path().join("flushed");
    let mut life = Life::new();
    let ready = folder.path().join("ready");
    let heeds = format!(
        "trap \"echo x > {}; exit\" TERM; echo > {}; while :; do sleep 0.02; done",
        mark.display(),
        ready.display()
    );
    leave(&mut shim, &life, &heeds).await;
    let wait = script(&format!("while ! [ -e {} ]; do sleep 0.01; done", ready.display()));
    keep(&mut shim, &wait).await;
    let began = Instant::now();
    shim.forget(Duration::from_secs(25)).await.unwrap();
    assert!(mark.exists() && !life.is_held() && !shim.has_survivors());
    assert!(began.elapsed() < Duration::from_secs(20));

    leave(&mut shim, &life, "trap \"\" TERM; while :; do sleep 1000; done").await;
    let began = Instant::now();
    shim.forget(Duration::from_millis(200)).await.unwrap();
    assert!(!life.is_held() && began.elapsed() < Duration::from_secs(20));
    leave(&mut shim, &life, "trap \"\" TERM; while :; do sleep 1000; done").await;
    shim.forget(Duration::ZERO).await.unwrap();
    assert!(!life.is_held());
    assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
}

async fn forgetting_again_is_quicker(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    // Set before the spawn and inherited: the process ignores the signal from its first moment.
    let deaf = script(&format!("{} trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 &", life.hold()));
    keep(&mut shim, &deaf).await;
    let slow = tokio::time::timeout(Duration::from_millis(100), shim.forget(Duration::from_secs(1000))).await;
    assert!(slow.is_err() && life.is_held());
    shim.forget(Duration::ZERO).await.unwrap();
    assert!(!life.is_held());
    let outcome = keep(&mut shim, &script("echo next")).await;
    assert_eq!(outcome.all(Stream::Stdout), b"next\n");
    assert!(!shim.has_survivors());
}

async fn closing_the_socket_kills_survivors(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    leave(&mut shim, &life, "trap \"\" TERM HUP; while :; do sleep 1000; done").await;
    drop(shim);
    life.ended().await;
}

async fn killing_the_shim_kills_survivors(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    leave(&mut shim, &life, "trap \"\" TERM HUP; while :; do sleep 1000; done").await;
    kill(Pid::from_raw(shim.pid().unwrap().cast_signed()), Signal::SIGKILL).unwrap();
    assert!(matches!(shim.idle().await, Err(ShimError::Gone)));
    life.ended().await;
}

async fn a_later_deadline_kills_survivors(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    leave(&mut shim, &life, "exec sleep 1000").await;
    let mut late = script("exec sleep 1000");
    late.deadline = Some(Deadline::after(Duration::from_millis(100)));
    let outcome = keep(&mut shim, &late).await;
    assert_eq!(outcome.exit().cause, Cause::Deadline);
    assert!(!life.is_held() && !shim.has_survivors());
}

async fn a_deadline_goes_on_for_what_is_left(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    let text = format!("{} setsid sleep 1000 >/dev/null 2>&1 &", life.hold());
    let timed =
        |millis| Command { deadline: Some(Deadline::after(Duration::from_millis(millis))), ..script(&text) };
    assert_eq!(keep(&mut shim, &timed(500)).await.exit().cause, Cause::Ended);
    shim.idle().await.unwrap();
    assert!(!life.is_held() && !shim.has_survivors());
    // The deadline is moved by the owner of the command.
    let running = shim.run_and_keep(&timed(30_000)).await.unwrap();
    let control = running.control();
    finish(running).await;
    assert!(shim.has_survivors());
    control.renew(Deadline::NEVER).await.unwrap();
    control.renew(Deadline::after(Duration::from_millis(100))).await.unwrap();
    shim.idle().await.unwrap();
    assert!(!life.is_held());
    // The deadline is removed, and a late request for an earlier command does not restore it.
    let running = shim.run_and_keep(&timed(1000)).await.unwrap();
    let own = running.control();
    finish(running).await;
    own.renew(Deadline::NEVER).await.unwrap();
    control.renew(Deadline::now()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(1200), shim.idle()).await.is_err());
    assert!(life.is_held() && shim.has_survivors());
}

async fn a_later_kill_kills_survivors(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    leave(&mut shim, &life, "exec sleep 1000").await;
    let heeds = script("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done");
    let mut running = shim.run_and_keep(&heeds).await.unwrap();
    output(&mut running, 3).await;
    running.control().kill(Duration::from_secs(25)).await.unwrap();
    let outcome = finish(running).await;
    assert_eq!((outcome.exit().exit_code, outcome.exit().cause), (Some(7), Cause::Killed));
    assert!(!life.is_held() && !shim.has_survivors());
}

async fn held_pipes_delay_nothing(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    // More than a pipe holds, so that the command ends while there is something to read.
    let text =
        format!("{} sleep 1000 & head -c 300000 /dev/zero; head -c 70000 /dev/zero >&2; echo x", life.hold());
    let outcome = keep(&mut shim, &script(&text)).await;
    assert_eq!((outcome.exit().exit_code, outcome.exit().cause), (Some(0), Cause::Ended));
    assert_eq!((outcome.all(Stream::Stdout).len(), outcome.all(Stream::Stderr).len()), (300_002, 70_000));
    assert!(life.is_held());
}

async fn a_writer_without_end_delays_nothing(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    let outcome = keep(&mut shim, &script(&format!("{} yes & sleep 0.1; exit 4", life.hold()))).await;
    assert_eq!(outcome.exit().exit_code, Some(4));
    // Its output is no longer read: it gets SIGPIPE, and its end is reported.
    shim.idle().await.unwrap();
    assert!(!life.is_held() && !shim.has_survivors());
}

async fn the_end_of_survivors_is_told(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("go");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    leave(&mut shim, &life, &format!("read x < {}", path.display())).await;
    // The survivor is still alive.
    assert!(tokio::time::timeout(Duration::from_millis(50), shim.idle()).await.is_err());
    tokio::task::spawn_blocking(move || std::fs::write(path, "go\n").unwrap()).await.unwrap();
    shim.idle().await.unwrap();
    assert!(!shim.has_survivors());
}

async fn nothing_left_is_told(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    for _ in 0..50 {
        let outcome = keep(&mut shim, &command(&["true"])).await;
        assert_eq!(outcome.exit().exit_code, Some(0));
        assert!(!shim.has_survivors());
    }
    leave(&mut shim, &life, "sleep 1000").await;
    // A killed command takes the survivors along, although it was to keep them.
    let running = shim.run_and_keep(&script("sleep 1000")).await.unwrap();
    drop(running);
    shim.forget(Duration::ZERO).await.unwrap();
    assert!(!shim.has_survivors());
    life.ended().await;
}

async fn use_is_counted_in_the_command_that_causes_it(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (ask, answer) = (path("ask"), path("answer"));
    let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let alone = run(&mut shim, &script(burn)).await.exit().cpu;
    let life = Life::new();
    run(&mut shim, &script(&format!("mkfifo {ask} {answer}"))).await;
    leave(&mut shim, &life, &format!("while read x < {ask}; do {burn}; echo > {answer}; done")).await;
    let request = script(&format!("echo > {ask}; read x < {answer}"));
    for round in 0..2 {
        let served = keep(&mut shim, &request).await.exit().cpu;
        assert!(served > alone / 2 && served < alone * 3, "{round}: {served:?} against {alone:?}");
        let idle = keep(&mut shim, &command(&["true"])).await.exit().cpu;
        assert!(idle < alone / 2, "{round}: {idle:?} against {alone:?}");
    }
    // Also counted when it dies of the kill.
    let last = run(&mut shim, &request).await.exit().cpu;
    assert!(last > alone / 2 && last < alone * 3, "{last:?} against {alone:?}");
}

async fn a_running_command_can_be_measured(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    // Two children, one that ended and one that lives, with three megabytes of text.
    let text =
        format!("({burn}); x=$(head -c 3000000 /dev/zero | tr '\\0' x); ({burn}); echo up; exec sleep 1000");
    let mut running = shim.run(&script(&text)).await.unwrap();
    let control = running.control();
    assert_eq!(control.measured(), None);
    output(&mut running, 3).await;
    control.measure().await.unwrap();
    // The answer is not an event; the next event has not arrived yet.
    let next = tokio::time::timeout(Duration::from_millis(300), running.next_event()).await;
    assert!(next.is_err(), "{next:?}");
    let measured = control.measured().unwrap();
    control.kill(Duration::ZERO).await.unwrap();
    let exit = finish(running).await.exit().clone();
    assert!(measured.cpu > Duration::from_millis(20) && measured.cpu <= exit.cpu + Duration::from_millis(20));
    assert!(measured.memory_bytes > 100_000 && measured.memory_bytes < 1 << 30, "{measured:?}");
    // The measurement does not apply to the next command.
    let next = shim.run(&command(&["true"])).await.unwrap();
    assert_eq!(next.control().measured(), None);
}

async fn a_command_that_cannot_start_leaves_survivors_be(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    leave(&mut shim, &life, "exec sleep 1000").await;
    let outcome = keep(&mut shim, &command(&["no-such-program"])).await;
    assert!(matches!(outcome.last, Some(Event::SpawnFailed { .. })));
    assert!(shim.has_survivors() && life.is_held());
    shim.forget(Duration::ZERO).await.unwrap();
    assert!(!life.is_held());
}

async fn held_survivors_change_nothing_until_they_go_on(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("beat");
    // Two of them wake all others as often as they can.
    let body = format!(
        "for i in 1 2; do (while :; do kill -CONT 0; done) & done; while :; do echo x >> {}; done",
        file.display()
    );
    leave(&mut shim, &life, &body).await;
    let length = || std::fs::metadata(&file).map_or(0, |file| file.len());
    let until_it_grows = async |before: u64| {
        while length() <= before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until_it_grows(0).await;
    for _ in 0..3 {
        shim.hold(true).await.unwrap();
        let held = length();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(length(), held);
        shim.hold(false).await.unwrap();
        if !shim.has_survivors() {
            return; // They could not be stopped, so they were killed.
        }
        until_it_grows(held).await;
    }
    shim.hold(true).await.unwrap();
    shim.forget(Duration::from_secs(20)).await.unwrap();
    assert!(!shim.has_survivors());
}

/// Writes to a file without a pause. The kernel sends it SIGCONT: 3 ms after it was stopped, or when a file appears.
const WAKES_ITSELF: &str = r#"
import ctypes, fcntl, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_char * 48)]
class Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "after", "after_ns")]
how, path = sys.argv[1:]
timer = ctypes.c_void_p()
if how == "timer":
    event = Event(None, signal.SIGCONT, 0)
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
else:
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.path.dirname(path).encode(), 0x100) > 0
    fcntl.fcntl(watch, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(watch, 10, signal.SIGCONT)
    fcntl.fcntl(watch, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
times = Times(0, 0, 0, 3_000_000)
while True:
    if how == "timer":
        assert libc.timer_settime(timer, 0, ctypes.byref(times), None) == 0
    with open(path, "a") as file:
        file.write("x")
"#;

async fn nothing_of_the_kernel_wakes_held_survivors(mode: Option<Mode>) {
    for how in ["timer", "descriptor"] {
        let mut shim = shim(mode).await;
        let life = Life::new();
        let folder = tempfile::tempdir().unwrap();
        let [program, file] = ["wakes.py", "beat"].map(|name| folder.path().join(name));
        std::fs::write(&program, WAKES_ITSELF).unwrap();
        leave(&mut shim, &life, &format!("exec python3 {} {how} {}", program.display(), file.display()))
            .await;
        let length = || std::fs::metadata(&file).map_or(0, |file| file.len());
        let until_it_grows = async |before: u64| {
            while length() <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        until_it_grows(0).await;
        for round in 0..3 {
            shim.hold(true).await.unwrap();
            assert!(shim.has_survivors(), "{how}: they can be held");
            let held = length();
            std::fs::write(folder.path().join(format!("new-{round}")), "").unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(length(), held, "{how}");
            shim.hold(false).await.unwrap();
            until_it_grows(held).await;
        }
        // They end while they are held.
        shim.hold(true).await.unwrap();
        shim.forget(Duration::ZERO).await.unwrap();
        assert!(!shim.has_survivors(), "{how}");
    }
}
