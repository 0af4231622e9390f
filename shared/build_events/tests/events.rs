//! Events as tools send them: what is removed, what is read, and how they are packed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use build_events::{
    EventName, Fact, REDACTED, Summary, bep, fact, pack, redact,
    service::{Any, BuildEvent, Event, OrderedBuildEvent, StreamFinished, StreamId},
    unpack,
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use prost::Message;

/// A field of a message: its tag and its bytes.
fn field(tag: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(value.len() as u64, &mut bytes);
    bytes.extend_from_slice(value);
    bytes
}

fn fields(tag: u32, values: &[&str]) -> Vec<u8> {
    values.iter().flat_map(|value| field(tag, value.as_bytes())).collect()
}

fn safe(event: Vec<u8>) -> String {
    String::from_utf8_lossy(&redact(&event.into()).unwrap()).into_owned()
}

const SECRET: &str = "s3cr3t";

/// Each kind of event that can carry a secret, with one, and a text beside it that must stay.
fn with_secrets() -> Vec<(&'static str, Vec<u8>)> {
    let header = format!("--remote_header=x-key={SECRET}");
    let url = format!("--remote_proxy=https://user:{SECRET}@proxy/x");
    let option = [
        field(1, header.as_bytes()),
        field(2, b"remote_header"),
        field(3, format!("x-key={SECRET}").as_bytes()),
    ]
    .concat();
    let section = [field(1, b"kept"), field(3, &field(1, &option))].concat();
    let chunks = field(2, &fields(1, &["kept", "--action_env", &format!("TOKEN={SECRET}")]));
    let variable = [field(1, b"kept"), field(2, SECRET.as_bytes())].concat();
    let item = [field(1, b"kept"), field(2, format!("https://u:{SECRET}@host").as_bytes())].concat();
    let started = [field(5, b"kept"), field(4, format!("--x={SECRET}").as_bytes())].concat();
    vec![
        ("started", field(5, &started)),
        ("action", field(7, &fields(9, &["kept", &header]))),
        ("unstructured command line", field(12, &fields(1, &["kept", "--test_env", &format!("A={SECRET}")]))),
        ("options", field(13, &[fields(1, &["kept", &url]), fields(4, &[&header])].concat())),
        ("workspace status", field(16, &field(1, &item))),
        ("structured command line", field(22, &field(2, &section))),
        ("chunks of a command line", field(22, &field(2, &chunks))),
        ("metadata", field(26, &field(1, &item))),
        ("environment of a run", field(29, &field(3, &variable))),
        ("command of a run", field(29, &fields(2, &["kept", &header]))),
        (
            "fetch",
            [field(1, &field(17, &field(1, format!("https://kept:{SECRET}@h").as_bytes()))), field(21, b"")]
                .concat(),
        ),
    ]
}

#[test]
fn secrets_are_removed_from_all_events_that_can_have_them() {
    for (name, event) in with_secrets() {
        assert!(String::from_utf8_lossy(&event).contains(SECRET), "{name}");
        let found = safe(event);
        assert!(!found.contains(SECRET), "{name}: {found:?}");
        assert!(found.contains("kept") || name == "fetch", "{name}: {found:?}");
        assert!(found.contains(REDACTED) || name == "started", "{name}: {found:?}");
    }
}

#[test]
fn other_events_keep_their_bytes_and_unknown_fields() {
    let progress: Bytes = [field(3, &fields(2, &["https://u:p@h"])), field(999, b"unknown")].concat().into();
    assert_eq!(redact(&progress).unwrap(), progress);
    let unknown = [field(13, &fields(1, &["--jobs=3"])), field(999, b"unknown")].concat();
    assert_eq!(redact(&unknown.clone().into()).unwrap(), unknown);
    assert!(redact(&Bytes::from_static(b"\x2a\xff")).is_err(), "a field that is cut off");
    assert!(redact(&field(5, b"\x22\xff").into()).is_err(), "a field of a field that is cut off");
}

fn ordered(number: i64, event: &bep::BuildEvent) -> OrderedBuildEvent {
    let any = Any { type_url: "x/build_event_stream.BuildEvent".into(), value: event.encode_to_vec().into() };
    let event = BuildEvent { event_time: None, event: Some(Event::BazelEvent(any)) };
    OrderedBuildEvent { stream_id: Some(StreamId::default()), sequence_number: number, event: Some(event) }
}

