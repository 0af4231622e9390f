//! No process outlives its command, its deadline, its worker or its shim.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Life, command, finish, host, output, run, script, shim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shim::{Cause, Deadline, Mode, ShimError, Stream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

in_both_modes! {
    a_straggler_is_dead_when_the_exit_is_told
    dropping_the_shim_kills_all
    killing_the_worker_kills_all
    killing_the_outer_shim_kills_all
    killing_the_inner_shim_kills_all
    the_deadline_comes_though_the_worker_is_stopped
    a_deadline_can_be_moved_both_ways
    a_passed_deadline_starts_nothing
    grace_lets_a_handler_finish
    grace_ends_for_who_ignores_it
    a_fork_bomb_ends
}

/// A typical daemon: own session, orphaned, ignores SIGTERM, holds the outputs.
const DAEMON: &str = "setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 & sleep 1000) & echo up; sleep 1000' &";

async fn a_straggler_is_dead_when_the_exit_is_told(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    let text = format!("{} {DAEMON} sleep 0.1; echo done; exit 5", life.hold());
    let outcome = run(&mut shim, &script(&text)).await;
    assert!(!life.is_held());
    assert_eq!(outcome.exit().exit_code, Some(5));
    assert_eq!(outcome.exit().cause, Cause::Ended);
    assert!(outcome.all(Stream::Stdout).ends_with(b"done\n"));
}

async fn dropping_the_shim_kills_all(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    let mut running = shim.run(&script(&format!("{} {DAEMON} wait", life.hold()))).await.unwrap();
    output(&mut running, 3).await;
    let _held = running.control();
    std::mem::forget(running); // Its own drop would kill the command in another way.
    drop(shim);
    life.ended().await;
}

/// A worker in its own process that runs the daemon; returns when the daemon has started.
async fn worker(mode: Option<Mode>, deadline: Duration, life: &Life) -> Child {
    let mode = if mode == Some(Mode::Subreaper) { "subreaper" } else { "best" };
    let text = format!("{} {DAEMON} wait", life.hold());
    let mut worker = Command::new(host())
        .args(["worker", mode, &deadline.as_millis().to_string(), &text])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut first).await.unwrap();
    assert_eq!(first, "up\n");
    worker
}

async fn killing_the_worker_kills_all(mode: Option<Mode>) {
    let life = Life::new();
    let mut worker = worker(mode, Duration::ZERO, &life).await;
    worker.kill().await.unwrap();
    life.ended().await;
}

/// The host's process id of the inner shim: the child of the outer one.
fn inner_of(outer: u32) -> u32 {
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
        (parent == outer).then_some(pid)
    });
    let children: Vec<_> = children.collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

async fn killing_a_shim(mode: Option<Mode>, which: fn(u32) -> u32) {
    let mut shim = shim(mode).await;
    let life = Life::new();
    let outer = shim.pid().unwrap();
    let mut running = shim.run(&script(&format!("{} {DAEMON} wait", life.hold()))).await.unwrap();
    output(&mut running, 3).await;
    let victim = Pid::from_raw(which(outer).cast_signed());
    kill(victim, Signal::SIGKILL).unwrap();
    let gone = loop {
        if let Err(error) = running.next_event().await {
            break error;
        }
    };
    assert!(matches!(gone, ShimError::Gone), "{gone:?}");
    life.ended().await;
    drop(running);
    assert!(matches!(shim.run(&command(&["true"])).await, Err(ShimError::Gone)));
    // The shim has ended: there is nothing left to wait for.
    shim.stop().await.unwrap();
}

async fn killing_the_outer_shim_kills_all(mode: Option<Mode>) {
    killing_a_shim(mode, |outer| outer).await;
}

async fn killing_the_inner_shim_kills_all(mode: Option<Mode>) {
    killing_a_shim(mode, inner_of).await;
}

async fn the_deadline_comes_though_the_worker_is_stopped(mode: Option<Mode>) {
    let life = Life::new();
    let worker = worker(mode, Duration::from_secs(1), &life).await;
    kill(Pid::from_raw(worker.id().unwrap().cast_signed()), Signal::SIGSTOP).unwrap();
    life.ended().await;
}

/// A process and all its descendants, by their ids on the host.
fn family(first: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![first];
    let mut next = 0;
    while let Some(&one) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
}

/// A tree that is stopped as a whole does not run again after its deadline: nothing is continued here.
#[tokio::test]
async fn the_deadline_comes_though_worker_shim_and_command_are_stopped() {
    if shim(None).await.mode() != Mode::PidNamespace {
        eprintln!("skipped: this machine allows no PID namespace");
        return;
    }
    let life = Life::new();
    let worker = worker(None, Duration::from_secs(2), &life).await;
    let all = family(worker.id().unwrap());
    assert!(all.len() >= 7, "{all:?}");
    for pid in &all {
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
    }
    life.ended().await;
    assert!(is_stopped(all[0]), "the worker is still stopped");
}

