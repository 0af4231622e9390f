//! Round trips of all frames.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::*;
use crate::model::{Cause, Exit, Limit, Over, SpawnErrorKind, Switches};

fn through_request(sent: &Request<'_>) -> Request<'static> {
    let mut bytes = Vec::new();
    put_request(&mut bytes, sent);
    let (kind, length) = header(&bytes).unwrap().unwrap();
    assert_eq!(bytes.len(), HEADER + length);
    request(kind, &bytes[HEADER..]).unwrap()
}

fn run(command: &Command, limits: Limits) -> Request<'_> {
    Request::Run { run: 7, files: 2, stdin: false, keep: true, limits, command: Cow::Borrowed(command) }
}

fn command() -> Command {
    Command {
        argv: vec!["echo".into(), "a\0b".into(), String::new()],
        env: vec![("A".into(), "ä=1".into())],
        cwd: OsString::from_vec(b"/tmp/\xff".to_vec()).into(),
        deadline: None,
    }
}

#[test]
fn requests_survive_the_wire() {
    let command = command();
    let few = Limits { cpu: Some(Duration::from_millis(5)), files: Some(0), ..Limits::default() };
    let all = Limits {
        memory_bytes: Some(1),
        processes: Some(2),
        disk_bytes: Some(3),
        file_bytes: Some(4),
        user_processes: Some(5),
        ..few
    };
    let deadline = Command { deadline: Some(Deadline::NEVER), ..command.clone() };
    let requests = [
        run(&command, Limits::default()),
        run(&command, few),
        run(&deadline, all),
        Request::Renew { run: 8, deadline: Deadline::from_millis(9) },
        Request::Kill { run: 9, grace: Duration::MAX },
        Request::Forget { number: 6, grace: Duration::from_millis(5) },
        Request::Measure { run: u64::MAX },
    ];
    for sent in requests {
        assert_eq!(through_request(&sent), sent);
    }
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
        switches: Switches { voluntary: 7, involuntary: 1 << 40 },
    };
    let failure = Event::SpawnFailed { kind: SpawnErrorKind::TooLarge, message: "too large".into() };
    let output = Event::Output { stream: Stream::Stderr, data: Bytes::from_static(b"\xff\0") };
    let measured = Measured { cpu: Duration::from_millis(70), memory_bytes: 1 << 33 };
    let plain = [
        Reply::Ready(Mode::PidNamespace),
        Reply::Spent,
        Reply::Kept(true),
        Reply::Forgotten(2),
        Reply::Measured(4, measured),
    ];
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
fn output_is_sent_as_it_is() {
    let mut out = Vec::new();
    put_reply(&mut out, &Reply::Event(Event::Output { stream: Stream::Stdout, data: "ab".into() }));
    assert_eq!(out, b"\x02\x02\0\0\0ab");
}

#[test]
fn torn_and_foreign_frames_are_refused() {
    assert!(header(&[MESSAGE, 0, 0]).unwrap().is_none());
    assert!(matches!(header(&[MESSAGE, 255, 255, 255, 255]), Err(Malformed::TooLong)));
    assert!(matches!(request(99, &[0; 8]), Err(Malformed::UnknownKind)));
    assert!(matches!(reply(99, Bytes::new()), Err(Malformed::UnknownKind)));
    assert!(request(MESSAGE, &[0; 12]).is_err());
    assert!(request(STDOUT, b"output goes only to the worker").is_err());
    let mut whole = Vec::new();
    put_request(&mut whole, &run(&command(), Limits::default()));
    let body = &whole[HEADER..];
    for end in 0..body.len() {
        assert!(matches!(request(MESSAGE, &body[..end]), Err(Malformed::Message(_))), "{end}");
        assert!(matches!(reply(MESSAGE, Bytes::copy_from_slice(&body[..end])), Err(Malformed::Message(_))));
    }
}

#[test]
fn a_huge_count_is_refused() {
    // A request to run a command with 2^32 - 1 arguments.
    let start = b"\x81\xa3Run\x96\x07\x02\xc2\xc3\x97\xc0\xc0\xc0\xc0\xc0\xc0\xc0\x94";
    let none = [start.as_slice(), b"\x90\x90\x81\xa4Unix\x91\x2f\xc0".as_slice()].concat();
    assert!(request(MESSAGE, &none).is_ok());
    let huge = [start.as_slice(), b"\xdd\xff\xff\xff\xff".as_slice()].concat();
    assert!(matches!(request(MESSAGE, &huge), Err(Malformed::Message(_))));
}