fn about(about: bep::About, payload: bep::Payload) -> OrderedBuildEvent {
    let id = Some(bep::Id { about: Some(about) });
    ordered(1, &bep::BuildEvent { id, last_message: false, payload: Some(payload) })
}

#[test]
fn tests_of_old_and_new_bazels_are_read() {
    let id = bep::TestId { label: "//a:t".into(), run: 1, shard: 2, attempt: 3, configuration: None };
    let duration = prost_types::Duration { seconds: 1, nanos: 500_000_000 };
    let execution = bep::ExecutionInfo { strategy: "remote".into(), cached_remotely: true };
    let log = bep::File { name: "test.log".into(), uri: "bytestream://h/blobs/a/1".into() };
    let new = bep::TestResult {
        status: 4,
        duration: Some(duration),
        execution: Some(execution),
        outputs: vec![log],
        ..bep::TestResult::default()
    };
    let old =
        bep::TestResult { status: 1, duration_millis: 20, start_millis: 7, ..bep::TestResult::default() };
    let read =
        |result| match fact(&about(bep::About::TestResult(id.clone()), bep::Payload::TestResult(result))) {
            Some(Fact::Test(run)) => run,
            other => unreachable!("{other:?}"),
        };
    let found = read(new);
    assert_eq!((found.run, found.shard, found.attempt, found.status), (1, 2, 3, "failed"));
    assert_eq!((found.duration_ms, found.cached, found.strategy.as_str()), (Some(1500), true, "remote"));
    assert_eq!(found.log, "bytestream://h/blobs/a/1");
    let found = read(old);
    assert_eq!((found.status, found.duration_ms, found.started_ms), ("passed", Some(20), Some(7)));
}

#[test]
fn an_event_may_be_aborted_in_place_of_another() {
    let id = bep::TargetId { label: "//a:b".into(), ..bep::TargetId::default() };
    let aborted = bep::Aborted { reason: 7, description: String::new() };
    let event = about(bep::About::TargetCompleted(id), bep::Payload::Aborted(aborted));
    let found = fact(&event).unwrap();
    assert!(matches!(&found, Fact::Aborted { reason: "skipped", .. }), "{found:?}");
    assert_eq!(found.status().unwrap(), "skipped");
    let summary = Summary::of(&event);
    assert_eq!((summary.name, summary.label.as_deref()), (EventName::TargetCompleted, Some("//a:b")));
}

#[test]
fn packed_events_are_unpacked_without_their_stream() {
    let end = BuildEvent {
        event_time: None,
        event: Some(Event::ComponentStreamFinished(StreamFinished { kind: 1 })),
    };
    let last = OrderedBuildEvent { stream_id: None, sequence_number: 2, event: Some(end) };
    let first = ordered(1, &bep::BuildEvent::default());
    let mut packed = BytesMut::new();
    pack(&mut packed, first.clone());
    pack(&mut packed, last.clone());
    let found = unpack(packed.freeze()).unwrap();
    assert_eq!(found, [OrderedBuildEvent { stream_id: None, ..first }, last]);
    assert!(!found[0].is_last() && found[1].is_last());
    assert!(unpack(Bytes::from_static(b"\x05\x01")).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let bytes = Bytes::from(bytes);
        let any = Any { type_url: String::new(), value: bytes.clone() };
        let event = BuildEvent { event_time: None, event: Some(Event::BazelEvent(any)) };
        let event = OrderedBuildEvent { stream_id: None, sequence_number: 1, event: Some(event) };
        let _ = (fact(&event), Summary::of(&event), unpack(bytes.clone()));
        // What was made safe stays as it is.
        if let Ok(once) = redact(&bytes) {
            prop_assert_eq!(redact(&once).unwrap(), once);
        }
    }

    #[test]
    fn a_secret_never_stays(name in "[A-Za-z_]{1,20}", secret in "[a-z0-9]{8,30}") {
        for option in ["remote_header", "action_env", "test_env", "bes_header"] {
            for words in [vec![format!("--{option}={name}={secret}")], vec![format!("--{option}"), format!("{name}={secret}")]] {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let found = safe(field(12, &fields(1, &words)));
                prop_assert!(!found.contains(&secret), "{}", found);
            }
        }
    }
}
