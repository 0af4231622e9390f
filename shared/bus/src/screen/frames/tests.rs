use bytes::BytesMut;
use proptest::prelude::*;

use super::{Passed, pass};

fn passed(bytes: &[u8]) -> (Passed, Vec<u8>) {
    let (mut unread, mut out) = (BytesMut::from(bytes), BytesMut::new());
    let passed = pass(&mut unread, &mut out).unwrap();
    assert!(unread.is_empty(), "{unread:?}");
    (passed, out.to_vec())
}

fn with_headers(subject: &[u8], reply: &[u8], headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let sizes = format!(" {} {}\r\n", headers.len(), headers.len() + payload.len());
    [b"HMSG ", subject, b" 7 ", reply, sizes.as_bytes(), headers, payload, b"\r\n"].concat()
}

#[test]
fn what_can_be_read_passes_unchanged() {
    for frame in [
        b"PING\r\n".to_vec(),
        b"-ERR 'Permissions Violation'\r\n".to_vec(),
        b"MSG a.b 1 5\r\nhe\r\no\r\n".to_vec(),
        b"MSG a.b 1 c.d 0\r\n\r\n".to_vec(),
        with_headers(b"a", b"$JS.ACK.x", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n folded\r\n\r\n", b"{}"),
        with_headers(b"_INBOX.a", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""),
        with_headers(b"_INBOX.a", b"", b"NATS/1.0 503\r\n\r\n", b""),
    ] {
        assert_eq!(passed(&frame), (Passed::default(), frame));
    }
}

#[test]
fn what_cannot_be_read_arrives_with_its_fault_and_the_headers_that_can_be_read() {
    for (headers, fault) in [
        (b"NATS/1.0\r\nX: \xff\r\nNats-Msg-Id: 1\r\n\r\n".as_slice(), "its headers are not UTF-8"),
        (b"NATS/2.0\r\nNats-Msg-Id: 1\r\n\r\n", "its headers do not begin with NATS/1.0"),
        (b"NATS/1.0 none\r\nNats-Msg-Id: 1\r\n\r\n", "the first line of its headers is malformed"),
        (b"NATS/1.0 404 No Messages\r\nNats-Msg-Id: 1\r\n\r\n", "its headers begin with a status"),
        (b"NATS/1.0\r\nno colon\r\nNats-Msg-Id: 1\r\n\r\n", "one of its headers has no colon"),
        (b"NATS/1.0\r\nX: a\rb\r\nNats-Msg-Id: 1\r\n\r\n", "one of its headers has a carriage return"),
        (b"NATS/1.0\r\n\rX: b\r\nNats-Msg-Id: 1\r\n\r\n", "one of its headers has a carriage return"),
        (b"NATS/1.0\r\na b\x00: c\r\nNats-Msg-Id: 1\r\n\r\n", "the name of one of its headers is not valid"),
    ] {
        let (passed, out) = passed(&with_headers(b"a.b", b"$JS.ACK.x", headers, b"body"));
        assert_eq!(passed.replaced, 1, "{fault}");
        let text = format!("NATS/1.0\r\nForebay-Unreadable: {fault}\r\nNats-Msg-Id: 1\r\n\r\n");
        assert_eq!(out, with_headers(b"a.b", b"$JS.ACK.x", text.as_bytes(), b"body"), "{fault}");
    }
}

#[test]
fn a_subject_is_replaced_and_what_cannot_be_answered_is_dropped() {
    let (_, out) = passed(b"MSG a.\xff.b 1 $JS.ACK.x 1\r\n!\r\n");
    assert!(out.starts_with(b"HMSG a.?.b 1 $JS.ACK.x "), "{}", String::from_utf8_lossy(&out));
    // The client library splits the line there.
    let odd = "a.\u{2003}.b".as_bytes();
    let (_, out) = passed(&with_headers(odd, b"", b"NATS/1.0\r\n\r\n", b""));
    assert!(out.starts_with(b"HMSG a.???.b 7 "), "{}", String::from_utf8_lossy(&out));
    assert_eq!(
        passed(b"MSG a 1 b\xff 1\r\n!\r\n"),
        (Passed { replaced: 1, ..Passed::default() }, Vec::new())
    );
}

#[test]
fn a_frame_waits_for_its_end() {
    let whole = with_headers(b"a", b"b", b"NATS/1.0\r\n\r\n", b"12345");
    let (mut unread, mut out) = (BytesMut::new(), BytesMut::new());
    for byte in &whole {
        assert!(out.is_empty());
        unread.extend_from_slice(&[*byte]);
        pass(&mut unread, &mut out).unwrap();
    }
    assert_eq!(out, whole);
}

fn odd_header() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"NATS/1.0".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b" 503 x".to_vec()),
        Just(b"Nats-Msg-Id: 1".to_vec()),
        Just(b":".to_vec()),
        Just("\u{a0}".as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    /// What was replaced is itself readable, and the payload is the same.
    #[test]
    fn a_message_is_replaced_once(headers in odd_header(), payload in proptest::collection::vec(any::<u8>(), 0..9)) {
        let (_, out) = passed(&with_headers(b"a", b"$JS.ACK.x", &headers, &payload));
        let end = [payload.as_slice(), b"\r\n"].concat();
        prop_assert!(out.ends_with(&end));
        prop_assert_eq!(passed(&out), (Passed::default(), out));
    }
}
