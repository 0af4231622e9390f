//! Invalid input is rejected with a clear error and changes nothing, whichever way it arrives.

use async_nats::{HeaderMap, jetstream::message::PublishMessage};
use bus::{Encoding, ToClient as _, stream};
use client::ClientError;
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{BuildId, BuildKey, BuildRequest, ErrorCode, Outcome, Priority, Rejection};
use serde_json::json;

use crate::check::{ended_as, script};

/// An invalid message, and the expected error.
struct Bad {
    what: &'static str,
    /// Message id that the publisher sets.
    message_id: Option<String>,
    payload: Vec<u8>,
    /// Whether its watchers receive an end.
    ends: bool,
    /// A part of the expected error.
    says: &'static str,
}

fn bad(what: &'static str, payload: impl Into<Vec<u8>>, says: &'static str) -> Bad {
    let message_id = Some(BuildId::generate().to_string());
    Bad { what, message_id, payload: payload.into(), ends: true, says }
}

fn all_bad() -> Vec<Bad> {
    let json = |value: serde_json::Value| value.to_string();
    let huge = "x".repeat(300 << 10);
    vec![
        bad("neither JSON nor MessagePack", b"\xc1\xff\x00".as_slice(), ""),
        bad("cut off", r#"{"command": ["true""#, ""),
        bad("nothing", "", ""),
        bad("another type", json(json!(["true"])), ""),
        bad("a misspelt field", json(json!({"command": ["true"], "timeout": 3})), "timeout"),
        bad("an empty command", json(json!({"command": []})), "command"),
        bad("a blank program", json(json!({"command": [" "]})), "command"),
        bad("a NUL byte", json(json!({"command": ["a\u{0}b"]})), "NUL"),
        bad("an output outside", json(json!({"command": ["true"], "outputs": ["a/../../b"]})), "a/../../b"),
        bad(
            "an absolute output",
            json(json!({"command": ["true"], "outputs": ["/etc/passwd"]})),
            "/etc/passwd",
        ),
        bad("a bad variable", json(json!({"command": ["true"], "env": {"A=B": "c"}})), "A=B"),
        bad("no time to run", json(json!({"command": ["true"], "timeout_seconds": 0})), "timeout_seconds"),
        bad(
            "too much time",
            json(json!({"command": ["true"], "timeout_seconds": 10_000_000})),
            "timeout_seconds",
        ),
        bad("another group", json(json!({"command": ["true"], "group": "other"})), "other"),
        bad("another priority", json(json!({"command": ["true"], "priority": "emergency"})), "emergency"),
        bad(
            "a relative folder",
            json(json!({"command": ["true"], "context": {"kind": "directory", "path": "x"}})),
            "x",
        ),
        bad("an unknown context", json(json!({"command": ["true"], "context": {"kind": "svn"}})), "svn"),
        bad("too large", json(json!({"command": ["true", huge]})), "bytes"),
        Bad {
            message_id: Some("not-a-uuid".into()),
            ends: false,
            ..bad("a malformed id", json(json!({"command": ["true"]})), "not-a-uuid")
        },
        Bad { message_id: None, ends: false, ..bad("no id", json(json!({"command": ["true"]})), "id") },
        Bad {
            ends: false,
            ..bad("two ids", json(json!({"command": ["true"], "id": BuildId::generate()})), "Nats-Msg-Id")
        },
    ]
}

async fn publish(
    farm: &Farm,
    subject: &str,
    message_id: Option<&str>,
    payload: Vec<u8>,
) -> Result<(), String> {
    let mut message = PublishMessage::build().payload(payload.into());
    if let Some(id) = message_id {
        message = message.message_id(id);
    }
    let sent = farm.bus().jetstream().send_publish(subject.to_owned(), message).await;
    sent.map_err(|error| error.to_string())?.await.map(drop).map_err(|error| error.to_string())
}

fn key(id: &str) -> BuildKey {
    BuildKey { group: "g".parse().unwrap(), id: id.parse().unwrap() }
}

/// Returns the stored rejection with this message id. A subscriber may receive it before it is stored.
async fn kept(farm: &Farm, message_id: Option<&str>) -> bytes::Bytes {
    let read = async {
        loop {
            let last = farm.bus().stream(stream::REJECTED).last("forebay.build.rejected.g").await.unwrap();
            match last {
                Some(last) if bus::message_id(last.headers.as_ref()) == message_id => return last.payload,
                Some(_) | None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap()
}

#[tokio::test]
async fn a_bad_publish_is_told_kept_and_ended_and_disturbs_nobody() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut told = farm.bus().client().subscribe("forebay.build.rejected.g").await.unwrap();
    farm.bus().jetstream().query_account().await.unwrap();
    for bad in all_bad() {
        let good = farm.publish("g", Priority::Batch, &script("true")).await;
        let subject = "forebay.build.request.g.batch";
        publish(&farm, subject, bad.message_id.as_deref(), bad.payload.clone()).await.unwrap();
        let plain = tokio::time::timeout(SOON, told.next()).await.unwrap().unwrap();
        let rejection: Rejection = serde_json::from_slice(&plain.payload).unwrap();
        let what = format!("{}: {rejection:?}", bad.what);
        assert_eq!(rejection.error, ErrorCode::InvalidRequest, "{what}");
        assert!(!rejection.message.is_empty() && rejection.message.contains(bad.says), "{what}");
        assert_eq!((rejection.subject.as_str(), rejection.group.as_str()), (subject, "g"), "{what}");
        assert_eq!(rejection.size_bytes, bad.payload.len() as u64, "{what}");
        assert_eq!(rejection.message_id, bad.message_id, "{what}");
        assert_eq!(bus::message_id(plain.headers.as_ref()), bad.message_id.as_deref(), "{what}");
        assert_eq!(kept(&farm, bad.message_id.as_deref()).await, plain.payload, "{what}");
        if bad.ends {
            let record = ended_as(&farm, &key(bad.message_id.as_deref().unwrap()), Outcome::Rejected).await;
            assert_eq!(record.result().unwrap().reason.as_ref().unwrap().message, rejection.message);
        }
        ended_as(&farm, &good, Outcome::Succeeded).await;
    }
    let mut requests = farm.bus().jetstream().get_stream(stream::REQUESTS).await.unwrap();
    assert_eq!(requests.info().await.unwrap().state.messages, 0, "a request is left in the queue");
}

#[tokio::test]
async fn a_publish_under_an_id_that_is_taken_changes_nothing() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut told = farm.bus().client().subscribe("forebay.build.rejected.g").await.unwrap();
    let first = script("true");
    let key = farm.publish("g", Priority::Interactive, &first).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    // The same message is the same build, even after the server has forgotten its id: after 100 ms.
    let forgotten = std::time::Duration::from_millis(150);
    tokio::time::sleep(forgotten).await;
    assert_eq!(farm.publish("g", Priority::Interactive, &first).await, key);
    tokio::time::sleep(forgotten).await;
    // A different message with its id is not.
    farm.publish(
        "g",
        Priority::Interactive,
        &BuildRequest { command: vec!["false".into()], ..first.clone() },
    )
    .await;
    let plain = tokio::time::timeout(SOON, told.next()).await.unwrap().unwrap();
    let rejection: Rejection = serde_json::from_slice(&plain.payload).unwrap();
    assert_eq!((rejection.error, rejection.id), (ErrorCode::Conflict, Some(key.id)), "{rejection:?}");
    assert_eq!(farm.wait_finished(&key, SOON).await, record);
    assert_eq!(farm.history(&key).await.len(), 3);

    let again = farm.client().create(&key.group, &first, None).await.unwrap();
    assert!(again.duplicate && again.sequence == farm.history(&key).await[0].0);
    let other = BuildRequest { command: vec!["false".into()], ..first };
    let error = farm.client().create(&key.group, &other, None).await.unwrap_err();
    assert!(matches!(&error, ClientError::Api(api) if api.error == ErrorCode::Conflict), "{error:?}");
}

#[tokio::test]
async fn an_unknown_priority_is_refused_by_the_server() {
    let farm = Farm::builder().only(&[]).start().await;
    let payload = br#"{"command": ["true"]}"#.to_vec();
    let id = BuildId::generate().to_string();
    for subject in
        ["forebay.build.request.g.urgent", "forebay.build.request.g", "forebay.build.request.g.batch.x"]
    {
        let error = publish(&farm, subject, Some(&id), payload.clone()).await.unwrap_err();
        assert!(error.contains("no stream found"), "{error}");
    }
    publish(&farm, "forebay.build.request.g.batch", Some(&id), payload).await.unwrap();
}

#[tokio::test]
async fn a_group_that_is_no_name_is_refused() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut told = farm.bus().client().subscribe("forebay.build.rejected.*").await.unwrap();
    farm.bus().jetstream().query_account().await.unwrap();
    let id = BuildId::generate().to_string();
    let payload = br#"{"command": ["true"]}"#.to_vec();
    publish(&farm, "forebay.build.request.a+b.batch", Some(&id), payload).await.unwrap();
    let plain = tokio::time::timeout(SOON, told.next()).await.unwrap().unwrap();
    let rejection: Rejection = serde_json::from_slice(&plain.payload).unwrap();
    assert_eq!(rejection.subject, "forebay.build.request.a+b.batch");
}

#[tokio::test]
async fn requests_may_be_message_pack() {
    let farm = Farm::builder().without("gateway").start().await;
    let request = script("test $MINE = here");
    let env = [("MINE".to_owned(), "here".to_owned())].into();
    let request = BuildRequest { env, id: None, ..request };
    for content_type in [None, Some("application/msgpack"), Some("application/vnd.msgpack")] {
        let id = BuildId::generate().to_string();
        let named = BuildRequest { id: Some(id.parse().unwrap()), ..request.clone() };
        let payload = named.encode(Encoding::MessagePack);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id.as_str());
        if let Some(value) = content_type {
            headers.insert("Content-Type", value);
        }
        let subject = "forebay.build.request.g.interactive";
        let sent = farm.bus().jetstream().publish_with_headers(subject, headers, payload).await;
        sent.unwrap().await.unwrap();
        ended_as(&farm, &key(&id), Outcome::Succeeded).await;
    }
}

