//! Attacks of those who have a key, on a farm of `forebay up --secure`: what they send is wrong, too much or without end.

use std::time::Duration;

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use farm::SOON;
use futures::StreamExt as _;
use model::{BuildId, Rejection};
use prost::Message as _;
use reapi::execution::{
    Action, Directory, DirectoryNode, ExecuteRequest, ExecutionPolicy, FileNode, GetCapabilitiesRequest,
    Platform, SymlinkNode, platform::Property,
};
use remote::{Source, action_of};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Code, Status};

use crate::{
    acting,
    locked::{Calls, SHA256},
    secured::Secured,
    zones::{execute, proto, upload, upload_action},
};

const TENANT: &str = "payments";

/// A farm with a tenant, and a connection of its publisher.
async fn farm_of_a_tenant() -> (Secured, Client) {
    let mut farm = Secured::start(&[]).await;
    farm.add_tenant(TENANT).await;
    let client = farm.connect_as(TENANT).await;
    (farm, client)
}

/// Publishes a request of the tenant, and waits for its acknowledgement.
async fn publish(client: &Client, headers: HeaderMap, body: impl Into<Bytes>) -> Value {
    let subject = format!("forebay.build.request.{TENANT}.batch");
    let request = async_nats::Request::new().headers(headers).payload(body.into()).timeout(Some(SOON));
    let answer = client.send_request(subject, request).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// Calls the API for the group of the tenant.
async fn call(client: &Client, call: &str, body: &Value) -> Value {
    let request = async_nats::Request::new().payload(body.to_string().into()).timeout(Some(SOON));
    let answer = client.send_request(format!("forebay.api.{call}.{TENANT}"), request).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// Runs a build of the tenant, and returns its record.
async fn build(client: &Client, headers: HeaderMap) -> Value {
    build_with(client, BuildId::generate(), headers).await
}

async fn build_with(client: &Client, id: BuildId, headers: HeaderMap) -> Value {
    let mut events = client.subscribe(format!("forebay.build.live.{TENANT}.{id}.lifecycle")).await.unwrap();
    client.flush().await.unwrap();
    let body = json!({ "id": id, "command": ["true"] }).to_string();
    let answer = publish(client, headers, body).await;
    assert!(answer["error"].is_null() && answer["stream"] == "FOREBAY_REQUESTS", "{answer}");
    let ended = async {
        loop {
            let record: Value = serde_json::from_slice(&events.next().await.unwrap().payload).unwrap();
            if record["event"] == "INVOCATION_FINISHED" {
                return record;
            }
        }
    };
    tokio::time::timeout(SOON, ended).await.expect("the build ends")
}

#[tokio::test]
async fn n11_headers_of_a_request_claim_nothing_and_break_nothing() {
    let (_farm, client) = farm_of_a_tenant().await;
    let long = "0".repeat(60_000);
    for (name, value) in [
        ("traceparent", long.as_str()),
        ("traceparent", "00-zz-zz-01"),
        ("Forebay-Caller", "operator"),
        ("Forebay-Writer", "worker-1.0f"),
        ("Forebay-Invocation", "0198c5d3-0000-7000-8000-000000000001"),
        ("Forebay-Attempt", "-1"),
        ("Forebay-Dropped", "99999999999999999999"),
        ("Forebay-More", "true"),
        ("Forebay-Unknown", long.as_str()),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(name, value);
        let record = build(&client, headers).await;
        let (shown, text) = (value.get(..20).unwrap_or(value), record.to_string());
        assert_eq!(record["result"]["outcome"], "succeeded", "{name} {shown}: {text}");
        assert!(!text.contains(shown) || shown == "-1" || shown == "true", "{name} {shown}: {text}");
    }
    // nats-server stores no message with more of them.
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "0".repeat(900_000).as_str());
    let answer = publish(&client, headers, r#"{"command":["true"]}"#).await;
    assert_eq!(answer["error"]["err_code"], 10097, "{answer}");
    assert_eq!(build(&client, HeaderMap::new()).await["result"]["outcome"], "succeeded");
}

#[tokio::test]
async fn n13_a_request_that_is_too_large_too_deep_or_no_text_is_refused_with_its_reason() {
    let (_farm, client) = farm_of_a_tenant().await;
    let mut refusals = client.subscribe(format!("forebay.build.rejected.{TENANT}")).await.unwrap();
    client.flush().await.unwrap();
    let deep = |open: &str, close: &str| [open.repeat(100_000), close.repeat(100_000)].concat();
    // MessagePack: a map with one key, whose value is an array in an array, and so on.
    let bomb: Vec<u8> = [b"\x81\xa7command".to_vec(), vec![0x91; 100_000]].concat();
    // An array that claims four thousand million entries.
    let huge = b"\x81\xa7command\xdd\xff\xff\xff\xff".to_vec();
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("nested JSON", format!(r#"{{"command":{}}}"#, deep("[", "]")).into_bytes()),
        ("nested objects", deep(r#"{"job":"#, "}").into_bytes()),
        ("nested MessagePack", bomb),
        ("an array without its entries", huge),
        ("no UTF-8", b"{\"command\":[\"\xff\xfe\"]}".to_vec()),
        ("a key twice", br#"{"command":["true"],"command":["false"]}"#.to_vec()),
        ("a number that is none", br#"{"command":["true"],"timeout_seconds":1e999}"#.to_vec()),
        ("600 kB", json!({ "command": ["x".repeat(600_000)] }).to_string().into_bytes()),
    ];
    for (what, body) in bodies {
        let size = u64::try_from(body.len()).unwrap();
        publish(&client, HeaderMap::new(), body).await;
        let refusal = tokio::time::timeout(SOON, refusals.next()).await.expect(what).unwrap();
        let refusal: Rejection = serde_json::from_slice(&refusal.payload).unwrap();
        assert_eq!(refusal.size_bytes, size, "{what}: {refusal:?}");
        assert!(!refusal.message.is_empty() && refusal.message.len() < 2000, "{what}: {refusal:?}");
    }
    // What is larger than a message ends the connection of the sender, and no other.
    let too_large =
        client.publish(format!("forebay.build.request.{TENANT}.batch"), vec![b'x'; 2 << 20].into());
    let _ = too_large.await;
    assert_eq!(build(&client, HeaderMap::new()).await["result"]["outcome"], "succeeded");
}

#[tokio::test]
async fn o2_questions_without_bounds_have_bounded_answers() {
    let (mut farm, client) = farm_of_a_tenant().await;
    let id = BuildId::generate();
    build_with(&client, id, HeaderMap::new()).await;
    let most = u64::MAX;
    let listed = call(&client, "list", &json!({ "limit": 1000 })).await;
    assert_eq!(listed["builds"].as_array().map(Vec::len), Some(1), "{listed}");
    for (name, body) in [
        ("list", json!({ "limit": most })),
        ("list", json!({ "limit": -1 })),
        ("list", json!({ "state": "x".repeat(100_000) })),
        ("list", json!({ "cursor": "\u{0}" })),
        ("events", json!({ "id": id, "from": -1 })),
        ("events", json!({ "id": BuildId::generate() })),
    ] {
        let answer = call(&client, name, &body).await;
        let refused = answer["error"].is_string() || answer["builds"].as_array().is_some_and(Vec::is_empty);
        assert!(refused && answer.to_string().len() < 4000, "{name}: {answer}");
    }
    // After the last position there is nothing, at once.
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    let body = json!({ "id": id, "from": most, "limit": most }).to_string();
    client.publish_with_reply(format!("forebay.api.events.{TENANT}"), inbox, body.into()).await.unwrap();
    let answer = tokio::time::timeout(SOON, answers.next()).await.unwrap().unwrap();
    assert_eq!(answer.headers.unwrap().get("Forebay-More").unwrap().as_str(), "false");
    let ((http, url), key) = (farm.http().await, farm.operator_key());
    for path in [
        format!("/v1/builds/{TENANT}?limit=9223372036854775808"),
        format!("/v1/builds/{TENANT}?limit=0"),
        format!("/v1/builds/{TENANT}?state=%00"),
        format!("/v1/builds/{TENANT}/{id}/events?from=18446744073709551616"),
        "/v1/audit?limit=99999999999".to_owned(),
    ] {
        let answer = http.get(format!("{url}{path}")).bearer_auth(&key).send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert!(status == 400 && text.len() < 4000, "{path}: {status} {text}");
    }
    let future = format!("{url}/v1/builds/{TENANT}/{id}/events?from=9223372036854775807");
    let answer = http.get(future).bearer_auth(&key).send().await.unwrap();
    // No more events come: a browser that gets this does not ask again.
    assert_eq!(answer.status().as_u16(), 204);
}

/// The code with which an execution is refused or ends.
async fn code_of(calls: &Calls, request: ExecuteRequest) -> (Code, String) {
    let status = |status: Status| (status.code(), status.message().to_owned());
    let mut stream = match calls.execution().execute(request).await {
        Ok(stream) => stream.into_inner(),
        Err(refused) => return status(refused),
    };
    loop {
        let next = match tokio::time::timeout(2 * SOON, stream.message()).await.expect("it ends") {
            Ok(next) => next.expect("the last operation is done"),
            Err(refused) => return status(refused),
        };
        if let Some(reapi::longrunning::operation::Result::Response(any)) = next.result {
            let response = reapi::execution::ExecuteResponse::decode(&*any.value).unwrap();
            let status = response.status.unwrap_or_default();
            return (Code::from_i32(status.code), status.message);
        }
    }
}

#[tokio::test]
async fn g5_an_invalid_or_too_large_amount_is_refused() {
    let mut farm = Secured::start(&[]).await;
    let fields = "groups = [\"web\"]\nrights = [\"execute\", \"cache-read\", \"blob-write\"]";
    let key = farm.new_key("web", fields).await;
    let calls = farm.calls(&key).await;
    // The key is known within a second of the change of the file.
    let known = async {
        let request = || GetCapabilitiesRequest { instance_name: String::new() };
        while calls.capabilities().get_capabilities(request()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, known).await.unwrap();
    upload(&calls, &[b""]).await;
    for (name, value) in [
        ("resources:gpu", "1e9"),
        ("resources:gpu", "NaN"),
        ("resources:gpu", "-1"),
        ("resources:gpu", "inf"),
        ("EstimatedCPU", "-2"),
        ("EstimatedCPU", "1e300"),
        ("EstimatedMemory", "99999999999999999999999GB"),
        ("EstimatedComputeUnits", "nan"),
    ] {
        let properties = vec![Property { name: name.into(), value: value.into() }];
        let action = Action { platform: Some(Platform { properties }), ..Action::default() };
        let (digest, blobs) = action_of(SHA256, &acting::sh("true"), action, &SHA256.empty());
        for source in blobs.into_values() {
            if let Source::Bytes(content) = source {
                upload(&calls, &[&content]).await;
            }
        }
        let request = ExecuteRequest { action_digest: Some(proto(&digest)), ..Default::default() };
        let (code, message) = code_of(&calls, request).await;
        assert!(
            matches!(code, Code::InvalidArgument | Code::FailedPrecondition),
            "{name}={value}: {code:?} {message}"
        );
        assert!(message.contains(name.trim_start_matches("resources:")), "{name}={value}: {message}");
    }
    // A priority beyond the range is the one at its end.
    for priority in [i32::MIN, i32::MAX] {
        let action = upload_action(&calls, &format!("echo {priority}"), &SHA256.empty()).await;
        let request = ExecuteRequest {
            action_digest: Some(proto(&action)),
            execution_policy: Some(ExecutionPolicy { priority }),
            ..Default::default()
        };
        assert_eq!(code_of(&calls, request).await.0, Code::Ok);
    }
}

#[tokio::test]
async fn g11_an_input_root_that_is_malformed_or_endless_is_refused_and_soon() {
    let mut farm = Secured::start(&[]).await;
    let key = farm.operator_key();
    let calls = farm.calls(&key).await;
    let content = upload(&calls, &[b"content", b""]).await;
    let file =
        |name: &str| FileNode { name: name.into(), digest: Some(proto(&content[0])), ..FileNode::default() };
    let folder = |name: &str| DirectoryNode { name: name.into(), digest: Some(proto(&content[1])) };
    let link = |name: &str, target: &str| SymlinkNode {
        name: name.into(),
        target: target.into(),
        ..SymlinkNode::default()
    };
    let files = |names: &[&str]| Directory {
        files: names.iter().map(|name| file(name)).collect(),
        ..Directory::default()
    };
    let links = |link| Directory { symlinks: vec![link], ..Directory::default() };
    // A folder of two folders that are the same, forty times: 2^40 paths.
    let mut diamond = upload(&calls, &[&files(&["a"]).encode_to_vec()]).await.remove(0);
    for _ in 0..40 {
        let twice = ["a", "b"].map(|name| DirectoryNode { name: name.into(), digest: Some(proto(&diamond)) });
        let directory = Directory { directories: twice.into(), ..Directory::default() };
        diamond = upload(&calls, &[&directory.encode_to_vec()]).await.remove(0);
    }
    let endless = DirectoryNode { name: "deep".into(), digest: Some(proto(&diamond)) };
    let bad = [
        ("unsorted", files(&["b", "a"])),
        ("twice", files(&["a", "a"])),
        ("a dot", files(&["."])),
        ("two dots", files(&[".."])),
        ("a path", files(&["a/b"])),
        ("an absolute path", files(&["/etc/passwd"])),
        ("no name", files(&[""])),
        ("a NUL", files(&["a\0b"])),
        (
            "a file and a folder of one name",
            Directory { files: vec![file("a")], directories: vec![folder("a")], ..Directory::default() },
        ),
        ("an absolute link", links(link("a", "/etc/shadow"))),
        ("2^40 paths", Directory { directories: vec![endless], ..Directory::default() }),
    ];
    for (what, directory) in bad {
        let root = upload(&calls, &[&directory.encode_to_vec()]).await.remove(0);
        let action = upload_action(&calls, "cat a; echo read >kept", &root).await;
        let request = ExecuteRequest { action_digest: Some(proto(&action)), ..Default::default() };
        let (code, message) = code_of(&calls, request).await;
        assert_eq!(code, Code::InvalidArgument, "{what}: {message}");
    }
    // A link may lead above its folder: it is followed inside the sandbox only.
    let above =
        upload(&calls, &[&links(link("a", "../../../../../../etc/shadow")).encode_to_vec()]).await.remove(0);
    let action = upload_action(&calls, "cat a && echo read", &above).await;
    let response = execute(&calls, &action).await.unwrap();
    assert!(response.result.as_ref().unwrap().exit_code != 0, "{response:?}");
    let good = upload(&calls, &[&files(&["a", "b"]).encode_to_vec()]).await.remove(0);
    let action = upload_action(&calls, "cat a b", &good).await;
    let request = ExecuteRequest { action_digest: Some(proto(&action)), ..Default::default() };
    assert_eq!(code_of(&calls, request).await.0, Code::Ok);
}

/// The start of an HTTP/2 connection, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// `:method POST`, `:scheme http`, `:path /`.
const HEAD: [u8; 3] = [0x83, 0x86, 0x84];

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

/// Sends frames until the server closes the connection; the number that were sent.
async fn until_closed(address: &str, mut frames: impl FnMut(u32) -> Vec<u8>) -> u32 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    let (mut read, mut write) = stream.split();
    let drain = async {
        let mut part = [0; 4096];
        while let Ok(1..) = read.read(&mut part).await {}
    };
    let mut sent = 0;
    let flood = async {
        while write.write_all(&frames(sent)).await.is_ok() {
            sent += 1;
        }
    };
    let closed = async {
        tokio::select! { () = drain => {}, () = flood => {} }
    };
    tokio::time::timeout(SOON, closed).await.expect("the server closes the connection");
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn g12_floods_of_frames_end_their_connection_and_no_other() {
    let farm = acting::builder().only(&["gateway"]).start().await;
    let url = farm.grpc_url();
    let address = url.rsplit_once("//").unwrap().1.to_owned();
    let remote = acting::remote(&farm).await;
    // Streams that are opened and reset; headers without an end; settings and pings without an end; a window that overflows.
    let reset = |n: u32| {
        let id = 2 * n + 1;
        [frame(1, 4, id, &HEAD), frame(3, 0, id, &8_u32.to_be_bytes())].concat()
    };
    let endless = |n: u32| {
        let value = [&[0x00, 1, b'x', 0x7f, 0x80, 0x3e][..], &[b'y'; 8000]].concat();
        if n == 0 { frame(1, 0, 1, &HEAD) } else { frame(9, 0, 1, &value) }
    };
    let window = |_: u32| frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes());
    let data_of_no_stream = |n: u32| frame(0, 0, 2 * n + 1, b"x");
    until_closed(&address, reset).await;
    // As many as sockets hold, of 8 kB each.
    assert!(until_closed(&address, endless).await < 5000, "headers without an end");
    until_closed(&address, window).await;
    until_closed(&address, data_of_no_stream).await;
    remote.capabilities().await.unwrap();
}
