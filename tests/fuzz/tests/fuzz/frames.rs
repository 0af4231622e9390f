//! What nats-server sends, in which others have written the subjects, headers and payloads of messages.

use bus::hidden::screened;
use fuzz_tests::{Target, fuzz};

const WORDS: &[&[u8]] = &[
    b"\r\n",
    b" ",
    b":",
    b"MSG ",
    b"HMSG ",
    b"INFO {}\r\n",
    b"PING\r\n",
    b"+OK\r\n",
    b"-ERR ",
    b"NATS/1.0\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"Nats-Msg-Id: web/1\r\n",
    b"forebay.build.request.web.batch",
    b"$JS.ACK.S.c.1.1.1.1.1",
    "\u{2003}".as_bytes(),
    b"\xff",
    b"\x85",
    b"\0",
    b"\r",
    b"\n",
];

/// A message with headers.
fn message(reply: &str, headers: &str, payload: &str) -> Vec<u8> {
    let (of_headers, all) = (headers.len(), headers.len() + payload.len());
    format!("HMSG a.b 1 {reply}{of_headers} {all}\r\n{headers}{payload}\r\n").into_bytes()
}

fn seeds() -> Vec<Vec<u8>> {
    let good = message("", "NATS/1.0\r\nNats-Msg-Id: web/1\r\nA: b\r\n c\r\n\r\n", "{}");
    let status = message("$JS.ACK.S.c.1.1.1.1.1 ", "NATS/1.0 404 No Messages\r\n\r\n", "");
    let bad = message("x.y ", "NATS/1.0\r\nno colon\r\n\r\n", "payload");
    let plain = b"MSG a.b 1 5\r\nhello\r\nPING\r\n".to_vec();
    vec![[good.clone(), plain.clone()].concat(), [plain, bad].concat(), status, good]
}

/// What is passed on passes unchanged, and does not depend on the pieces in which it arrived.
fn check(input: &[u8]) -> String {
    let passed = match screened(&[input]) {
        Err(error) => return error.to_string(),
        Ok(passed) => passed,
    };
    assert_eq!(screened(&[&passed]).unwrap(), passed, "what was passed on is not readable");
    let (first, second) = input.split_at(input.len() / 2);
    let in_pieces = screened(&[first, second]);
    assert!(in_pieces.is_ok_and(|it| it == passed), "two pieces are read in another way");
    format!(
        "{} replaced",
        passed.windows(18).filter(|it| it.starts_with(b"Forebay-Unreadable")).count().min(3)
    )
}

#[test]
fn messages_of_strangers_never_end_a_connection() {
    fuzz(&Target { name: "frames", seeds: seeds(), words: WORDS, check: &check });
}