/// A timer armed for one command ends no later command, and no idle shim.
#[tokio::test]
async fn a_deadline_is_forgotten_when_its_command_has_ended() {
    let options = shim::Options { kernel_deadline: true, ..Default::default() };
    let mut shim = shim::Shim::start_with(host(), &options).await.unwrap();
    let within = |script: &shim::Command, time| shim::Command {
        deadline: Some(Deadline::after(time)),
        ..script.clone()
    };
    let short = Duration::from_millis(600);
    for _ in 0..3 {
        run(&mut shim, &within(&script("true"), short)).await;
    }
    // First longer than the armed timer, then without a deadline.
    let longer = within(&script("sleep 1; echo lived"), Duration::from_mins(1));
    assert_eq!(run(&mut shim, &longer).await.all(Stream::Stdout), b"lived\n");
    run(&mut shim, &within(&script("true"), short)).await;
    assert_eq!(run(&mut shim, &script("sleep 1; echo lived")).await.all(Stream::Stdout), b"lived\n");
    run(&mut shim, &within(&script("true"), short)).await;
    let idle = tokio::time::timeout(Duration::from_secs(1), shim.idle()).await;
    assert!(idle.is_err(), "{idle:?}");
    assert_eq!(run(&mut shim, &script("echo lives")).await.all(Stream::Stdout), b"lives\n");
}

async fn a_deadline_can_be_moved_both_ways(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut short = script("sleep 1.5; echo lived");
    short.deadline = Some(Deadline::after(Duration::from_secs(1)));
    let running = shim.run(&short).await.unwrap();
    running.control().renew(Deadline::after(Duration::from_mins(1))).await.unwrap();
    let outcome = finish(running).await;
    assert_eq!(outcome.exit().cause, Cause::Ended);
    assert_eq!(outcome.all(Stream::Stdout), b"lived\n");
    // The one minute is still armed; a shorter deadline must pass first.
    let mut long = script("echo up; sleep 1000");
    long.deadline = Some(Deadline::after(Duration::from_secs(50)));
    let began = Instant::now();
    let mut running = shim.run(&long).await.unwrap();
    output(&mut running, 3).await;
    running.control().renew(Deadline::after(Duration::from_millis(200))).await.unwrap();
    let exit = finish(running).await.exit().clone();
    assert_eq!((exit.exit_code, exit.signal, exit.cause), (None, Some(9), Cause::Deadline));
    assert!(began.elapsed() >= Duration::from_millis(200) && exit.wall < Duration::from_secs(10));
}

async fn a_passed_deadline_starts_nothing(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut late = script("echo up");
    late.deadline = Some(Deadline::now());
    let outcome = run(&mut shim, &late).await;
    assert!(!outcome.started && outcome.output.is_empty());
    assert_eq!(outcome.exit().cause, Cause::Deadline);
    // Also test a deadline that never passes.
    late.deadline = Some(Deadline::after(Duration::MAX));
    assert_eq!(run(&mut shim, &late).await.exit().exit_code, Some(0));
}

async fn grace_lets_a_handler_finish(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let text = "trap 'echo cleaned; exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let mut running = shim.run(&script(text)).await.unwrap();
    output(&mut running, 3).await;
    running.control().kill(Duration::from_secs(25)).await.unwrap();
    let outcome = finish(running).await;
    assert_eq!(outcome.all(Stream::Stdout), b"cleaned\n");
    assert_eq!((outcome.exit().exit_code, outcome.exit().cause), (Some(7), Cause::Killed));
    assert!(outcome.exit().wall < Duration::from_secs(20));
}

async fn grace_ends_for_who_ignores_it(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    let text = format!("{} trap '' TERM; echo up; while :; do sleep 1000; done", life.hold());
    let mut running = shim.run(&script(&text)).await.unwrap();
    output(&mut running, 3).await;
    let asked = Instant::now();
    running.control().kill(Duration::from_millis(200)).await.unwrap();
    let outcome = finish(running).await;
    assert!(!life.is_held());
    assert!(asked.elapsed() >= Duration::from_millis(200));
    assert_eq!((outcome.exit().signal, outcome.exit().cause), (Some(9), Cause::Killed));
}

async fn a_fork_bomb_ends(mode: Option<Mode>) {
    let mut shim = shim(mode).await;
    let mut life = Life::new();
    // Two processes keep spawning, one of them detached, until there are far more than one scan would find.
    let spawning = "while :; do sleep 1000 & echo x; done";
    let text = format!("{} (setsid sh -c '{spawning}' &) ; {spawning}", life.hold());
    let mut running = shim.run(&script(&text)).await.unwrap();
    output(&mut running, 200).await;
    running.control().kill(Duration::ZERO).await.unwrap();
    let outcome = finish(running).await;
    assert!(!life.is_held());
    assert_eq!(outcome.exit().cause, Cause::Killed);
    assert_eq!(run(&mut shim, &command(&["true"])).await.exit().exit_code, Some(0));
}

/// The worker's process group is not the shim's: an interrupt from a terminal reaches the worker alone.
#[tokio::test]
async fn the_shim_has_its_own_session() {
    let shim = shim(None).await;
    let pid = Pid::from_raw(shim.pid().unwrap().cast_signed());
    assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
    let mut environment = Vec::new();
    let path = format!("/proc/{pid}/environ");
    tokio::fs::File::open(path).await.unwrap().read_to_end(&mut environment).await.unwrap();
    assert!(environment.is_empty());
}
