//! Results of commands that behave well.

use std::fs;
use std::os::unix::fs::chown;
use std::time::{Duration, Instant, SystemTime};

use crate::support::{Place, USER, Way};
use nix::unistd::geteuid;
use sandbox::{Cause, Event, NotStarted, Outcome, Sandbox, SandboxError, Slot};

in_all_ways! {
    codes_and_signals_are_told
    outputs_go_to_their_files
    programs_are_found_as_the_api_has_it
    what_cannot_start_says_why
    the_environment_is_as_declared
    the_systems_own_view_can_be_read_and_not_written
    outputs_can_be_followed
    scripts_may_open_their_outputs_by_name
    many_in_one_slot
    s16_a_slot_recovers_from_the_death_of_its_process
}

async fn codes_and_signals_are_told(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let before = SystemTime::now();
    let ended = place.ended(&mut slot, place.script("exit 42")).await;
    assert_eq!((ended.exit_code, ended.signal, ended.cause), (42, None, Cause::Ended));
    assert!(before <= ended.started_at && ended.started_at <= ended.ended_at);
    assert!(ended.ended_at <= SystemTime::now() && ended.peak_memory_bytes > 100_000);
    let ended = place.ended(&mut slot, place.script("kill -SEGV $$")).await;
    assert_eq!((ended.exit_code, ended.cause), (139, Cause::Ended));
    assert_eq!(ended.signal, if way.is_alone() { None } else { Some(11) });
    let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let ended = place.ended(&mut slot, place.script(&format!("({burn}); exit 1"))).await;
    assert!(ended.cpu > Duration::from_millis(5), "{:?}", ended.cpu);
    slot.stop().await.unwrap();
}

async fn outputs_go_to_their_files(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    fs::write(place.path("stdout"), "left over from before").unwrap();
    let ended = place.ended(&mut slot, place.script("echo out; echo err >&2; echo more")).await;
    assert_eq!((place.stdout().as_str(), place.stderr().as_str()), ("out\nmore\n", "err\n"));
    assert_eq!((ended.stdout_bytes, ended.stderr_bytes), (9, 4));
    // Files are created in the working directory, and the executor can read them.
    let mut run = place.script("pwd; echo made >here; mkdir sub; echo x >sub/file");
    run.cwd = "pkg/dir".into();
    fs::create_dir_all(place.root().join("pkg/dir")).unwrap();
    if geteuid().is_root() {
        chown(place.root().join("pkg/dir"), Some(USER.uid), Some(USER.gid)).unwrap();
    }
    let inside = slot.path_inside(&run).join("pkg/dir");
    assert_eq!(place.ended(&mut slot, run).await.exit_code, 0, "{}", place.stderr());
    assert_eq!(place.stdout().trim(), inside.to_str().unwrap());
    assert_eq!(fs::read_to_string(place.root().join("pkg/dir/here")).unwrap(), "made\n");
    assert_eq!(fs::read_to_string(place.root().join("pkg/dir/sub/file")).unwrap(), "x\n");
    // The mount points of the sandbox are removed.
    assert!(!place.root().join("proc").exists());
}

async fn programs_are_found_as_the_api_has_it(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let tool = place.root().join("pkg/tool");
    fs::create_dir_all(place.root().join("pkg")).unwrap();
    fs::write(&tool, "#!/bin/sh\necho tool $0 $1\n").unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Relative to the working directory, not to the input root.
    let mut run = place.run(&["./tool", "a b"]);
    run.cwd = "pkg".into();
    assert_eq!(place.ended(&mut slot, run).await.exit_code, 0);
    assert_eq!(place.stdout(), "tool ./tool a b\n");
    let mut run = place.run(&["pkg/tool"]);
    run.cwd = "pkg".into();
    let outcome = slot.run(run).await.unwrap().finish().await.unwrap();
    assert!(matches!(outcome, Outcome::NotStarted { why: NotStarted::NotFound, .. }), "{outcome:?}");
    // Searched in PATH, or in the default without one.
    let mut run = place.run(&["tool"]);
    let folder = slot.path_inside(&run).join("pkg");
    run.env = vec![("PATH".into(), format!("/nowhere:{}:/bin", folder.display()))];
    assert_eq!(place.ended(&mut slot, run).await.exit_code, 0);
    let mut run = place.run(&["sh", "-c", "exit 7"]);
    run.env.clear();
    assert_eq!(place.ended(&mut slot, run).await.exit_code, 7);
}

