//! Events and results that a shim reports about its commands.

use std::fs::File;
use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use crate::support::{command, finish, host, output, run, script, shim};
use shim::{
    ARGUMENTS_DESCRIPTOR, Cause, Event, Exit, Files, Limit, Limits, Mode, Options, Over, STATUS_DESCRIPTOR,
    Shim, SpawnErrorKind, Stream, User, WrapperFiles,
};

in_both_modes! {
    exit_codes_and_signals_are_told
    outputs_are_told_apart_and_binary_safe
    order_of_the_two_outputs_is_kept
    fifty_megabytes_arrive_whole
    first_bytes_do_not_wait_for_the_end
    usage_covers_children_and_stragglers
    what_cannot_start_says_why
    commands_see_nothing_of_the_shim
    a_slow_reader_slows_the_command_and_not_the_kill
    a_dropped_run_is_over_before_the_next
    many_commands_one_after_another
    outputs_may_go_into_files
    commands_may_be_another_user
    shells_may_wait_for_what_they_started
    limits_are_kept
    what_keeps_to_its_limits_ends_by_itself
}

async fn exit_codes_and_signals_are_told(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let outcome = run(&mut shim, &script("exit 42")).await;
    assert!(outcome.started);
    let exit = outcome.exit();
    assert_eq!((exit.exit_code, exit.signal, exit.cause), (Some(42), None, Cause::Ended));
    let outcome = run(&mut shim, &script("kill -SEGV $$")).await;
    let exit = outcome.exit();
    assert_eq!((exit.exit_code, exit.signal, exit.cause), (None, Some(11), Cause::Ended));
    let outcome = run(&mut shim, &command(&["true"])).await;
    assert_eq!(outcome.exit().exit_code, Some(0));
    shim.stop().await.unwrap();
}

async fn outputs_are_told_apart_and_binary_safe(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let outcome = run(&mut shim, &script(r"printf 'a\0\377\nb'; printf '\376\0' >&2")).await;
    assert_eq!(outcome.all(Stream::Stdout), b"a\0\xff\nb");
    assert_eq!(outcome.all(Stream::Stderr), b"\xfe\0");
    // A command that closes its outputs early has not ended yet.
    let outcome = run(&mut shim, &script("exec >&- 2>&-; exit 3")).await;
    assert_eq!(outcome.exit().exit_code, Some(3));
}

async fn order_of_the_two_outputs_is_kept(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    // Each line is written after the previous one was received, so their order is known.
    let mut running = shim.run(&script("echo 1; sleep 0.1; echo 2 >&2; sleep 0.1; echo 3")).await.unwrap();
    let mut streams = Vec::new();
    while let Some(event) = running.next_event().await.unwrap() {
        if let Event::Output { stream, data } = event {
            streams.push((stream, data[0]));
        }
    }
    assert_eq!(streams, [(Stream::Stdout, b'1'), (Stream::Stderr, b'2'), (Stream::Stdout, b'3')]);
}

async fn fifty_megabytes_arrive_whole(mode: Option<Mode>) {
    const SIZE: usize = 50_000_000;
    let mut shim = shim(mode).await;
    let text = format!("yes 0123456789abcdef | head -c {SIZE}");
    let outcome = run(&mut shim, &script(&text)).await;
    assert_eq!(outcome.exit().exit_code, Some(0));
    assert!(outcome.output.iter().all(|(_, data)| data.len() <= 64 * 1024));
    let all = outcome.all(Stream::Stdout);
    assert_eq!(all.len(), SIZE);
    assert!(all.chunks(17).all(|line| b"0123456789abcdef\n".starts_with(line)));
}

async fn first_bytes_do_not_wait_for_the_end(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    // The script writes its time, and must still be running when that is received.
    let mut running = shim.run(&script("date +%s%N; exec sleep 1000")).await.unwrap();
    let written = String::from_utf8(output(&mut running, 20).await).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let delay = now.saturating_sub(Duration::from_nanos(written.trim().parse().unwrap()));
    // 50 ms are intended; the rest is tolerance for a busy machine.
    assert!(delay < Duration::from_millis(500), "{delay:?}");
    running.control().kill(Duration::ZERO).await.unwrap();
    assert_eq!(finish(running).await.exit().cause, Cause::Killed);
}

