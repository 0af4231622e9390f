//! Messages that nats-server stores and the client library cannot parse.

use std::{collections::BTreeSet, time::Duration};

use bus::stream;
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{ErrorCode, Outcome, Priority, Rejection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    check::{ended_as, script},
    idle::varz,
};

/// Headers that nats-server stores, with a part of the reason why a request with them is refused.
const ODD: [(&[u8], &str); 11] = [
    (b"NATS/1.0\r\nX: \xff\xfe\r\n\r\n", "not UTF-8"),
    (b"NATS/1.1\r\nX: y\r\n\r\n", "do not begin with NATS/1.0"),
    (b"HTTP/1.1 200 OK\r\n\r\n", "do not begin with NATS/1.0"),
    // A stream drops the status.
    (b"NATS/1.0 many\r\n\r\n", "no id"),
    (b"NATS/1.0 404 No Messages\r\n\r\n", "no id"),
    (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", "no id"),
    (b"NATS/1.0\r\nX: a\rb\r\n\r\n", "carriage return"),
    (b"NATS/1.0\r\nX: a\r\n\rb\r\n\r\n", "carriage return"),
    (b"NATS/1.0\r\nno colon\r\n\r\n", "no colon"),
    (b"NATS/1.0\r\n: no name\r\n\r\n", "name"),
    (b"NATS/1.0\r\n\x00\x01: control\r\n\r\n", "name"),
];

/// A client that sends what it is given.
struct Raw(TcpStream);

impl Raw {
    async fn connect(farm: &Farm) -> Self {
        let url = farm.servers.nats_url();
        let mut stream = TcpStream::connect(url.trim_start_matches("nats://")).await.unwrap();
        stream.write_all(b"CONNECT {\"headers\":true,\"verbose\":false}\r\n").await.unwrap();
        Self(stream)
    }

    async fn send(&mut self, subject: &[u8], reply: &str, headers: &[u8], payload: &[u8]) {
        let sizes = format!(" {reply} {} {}\r\n", headers.len(), headers.len() + payload.len());
        let frame = [b"HPUB ", subject, sizes.as_bytes(), headers, payload, b"\r\n"].concat();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Reads until what was received contains `text`.
    async fn read_until(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        let reading = async {
            while !String::from_utf8_lossy(&read).contains(text) {
                assert!(self.0.read_buf(&mut read).await.unwrap() > 0, "the server closed the connection");
            }
        };
        let done = tokio::time::timeout(SOON, reading).await;
        let read = String::from_utf8_lossy(&read).into_owned();
        assert!(done.is_ok(), "{text:?} did not arrive, but {read}");
        read
    }
}

#[tokio::test]
async fn n13_a_request_that_cannot_be_parsed_is_rejected_and_cuts_no_connection() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut rejections = farm.bus().client().subscribe("forebay.build.rejected.*").await.unwrap();
    let first = farm.publish("g", Priority::Batch, &script("true")).await;
    ended_as(&farm, &first, Outcome::Succeeded).await;
    let mut raw = Raw::connect(&farm).await;
    let before = varz(&farm.servers, "total_connections").await;
    let payload = br#"{"command": ["true"]}"#;
    let subject = b"forebay.build.request.g.batch";
    for (headers, _) in ODD {
        raw.send(subject, "", headers, payload).await;
    }
    raw.send(b"forebay.build.request.\xff\xfe.batch", "", b"NATS/1.0\r\n\r\n", payload).await;
    raw.send("forebay.build.request.g\u{2003}.batch".as_bytes(), "", b"NATS/1.0\r\n\r\n", payload).await;
    let good = farm.publish("g", Priority::Batch, &script("true")).await;
    let mut reasons = BTreeSet::new();
    for _ in 0..ODD.len() + 2 {
        let rejection = tokio::time::timeout(SOON, rejections.next()).await.unwrap().unwrap();
        let rejection: Rejection = serde_json::from_slice(&rejection.payload).unwrap();
        assert_eq!(rejection.error, ErrorCode::InvalidRequest, "{rejection:?}");
        reasons.insert(rejection.message);
    }
    for (_, part) in ODD.into_iter().chain([(b"".as_slice(), "subject")]) {
        assert!(reasons.iter().any(|reason| reason.contains(part)), "{part} in {reasons:?}");
    }
    ended_as(&farm, &good, Outcome::Succeeded).await;
    let mut requests = farm.bus().jetstream().get_stream(stream::REQUESTS).await.unwrap();
    assert_eq!(requests.info().await.unwrap().state.messages, 0, "a request is left in the queue");
    assert_eq!(varz(&farm.servers, "total_connections").await, before, "a connection was opened again");
}

#[tokio::test]
async fn n13_a_call_that_cannot_be_parsed_is_answered_and_cuts_no_connection() {
    let farm = Farm::builder().without("gateway").with("archive").start().await;
    let mut raw = Raw::connect(&farm).await;
    let before = varz(&farm.servers, "total_connections").await;
    raw.0.write_all(b"SUB answers.* 1\r\n").await.unwrap();
    for subject in ["forebay.api.get.g", "forebay.api.list", "forebay.archive.list", "$SRV.PING"] {
        for (headers, _) in ODD {
            raw.send(subject.as_bytes(), "answers.a", headers, b"{}").await;
            raw.read_until("answers.a").await;
        }
        // There is nowhere to answer to.
        raw.send(subject.as_bytes(), "", b"NATS/1.0\r\n: x\r\n\r\n", b"{}").await;
    }
    // Calls are answered in the connection on which the others arrived.
    tokio::time::timeout(Duration::from_secs(2), farm.client().groups()).await.unwrap().unwrap();
    assert_eq!(varz(&farm.servers, "total_connections").await, before, "a connection was opened again");
}

/// Header blocks made of what parsers look for, and of odd bytes; the same for the same seed.
struct OddHeaders(u64);

impl OddHeaders {
    fn number(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn block(&mut self) -> Vec<u8> {
        const PARTS: [&[u8]; 12] = [
            b"\r\n",
            b"\r",
            b"\n",
            b":",
            b": ",
            b" 503 x",
            b"a",
            b"Nats-Msg-Id: x",
            b"\xc2\xa0",
            b"\xff",
            b"\x00",
            b"\t",
        ];
        let mut block = if self.number(8) == 0 { Vec::new() } else { b"NATS/1.0".to_vec() };
        if self.number(2) == 0 {
            block.extend_from_slice(b"\r\n");
        }
        for _ in 0..self.number(9) {
            block.extend_from_slice(PARTS[usize::try_from(self.number(12)).unwrap()]);
        }
        block
    }
}

#[tokio::test]
async fn n13_no_headers_cut_a_connection_or_stay_in_the_queue() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut raw = Raw::connect(&farm).await;
    raw.send(b"forebay.build.request.g.batch", "", b"NATS/1.0\r\n\r\n", b"{}").await;
    let mut requests = farm.bus().jetstream().get_stream(stream::REQUESTS).await.unwrap();
    let before = varz(&farm.servers, "total_connections").await;
    let mut headers = OddHeaders(20_261_129);
    for _ in 0..3_000 {
        let block = headers.block();
        if !block.is_empty() {
            raw.send(b"forebay.build.request.g.batch", "", &block, b"{}").await;
            raw.send(b"forebay.api.get.g", "answers.a", &block, b"{}").await;
        }
    }
    let good = farm.publish("g", Priority::Batch, &script("true")).await;
    ended_as(&farm, &good, Outcome::Succeeded).await;
    let emptied = async {
        while requests.info().await.unwrap().state.messages > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, emptied).await.expect("a request is left in the queue");
    assert_eq!(varz(&farm.servers, "total_connections").await, before, "a connection was opened again");
}
