//! Round trips of all frames.

use super::*;
use crate::model::{Limit, Over};

fn through_request(bytes: &[u8]) -> Request {
    let (kind, length) = header(bytes).unwrap().unwrap();
    assert_eq!(bytes.len(), HEADER + length);
    request(kind, &bytes[HEADER..]).unwrap()
}

#[test]
fn requests_survive_the_wire() {
    let command = Command {
        argv: vec!["echo".into(), "a\0b".into(), String::new()],
        env: vec![("A".into(), "ä=1".into())],
        cwd: "/tmp".into(),
        deadline: None,
    };
    let mut out = Vec::new();
    let few = Limits { cpu: Some(Duration::from_millis(5)), files: Some(0), ..Limits::default() };
    let all = Limits {
        memory_bytes: Some(1),
        processes: Some(2),
        disk_bytes: Some(3),
        file_bytes: Some(4),
        user_processes: Some(5),
        ..few
    };
    for limits in [Limits::default(), few, all] {
        out.clear();
        put_run(&mut out, 7, &command, 2, true, &limits);
        let command = command.clone();
        assert_eq!(through_request(&out), Request::Run { run: 7, files: 2, keep: true, limits, command });
    }
    out.clear();
    put_renew(&mut out, 8, Deadline::from_millis(9));
    assert_eq!(through_request(&out), Request::Renew { run: 8, deadline: Deadline::from_millis(9) });
    out.clear();
    put_kill(&mut out, 9, Duration::MAX);
    let grace = Duration::from_nanos(u64::MAX);
    assert_eq!(through_request(&out), Request::Kill { run: 9, grace });
    out.clear();
    put_forget(&mut out, 6, Duration::from_millis(5));
    assert_eq!(through_request(&out), Request::Forget { number: 6, grace: Duration::from_millis(5) });
    out.clear();
    put_measure(&mut out, 3);
    assert_eq!(through_request(&out), Request::Measure { run: 3 });
}

#[test]
fn replies_survive_the_wire() {
    let exit = Exit {
        exit_code: None,
        signal: Some(9),
        cause: Cause::Killed,
        wall: Duration::from_millis(3),
        cpu: Duration::from_micros(5),
        peak_memory_bytes: 1 << 40,
    };
    let failure = Event::SpawnFailed { kind: SpawnErrorKind::TooLarge, message: "too large".into() };
    let output = Event::Output { stream: Stream::Stderr, data: Bytes::from_static(b"\xff\0") };
    let measured = Measured { cpu: Duration::from_millis(70), memory_bytes: 1 << 33 };
    let plain = [Reply::Kept(true), Reply::Forgotten(2), Reply::Measured(4, measured)];
    let limits = [Limit::Cpu, Limit::Memory, Limit::Processes, Limit::Disk, Limit::Files];
    let over = |limit| Cause::OverLimit(Over { limit, allowed: 1, used: u64::MAX });
    let over = limits.map(|limit| Reply::Event(Event::Exited(Exit { cause: over(limit), ..exit.clone() })));
    let sandbox = [Cause::OutOfMemory, Cause::OutputTooLarge(Stream::Stderr, 7)];
    let sandbox = sandbox.map(|cause| Reply::Event(Event::Exited(Exit { cause, ..exit.clone() })));
    let plain = plain.into_iter().chain(over).chain(sandbox);
    for sent in [Event::Exited(exit), failure, output].map(Reply::Event).into_iter().chain(plain) {
        let mut out = Vec::new();
        put_reply(&mut out, &sent);
        let (kind, length) = header(&out).unwrap().unwrap();
        assert_eq!(out.len(), HEADER + length);
        assert_eq!(reply(kind, Bytes::from(out).slice(HEADER..)).unwrap(), sent);
    }
}

#[test]
fn torn_and_foreign_frames_are_refused() {
    assert!(header(&[RUN, 0, 0]).unwrap().is_none());
    assert!(header(&[RUN, 255, 255, 255, 255]).is_err());
    assert!(request(RUN, &[0; 12]).is_err());
    assert!(request(99, &[0; 8]).is_err());
    let mut huge_count = vec![0; 23];
    huge_count.extend([255; 4]);
    assert!(request(RUN, &huge_count).is_err());
}