async fn usage_covers_children_and_stragglers(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let alone = run(&mut shim, &script(burn)).await.exit().clone();
    assert!(alone.cpu > Duration::ZERO && alone.wall >= alone.cpu / 4);
    assert!(alone.peak_memory_bytes > 100_000 && alone.peak_memory_bytes < 1 << 30);
    // One child is waited for, the other is orphaned and has finished its work when the command ends.
    let text = format!("({burn}); (({burn}; echo x) & ) | read -r _");
    let both = run(&mut shim, &script(&text)).await.exit().clone();
    assert!(both.cpu > alone.cpu * 5 / 4, "{:?} against {:?}", both.cpu, alone.cpu);
}

async fn what_cannot_start_says_why(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut kind = async |command: &shim::Command| match run(&mut shim, command).await.last {
        Some(Event::SpawnFailed { kind, message }) => (kind, message),
        other => panic!("expected a failure, got {other:?}"),
    };
    let (missing, message) = kind(&command(&["no-such-program"])).await;
    assert_eq!(missing, SpawnErrorKind::NotFound);
    assert!(message.contains("no-such-program"), "{message}");
    assert_eq!(kind(&command(&["./no-such-program"])).await.0, SpawnErrorKind::NotFound);
    assert_eq!(kind(&command(&["/etc/passwd"])).await.0, SpawnErrorKind::PermissionDenied);
    assert_eq!(kind(&command(&[])).await.0, SpawnErrorKind::InvalidInput);
    assert_eq!(kind(&command(&["echo", "a\0b"])).await.0, SpawnErrorKind::InvalidInput);
    let mut with_nul = command(&["echo"]);
    with_nul.env.push(("A".into(), "\0".into()));
    assert_eq!(kind(&with_nul).await.0, SpawnErrorKind::InvalidInput);
    let huge = "x".repeat(300_000);
    assert_eq!(kind(&command(&["echo", &huge])).await.0, SpawnErrorKind::TooLarge);
    let mut nowhere = command(&["true"]);
    nowhere.cwd = "/no/such/place".into();
    let (kind_of_nowhere, message) = kind(&nowhere).await;
    assert_eq!(kind_of_nowhere, SpawnErrorKind::WorkingDirectory);
    assert!(message.contains("/no/such/place"), "{message}");
    // None of these affects the shim.
    assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
}

async fn commands_see_nothing_of_the_shim(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut asked = script("ls /proc/self/fd | wc -l; cat; pwd; env; echo $0");
    asked.env.push(("ONLY".into(), "this".into()));
    let outcome = run(&mut shim, &asked).await;
    let text = String::from_utf8(outcome.all(Stream::Stdout)).unwrap();
    // Three standard descriptors and the one of `ls` on the directory.
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["4", "/tmp"], "{text}");
    assert!(lines.contains(&"ONLY=this") && lines.last() == Some(&"/bin/sh"), "{text}");
    assert!(lines.iter().all(|line| !line.contains("CARGO")), "{text}");
}

async fn a_slow_reader_slows_the_command_and_not_the_kill(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let marks = tempfile::TempDir::new().unwrap();
    let mark = marks.path().join("written");
    // The script records each megabyte that it could write.
    let text = format!("while head -c 1000000 /dev/zero; do echo >>{}; done", mark.display());
    let running = shim.run(&script(&text)).await.unwrap();
    let control = running.control();
    // Nothing is read here while the command fills every buffer; two equal readings mean that it is blocked.
    let mut before = None;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = std::fs::metadata(&mark).map_or(0, |mark| mark.len());
        if before == Some(now) {
            break;
        }
        before = Some(now);
    }
    assert!(before.unwrap() < 10, "{before:?} megabytes were accepted unread");
    control.kill(Duration::ZERO).await.unwrap();
    assert_eq!(finish(running).await.exit().cause, Cause::Killed);
}