#[tokio::test]
async fn the_api_and_http_and_the_command_line_say_what_is_wrong() {
    let farm = Farm::all().await;
    let group = "g".parse().unwrap();
    let http = crate::http::client();
    let url = format!("{}/v1/builds/g", farm.http_url());
    for bad in all_bad().into_iter().filter(|bad| bad.ends) {
        let Ok(request) = serde_json::from_slice::<BuildRequest>(&bad.payload) else { continue };
        if bad.what == "another priority" {
            continue;
        }
        let error = farm.client().create(&group, &request, None).await.unwrap_err();
        let ClientError::Api(error) = error else { panic!("{}: {error:?}", bad.what) };
        assert_eq!(error.error, ErrorCode::InvalidRequest, "{}: {error:?}", bad.what);
        assert!(error.message.contains(bad.says), "{}: {error:?}", bad.what);
    }
    for bad in all_bad().into_iter().filter(|bad| bad.ends && bad.what != "another priority") {
        let json = "application/json";
        let sent = http.post(&url).header("Content-Type", json).body(bad.payload).send().await.unwrap();
        let status = sent.status().as_u16();
        let body: serde_json::Value = serde_json::from_slice(&sent.bytes().await.unwrap()).unwrap();
        assert_eq!(status, if bad.what == "too large" { 413 } else { 400 }, "{}: {body}", bad.what);
        assert_eq!(body["error"], "invalid_request", "{}: {body}", bad.what);
        assert!(body["message"].as_str().unwrap().contains(bad.says), "{}: {body}", bad.what);
    }
    let missing = BuildId::generate().to_string();
    assert_eq!(http.get(format!("{url}/{missing}")).send().await.unwrap().status().as_u16(), 404);
    assert_eq!(http.get(format!("{url}/nonsense")).send().await.unwrap().status().as_u16(), 400);
    assert_eq!(http.put(&url).send().await.unwrap().status().as_u16(), 405);
    for (args, says) in [
        (&["submit", "--group", "a b", "--", "true"][..], "a b"),
        (&["submit", "--priority", "urgent", "--", "true"], "urgent"),
        (&["submit", "--output", "../x", "--", "true"], "../x"),
        (&["submit", "--env", "A", "--", "true"], "A"),
        (&["submit", "--timeout", "900d", "--", "true"], "timeout_seconds"),
        (&["submit", "--", " "], "command"),
        (&["submit"], "COMMAND"),
        (&["get", "nonsense"], "nonsense"),
        (&["get", &missing], &missing),
        (&["watch", &missing], &missing),
        (&["cancel", &missing], &missing),
        (&["serve", "nothing"], "nothing"),
    ] {
        let output = farm.cli(args).await;
        assert_eq!(output.code, 2, "{args:?}: {output:?}");
        assert!(output.stderr.contains(says) && output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    let listed = farm.client().list(&group, &model::ListRequest::default()).await.unwrap();
    assert!(listed.builds.is_empty(), "a refused call left a build");
}