async fn what_cannot_start_says_why(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    fs::write(place.root().join("data"), "no program").unwrap();
    let mut nowhere = place.script("true");
    nowhere.cwd = "no/such/place".into();
    let mut outside = place.script("true");
    outside.cwd = "../..".into();
    let huge = "x".repeat(300_000);
    let wanted = [
        (place.run(&["no-such-program"]), NotStarted::NotFound, "no-such-program"),
        (place.run(&["/no/such/program"]), NotStarted::NotFound, "/no/such/program"),
        (place.run(&["./data"]), NotStarted::NotExecutable, "data"),
        (place.run(&[]), NotStarted::Invalid, "empty"),
        (nowhere, NotStarted::WorkingDirectory, "no/such/place"),
        (outside, NotStarted::WorkingDirectory, "../.."),
        (place.run(&["/bin/true", &huge]), NotStarted::TooLarge, ""),
    ];
    for (run, wanted, name) in wanted {
        match slot.run(run).await.unwrap().finish().await.unwrap() {
            Outcome::NotStarted { why, message } => {
                assert_eq!(why, wanted, "{message}");
                assert!(message.contains(name), "{message}");
            }
            other @ Outcome::Ended(_) => panic!("{other:?} instead of {wanted:?}"),
        }
        assert_eq!(place.stderr(), "");
    }
    assert_eq!(place.ended(&mut slot, place.run(&["true"])).await.exit_code, 0);
}

async fn the_environment_is_as_declared(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let mut run = place.run(&["/bin/env"]);
    run.env = vec![("B".into(), "2 3".into()), ("A".into(), "ä".into())];
    place.ended(&mut slot, run).await;
    let output = place.stdout();
    let mut lines: Vec<_> = output.lines().collect();
    lines.sort_unstable();
    // Bubblewrap sets it whenever it changes to a directory.
    lines.retain(|line| !way.is_alone() || !line.starts_with("PWD="));
    assert_eq!(lines, ["A=ä", "B=2 3"]);
    // Three standard descriptors and the one of `ls` on the directory.
    place.ended(&mut slot, place.script("ls /proc/self/fd | cat")).await;
    assert_eq!(place.stdout().lines().count(), 4, "{}", place.stdout());
}

async fn the_systems_own_view_can_be_read_and_not_written(way: Way) {
    // With the input root as `/`, nothing else exists.
    if way != Way::Kept {
        return;
    }
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let script = "ls /sys/class/net /sys/devices/system/cpu; grep -c ' /sys.* rw,' /proc/self/mounts;
        find /sys -maxdepth 4 -writable -type d 2>/dev/null | while read -r d; do mkdir \"$d/x\" 2>/dev/null && echo made $d; done; true";
    place.ended(&mut slot, place.script(script)).await;
    let output = place.stdout();
    assert!(output.contains("cpu0") && output.contains("lo"), "{output}");
    assert!(output.lines().any(|line| line == "0") && !output.contains("made"), "{output}");
}