async fn a_dropped_run_is_over_before_the_next(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = crate::support::Life::new();
    let mut running = shim.run(&script(&format!("{} echo up; sleep 1000", life.hold()))).await.unwrap();
    output(&mut running, 3).await;
    let late = running.control();
    drop(running);
    let running = shim.run(&script("echo next")).await.unwrap();
    assert!(!life.is_held());
    // A late request for the first command does not affect the second.
    late.kill(Duration::ZERO).await.unwrap();
    late.renew(shim::Deadline::now()).await.unwrap();
    let outcome = finish(running).await;
    assert_eq!(outcome.exit().cause, Cause::Ended);
    assert_eq!(outcome.all(Stream::Stdout), b"next\n");
}

async fn many_commands_one_after_another(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let began = Instant::now();
    for number in 0..300 {
        let outcome = run(&mut shim, &command(&["/bin/echo", &number.to_string()])).await;
        assert_eq!(outcome.exit().exit_code, Some(0));
        assert_eq!(outcome.all(Stream::Stdout), format!("{number}\n").into_bytes());
    }
    // A wait of 50 ms anywhere in between would add up to 15 s.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

async fn outputs_may_go_into_files(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let file = || tempfile::tempfile().unwrap();
    let text = |mut file: File| {
        file.rewind().unwrap();
        std::io::read_to_string(file).unwrap()
    };
    for round in 0..20 {
        let (stdout, stderr) = (file(), file());
        let files = Files {
            stdin: None,
            stdout: stdout.try_clone().unwrap().into(),
            stderr: stderr.try_clone().unwrap().into(),
            wrapper: None,
        };
        let asked = script(&format!("echo {round}; echo err >&2; ls /proc/self/fd | wc -l"));
        let outcome = finish(shim.run_into(&asked, files, &Limits::default()).await.unwrap()).await;
        assert_eq!(outcome.exit().exit_code, Some(0));
        assert!(outcome.output.is_empty());
        assert_eq!((text(stdout), text(stderr)), (format!("{round}\n4\n"), "err\n".to_owned()));
        // A command with pipes may follow.
        assert_eq!(run(&mut shim, &script("echo x")).await.all(Stream::Stdout), b"x\n");
    }
    // A wrapper finds its status file, and is not sent SIGTERM itself.
    let (status, log) = (file(), file());
    let own = |file: &File| file.try_clone().unwrap().into();
    let mut arguments = file();
    arguments.write_all(b"given").unwrap();
    arguments.rewind().unwrap();
    let wrapper = Some(WrapperFiles { status: own(&status), arguments: own(&arguments) });
    let files = Files { stdin: None, stdout: own(&log), stderr: own(&log), wrapper };
    let asked = script(&format!(
        "sh -c 'echo up; exec sleep 1000' >&{STATUS_DESCRIPTOR}; code=$?; cat <&{ARGUMENTS_DESCRIPTOR} >&2; echo $code >&2"
    ));
    let asked = shim::Command { argv: vec!["/bin/bash".into(), "-c".into(), asked.argv[2].clone()], ..asked };
    let running = shim.run_into(&asked, files, &Limits::default()).await.unwrap();
    while status.metadata().unwrap().len() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.control().kill(Duration::from_secs(30)).await.unwrap();
    let outcome = finish(running).await;
    assert_eq!((outcome.exit().exit_code, outcome.exit().cause), (Some(0), Cause::Killed));
    assert_eq!(text(status), "up\n");
    assert!(text(log).ends_with("given143\n"));
}

async fn commands_may_be_another_user(mode: Option<Mode>) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let options = Options { mode, user: Some(User { uid: 65533, gid: 65532 }), ..Options::default() };
    let mut shim = Shim::start_with(host(), &options).await.unwrap();
    let outcome = run(&mut shim, &script("id -u; id -G; grep NoNewPrivs /proc/self/status")).await;
    assert_eq!(outcome.all(Stream::Stdout), b"65533\n65532\nNoNewPrivs:\t1\n");
    let root = Options { user: Some(User { uid: 0, gid: 0 }), ..options };
    assert!(matches!(Shim::start_with(host(), &root).await, Err(shim::ShimError::Gone)));
}

