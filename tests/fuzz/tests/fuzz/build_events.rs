//! Build events of Bazel, which builds and tools outside of them publish.

use build_events::{
    Summary, bep, fact, pack, redact,
    service::{Any, BuildEvent, Event, OrderedBuildEvent, StreamId, ToolStreamRequest},
    unpack,
};
use bytes::{Bytes, BytesMut};
use fuzz_tests::{Target, fuzz};
use prost::Message as _;

use crate::choice::{Reader, read, seed};

const WORDS: &[&[u8]] = &[
    b"\x0a\x00",
    b"\x0b",
    b"\x0c",
    b"\x12\x02\x08\x01",
    b"\xff\xff\xff\xff\x0f",
    b"--client_env=TOKEN=secret",
    b"password",
    b"://user:pw@",
    b"type.googleapis.com/build_event_stream.BuildEvent",
];

/// A request with this event of the Build Event Protocol.
fn request(event: Vec<u8>) -> Vec<u8> {
    let type_url = "type.googleapis.com/build_event_stream.BuildEvent".to_owned();
    let event = Event::BazelEvent(Any { type_url, value: event.into() });
    let event = BuildEvent { event: Some(event), ..BuildEvent::default() };
    let stream_id = Some(StreamId { build_id: "b".into(), invocation_id: "i".into(), component: 3 });
    let ordered = OrderedBuildEvent { stream_id, sequence_number: 1, event: Some(event) };
    let ordered_build_event = Some(ordered);
    ToolStreamRequest { ordered_build_event, project_id: "main".into(), ..Default::default() }.encode_to_vec()
}

/// Fields with these numbers, each with a text.
fn fields(numbers: &[u8]) -> Vec<u8> {
    let field = |number: &u8| {
        let number = u32::from(*number) << 3 | 2;
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(number.into(), &mut bytes);
        [bytes, b"\x0a\x08--a=b//c".to_vec()].concat()
    };
    numbers.iter().flat_map(field).collect()
}

/// A request of a stream: what the archive and pages learn of it, and how it is stored.
fn stream(input: &[u8]) -> String {
    let Some(event) = ToolStreamRequest::decode(input).ok().and_then(|request| request.ordered_build_event)
    else {
        return "no event".to_owned();
    };
    let learned = fact(&event).and_then(|fact| fact.status());
    let summary = format!("{:?}", Summary::of(&event));
    let mut packed = BytesMut::new();
    pack(&mut packed, event.clone());
    pack(&mut packed, event.clone());
    let unpacked = unpack(packed.freeze()).unwrap();
    assert_eq!(unpacked, vec![OrderedBuildEvent { stream_id: None, ..event }; 2]);
    format!("{learned:?} {}", summary.split(' ').take(3).collect::<String>())
}

/// A redacted event is still an event, and redacting it again changes nothing.
fn redacted(input: &[u8]) -> String {
    let event = Bytes::copy_from_slice(input);
    let once = match redact(&event) {
        Err(error) => return error.to_string(),
        Ok(once) => once,
    };
    assert_eq!(redact(&once).expect("it is still an event"), once, "the rest has secrets");
    let readable = |event: &Bytes| bep::BuildEvent::decode(event.clone()).is_ok();
    assert!(!readable(&event) || readable(&once), "it is not an event any more");
    (once == event).to_string()
}

fn packed(input: &[u8]) -> String {
    let events = unpack(Bytes::copy_from_slice(input));
    events.map_or_else(|error| error.to_string(), |events| events.len().min(5).to_string())
}

#[test]
fn build_events_are_refused_or_stored_without_secrets() {
    let readers: [Reader; 3] = [stream, redacted, packed];
    let changed = [fields(&[5, 12, 13, 16]), fields(&[1, 22, 26, 29, 21])];
    let mut seeds: Vec<Vec<u8>> = changed.iter().map(|event| seed(0, request(event.clone()))).collect();
    seeds.extend(changed.iter().map(|event| seed(1, event)));
    let mut both = BytesMut::new();
    pack(&mut both, OrderedBuildEvent { sequence_number: 1, ..OrderedBuildEvent::default() });
    pack(&mut both, OrderedBuildEvent { sequence_number: 2, ..OrderedBuildEvent::default() });
    seeds.push(seed(2, both));
    fuzz(&Target { name: "build_events", seeds, words: WORDS, check: &|input| read(&readers, input) });
}