async fn outputs_can_be_followed(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let go = place.root().join("go");
    let script = "echo one; while ! [ -e go ]; do sleep 0.01; done; echo two; echo three >&2";
    let mut running = slot.run(place.script(script)).await.unwrap();
    let (mut tail, stderr) = (running.stdout().tail(0), running.stderr().clone());
    assert!(matches!(running.next_event().await.unwrap(), Event::Started(_)));
    assert_eq!(tail.next().await.unwrap().unwrap(), "one\n");
    assert_eq!(stderr.len().unwrap(), 0);
    fs::write(&go, "").unwrap();
    let follow = tokio::spawn(async move {
        let mut rest = Vec::new();
        while let Some(bytes) = tail.next().await.unwrap() {
            rest.extend_from_slice(&bytes);
        }
        rest
    });
    assert!(matches!(running.finish().await.unwrap(), Outcome::Ended(_)));
    assert_eq!(follow.await.unwrap(), b"two\n");
    assert_eq!(stderr.read_at(2, 100).unwrap(), "ree\n");
}

async fn scripts_may_open_their_outputs_by_name(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    place
        .ended(&mut slot, place.script("echo x >/dev/stderr; echo y >/dev/stdout; echo z >>/dev/stderr"))
        .await;
    assert_eq!((place.stdout().as_str(), place.stderr().as_str()), ("y\n", "x\nz\n"));
}

async fn many_in_one_slot(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    place.ended(&mut slot, place.run(&["true"])).await;
    let began = Instant::now();
    let pid = slot.pid();
    for number in 0..100 {
        let run = place.script(&format!("echo {number}; exit {number}"));
        assert_eq!(place.ended(&mut slot, run).await.exit_code, number);
        assert_eq!(place.stdout(), format!("{number}\n"));
    }
    assert_eq!(pid, slot.pid());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

async fn s16_a_slot_recovers_from_the_death_of_its_process(way: Way) {
    let place = Place::new(way);
    let mut slot = place.slot().await;
    let kill = |slot: &Slot| {
        let pid = nix::unistd::Pid::from_raw(slot.pid().unwrap().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    };
    let mut running = slot.run(place.script("echo up; exec sleep 1000")).await.unwrap();
    running.stdout().tail(0).next().await.unwrap();
    running.next_event().await.unwrap();
    drop(running);
    kill(&slot);
    let run = place.run(&["true"]);
    // The death may be noticed before the next run, in it or, if that is very quick, after it.
    let mut codes = Vec::new();
    for _ in 0..3 {
        let ended = match slot.run(run.clone()).await {
            Ok(running) => running.finish().await,
            Err(error) => Err(error),
        };
        if let Ok(Outcome::Ended(ended)) = ended {
            codes.push(ended.exit_code);
        }
    }
    assert!(codes.len() >= 2 && codes.iter().all(|code| *code == 0), "{codes:?}");
}

#[tokio::test]
async fn what_this_machine_lacks_is_said() {
    let place = Place::new(Way::Kept);
    let mut config = place.config();
    config.bubblewrap.program = "/no/such/bwrap".into();
    let error = Slot::check(config).await.unwrap_err().to_string();
    assert!(error.contains("/no/such/bwrap"), "{error}");
    let mut config = place.config();
    // A bubblewrap that reports an error.
    let fake = place.path("bwrap");
    fs::write(&fake, "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n").unwrap();
    fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    config.bubblewrap.program = fake;
    let error = Slot::check(config).await.unwrap_err().to_string();
    assert!(error.contains("uid map") && error.contains("user namespaces"), "{error}");
    Slot::check(place.config()).await.unwrap();
}

#[tokio::test]
async fn a_root_must_be_where_it_can_be_shown() {
    let place = Place::new(Way::None);
    let mut slot = place.slot().await;
    let mut run = place.script("true");
    for root in ["/".into(), place.path("work/.."), place.path("work/a/b"), place.path("work")] {
        run.root = root;
        assert!(matches!(slot.run(run.clone()).await, Err(SandboxError::Root { .. })));
    }
    let mut run = place.script("true");
    run.root_is_input = true;
    assert!(matches!(slot.run(run).await, Err(SandboxError::RootNeedsBubblewrap)));
    assert_eq!(slot.config().sandbox, Sandbox::None);
}