#[tokio::test]
async fn the_best_mode_is_taken() {
    let namespaces = Shim::start_in(host(), Mode::PidNamespace).await.is_ok();
    let best = shim(None).await.mode();
    assert_eq!(best == Mode::PidNamespace, namespaces);
    assert_eq!(shim(Some(Mode::Subreaper)).await.mode(), Mode::Subreaper);
}

#[tokio::test]
async fn a_program_that_is_no_shim_is_an_error() {
    assert!(matches!(Shim::start("/no/such/shim".as_ref()).await, Err(shim::ShimError::Start { .. })));
    assert!(matches!(Shim::start("/bin/true".as_ref()).await, Err(shim::ShimError::Gone)));
}

async fn shells_may_wait_for_what_they_started(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    // No signal is blocked: dash sleeps until the signal of a child's end.
    let outcome = run(&mut shim, &script("grep SigBlk /proc/self/status; sleep 0.1 & wait; exit 5")).await;
    assert_eq!(outcome.all(Stream::Stdout), b"SigBlk:\t0000000000000000\n");
    assert_eq!(outcome.exit().exit_code, Some(5));
    // The end of a very short command is received too.
    for _ in 0..200 {
        assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
    }
    shim.stop().await.unwrap();
}

/// Runs a script with its output discarded.
async fn run_limited(shim: &mut Shim, text: &str, limits: Limits) -> Exit {
    let null = || File::options().write(true).open("/dev/null").unwrap().into();
    let files = Files { stdin: None, stdout: null(), stderr: null(), wrapper: None };
    finish(shim.run_into(&script(text), files, &limits).await.unwrap()).await.exit().clone()
}

async fn limits_are_kept(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let second = Some(Duration::from_secs(1));
    let over = |exit: Exit| {
        let Cause::OverLimit(Over { limit, allowed, used }) = exit.cause else { panic!("{exit:?}") };
        assert!(used > allowed, "{exit:?}");
        (limit, allowed)
    };
    let cpu = Limits { cpu: second, ..Limits::default() };
    let exit = run_limited(&mut shim, "for i in 1 2 3; do (while :; do :; done) & done; wait", cpu).await;
    assert!(exit.cpu >= Duration::from_secs(1) && exit.cpu < Duration::from_secs(2), "{exit:?}");
    assert_eq!(over(exit), (Limit::Cpu, 1000));
    let processes = Limits { processes: Some(4), ..Limits::default() };
    let script = "sleep 9 & sleep 9 & sleep 9 & sleep 9 & wait";
    assert_eq!(over(run_limited(&mut shim, script, processes).await), (Limit::Processes, 4));
    let memory = Limits { memory_bytes: Some(50 << 20), ..Limits::default() };
    let script = "dd if=/dev/zero of=/dev/null bs=80M count=10000";
    assert_eq!(over(run_limited(&mut shim, script, memory).await), (Limit::Memory, 50 << 20));
    // Signals show that the kernel enforced a limit.
    let folder = tempfile::tempdir().unwrap();
    let file = Limits { file_bytes: Some(5000), ..Limits::default() };
    let script = format!("exec head -c 10000 /dev/zero >{}/x", folder.path().display());
    let exit = run_limited(&mut shim, &script, file).await;
    assert_eq!((exit.signal, exit.cause), (Some(25), Cause::Ended));
    assert_eq!(folder.path().join("x").metadata().unwrap().len(), 5000);
    shim.stop().await.unwrap();
}

async fn what_keeps_to_its_limits_ends_by_itself(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let limits = Limits {
        cpu: Some(Duration::from_secs(5)),
        memory_bytes: Some(100 << 20),
        processes: Some(3),
        ..Limits::default()
    };
    let exit = run_limited(&mut shim, "sleep 0.2 & sleep 0.2 & wait; exit 6", limits).await;
    assert_eq!((exit.exit_code, exit.cause), (Some(6), Cause::Ended));
    let exit = run_limited(&mut shim, "sleep 0.1 & sleep 0.1 & sleep 0.1 & wait", Limits::default()).await;
    assert_eq!((exit.exit_code, exit.cause), (Some(0), Cause::Ended));
    shim.stop().await.unwrap();
}
