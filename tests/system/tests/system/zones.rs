//! Trust zones: a caller with a valid key of its own, who knows all digests of another tenant.

use std::time::Duration;

use callers::{ApiKey, BuildTokens};
use farm::{Builder, Farm, Locks, SOON};
use model::{BlobDigest, BuildId, BuildKey, EnvironmentDefinition, EnvironmentName, EnvironmentState};
use prost::Message as _;
use reapi::{
    bytestream::{QueryWriteStatusRequest, ReadRequest},
    execution::{
        Action, ActionResult, BatchReadBlobsRequest, BatchUpdateBlobsRequest, Directory, ExecuteRequest,
        ExecuteResponse, FileNode, FindMissingBlobsRequest, GetActionResultRequest, GetTreeRequest,
        OutputFile, Platform, SplitBlobRequest, UpdateActionResultRequest, batch_update_blobs_request,
        platform::Property,
    },
    longrunning::operation,
    stream::WriteRequest,
};
use remote::{Source, action_of};
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    acting,
    images::registry::files,
    locked::{Calls, SHA256, grpc, http, start},
};

/// Two tenants in zones of their own.
pub(crate) const APART: &str = "web=web other=other";

pub(crate) fn zoned(builder: Builder, zones: &str) -> Builder {
    builder.env("FOREBAY_ZONES", zones)
}

pub(crate) fn proto(digest: &BlobDigest) -> reapi::execution::Digest {
    reapi::digest::to_proto(digest)
}

/// Uploads blobs as this caller.
pub(crate) async fn upload(calls: &Calls, contents: &[&[u8]]) -> Vec<BlobDigest> {
    let request = |content: &&[u8]| batch_update_blobs_request::Request {
        digest: Some(proto(&SHA256.digest(content))),
        data: content.to_vec(),
        ..Default::default()
    };
    let requests = contents.iter().map(request).collect();
    let request = BatchUpdateBlobsRequest { requests, ..Default::default() };
    let answer = calls.cas().batch_update_blobs(request).await.unwrap().into_inner();
    for response in answer.responses {
        assert_eq!(response.status.unwrap_or_default().code, 0);
    }
    contents.iter().map(|content| SHA256.digest(content)).collect()
}

/// Whether the farm says that it lacks a blob.
pub(crate) async fn is_missing(calls: &Calls, digest: &BlobDigest) -> bool {
    let request = FindMissingBlobsRequest { blob_digests: vec![proto(digest)], ..Default::default() };
    let answer = calls.cas().find_missing_blobs(request).await.unwrap().into_inner();
    !answer.missing_blob_digests.is_empty()
}

/// The statuses of all calls that read a blob.
pub(crate) async fn reads(calls: &Calls, digest: &BlobDigest) -> Vec<(&'static str, Option<Code>)> {
    let of = |outcome: Result<(), Status>| outcome.err().map(|status| status.code());
    let digests = vec![proto(digest)];
    let batch = BatchReadBlobsRequest { digests, ..Default::default() };
    let batch = calls.cas().batch_read_blobs(batch).await.unwrap().into_inner();
    let code = batch.responses.first().unwrap().status.clone().unwrap_or_default().code;
    let name = format!("blobs/{}/{}", digest.hex(), digest.size);
    let read = ReadRequest { resource_name: name, ..Default::default() };
    let read = match calls.bytes().read(read).await {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    let split = SplitBlobRequest { blob_digest: Some(proto(digest)), ..Default::default() };
    let tree = GetTreeRequest { root_digest: Some(proto(digest)), ..Default::default() };
    let tree = match calls.cas().get_tree(tree).await {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    vec![
        ("BatchReadBlobs", (code != 0).then(|| Code::from_i32(code))),
        ("Read", of(read)),
        ("SplitBlob", of(calls.cas().split_blob(split).await.map(drop))),
        ("GetTree", of(tree)),
    ]
}

/// A directory with one file.
fn folder_with(file: &BlobDigest) -> Vec<u8> {
    let file = FileNode { name: "input".into(), digest: Some(proto(file)), ..Default::default() };
    Directory { files: vec![file], ..Default::default() }.encode_to_vec()
}

/// Uploads an action of a script with this input root, without what the root names.
pub(crate) async fn upload_action(calls: &Calls, script: &str, root: &BlobDigest) -> BlobDigest {
    let (action, blobs) = action_of(SHA256, &acting::sh(script), Action::default(), root);
    for source in blobs.into_values() {
        if let Source::Bytes(content) = source {
            upload(calls, &[&content]).await;
        }
    }
    action
}

/// Executes an action and returns the response, or the status of a refusal.
pub(crate) async fn execute(calls: &Calls, action: &BlobDigest) -> Result<ExecuteResponse, Status> {
    let request = ExecuteRequest { action_digest: Some(proto(action)), ..Default::default() };
    let mut stream = calls.execution().execute(request).await?.into_inner();
    loop {
        let next = tokio::time::timeout(2 * SOON, stream.message()).await.expect("the execution ends")?;
        let operation = next.expect("the last operation is done");
        if let Some(operation::Result::Response(any)) = operation.result {
            return Ok(ExecuteResponse::decode(&*any.value).unwrap());
        }
    }
}

async fn cached(calls: &Calls, action: &BlobDigest) -> Result<ActionResult, Code> {
    let request = GetActionResultRequest { action_digest: Some(proto(action)), ..Default::default() };
    let found = calls.action_cache().get_action_result(request).await;
    found.map(tonic::Response::into_inner).map_err(|status| status.code())
}

/// The digest of the output `kept`.
fn kept(result: &ActionResult) -> BlobDigest {
    let file = result.output_files.iter().find(|file| file.path == "kept").unwrap();
    reapi::digest::from_proto(file.digest.as_ref().unwrap(), SHA256).unwrap()
}

/// A script whose output differs each time.
pub(crate) const UNLIKE: &str = "head -c 16 /dev/urandom | od -An -tx1 > kept";

#[tokio::test]
async fn g7_a_blob_of_another_zone_is_answered_as_one_that_no_zone_has() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let secret = upload(&web, &[b"password=hunter2"]).await.remove(0);
    let folder = upload(&web, &[&folder_with(&secret)]).await.remove(0);
    let absent = SHA256.digest(b"password=hunter3");
    assert!(!is_missing(&web, &secret).await);
    assert!(is_missing(&other, &secret).await && is_missing(&other, &folder).await);
    assert_eq!(reads(&other, &secret).await, reads(&other, &absent).await);
    for (call, code) in reads(&other, &folder).await {
        assert_eq!(code, Some(Code::NotFound), "{call}");
    }
    for (call, code) in reads(&web, &folder).await {
        assert_eq!(code, None, "{call}");
    }
    // Marks are in the store, not in the memory of the gateway.
    farm.replace("gateway", &[]).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    assert!(!is_missing(&web, &secret).await && is_missing(&other, &secret).await);
    // Who has the content may see it.
    upload(&other, &[b"password=hunter2"]).await;
    assert!(!is_missing(&other, &secret).await && is_missing(&other, &folder).await);
    assert_eq!(reads(&other, &secret).await.first(), Some(&("BatchReadBlobs", None)));
    // An operator reaches all zones.
    let operator = grpc(&locks, &farm, Some(&locks.operator)).await;
    assert!(!is_missing(&operator, &folder).await);
}

#[tokio::test]
async fn h3_blobs_over_http_are_those_of_the_own_zone() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let secret = upload(&web, &[b"over http"]).await.remove(0);
    let (client, url) = (http(&locks), farm.http_url());
    let hash = secret.hex();
    for path in [
        format!("/v1/blobs/sha256:{hash}"),
        format!("/v1/blobs/sha256:{hash}?size_bytes={}", secret.size),
        format!("/blobs/{secret}"),
        format!("/blob-download/{secret}"),
        format!("/v1/../v1/blobs/sha256:{hash}"),
    ] {
        let get = async |key: &ApiKey| {
            let answer = client.get(format!("{url}{path}")).bearer_auth(key.reveal()).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!(get(&locks.web).await.0, 200, "{path}");
        let (status, body) = get(&locks.other).await;
        assert_eq!(status, 404, "{path}: {body}");
        assert!(!body.contains("over http"), "{path}: {body}");
    }
}

#[tokio::test]
async fn g8_an_upload_says_nothing_of_what_another_zone_has() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let content = vec![7_u8; 300 << 10];
    let digest = upload(&web, &[&content]).await.remove(0);
    let id = "5f0c3a53-8a3e-4a52-9f1e-3d3ec1a6a001";
    let name = format!("uploads/{id}/blobs/{}/{}", digest.hex(), digest.size);
    let query = async |calls: &Calls, name: &str| {
        let request = QueryWriteStatusRequest { resource_name: name.to_owned() };
        let answer = calls.bytes().query_write_status(request).await.unwrap().into_inner();
        (answer.committed_size, answer.complete)
    };
    assert_eq!(query(&web, &name).await, (300 << 10, true));
    assert_eq!(query(&other, &name).await, (0, false));
    let part = |name: &str, length: usize| WriteRequest {
        resource_name: name.to_owned(),
        data: content.get(..length).unwrap().to_vec().into(),
        ..WriteRequest::default()
    };
    // A part of the content is not the content, although the store has all of it.
    let begun = vec![part(&name, 100 << 10)];
    let answer = other.bytes().write(futures::stream::iter(begun)).await.unwrap().into_inner();
    assert_eq!(answer.committed_size, 100 << 10);
    assert_eq!(query(&other, &name).await, (100 << 10, false));
    assert!(is_missing(&other, &digest).await);
    // The upload of one zone is unknown to the other.
    let absent = BlobDigest { size: digest.size, ..SHA256.digest(b"absent") };
    let name = format!("uploads/{id}/blobs/{}/{}", absent.hex(), absent.size);
    let begun = vec![part(&name, 50 << 10)];
    web.bytes().write(futures::stream::iter(begun)).await.unwrap();
    assert_eq!(query(&web, &name).await, (50 << 10, false));
    assert_eq!(query(&other, &name).await, (0, false));
    let resumed = vec![WriteRequest { write_offset: 50 << 10, ..part(&name, 10) }];
    let status = other.bytes().write(futures::stream::iter(resumed)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn g4_results_and_inputs_name_blobs_of_the_own_zone_only() {
    let locks = Locks::new();
    let writer = ApiKey::generate().unwrap();
    locks.write_rules(&format!(
        "[[keys]]\nname = \"writer\"\nsha256 = \"{}\"\n[[rules]]\nkey = \"writer\"\ngroups = [\"other\"]\nrights = [\"cache-read\", \"cache-write\", \"blob-write\"]\n",
        writer.hash()
    ));
    let farm = start(&locks, zoned(acting::builder(), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let writer = grpc(&locks, &farm, Some(&writer)).await;
    let secret = upload(&web, &[b"a secret input"]).await.remove(0);
    // A result that would make the secret an output of the own zone.
    let action = SHA256.digest(b"some action");
    let file = OutputFile { path: "kept".into(), digest: Some(proto(&secret)), ..Default::default() };
    let request = UpdateActionResultRequest {
        action_digest: Some(proto(&action)),
        action_result: Some(ActionResult { output_files: vec![file], ..Default::default() }),
        ..Default::default()
    };
    let status = writer.action_cache().update_action_result(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(cached(&other, &action).await, Err(Code::NotFound));
    assert!(is_missing(&other, &secret).await);
    // An input root that would let an action read it.
    let root = upload(&other, &[&folder_with(&secret)]).await.remove(0);
    let action = upload_action(&other, "cat input > kept", &root).await;
    let refused = execute(&other, &action).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert_eq!(reapi::status::missing_blobs(&reapi::status::rpc_status(&refused)), [secret]);
    // The zone that has it may.
    upload(&web, &[&folder_with(&secret)]).await;
    let action = upload_action(&web, "cat input > kept", &root).await;
    let result = execute(&web, &action).await.unwrap().result.unwrap();
    assert_eq!(kept(&result), secret);
    assert_eq!(
        writer.action_cache().update_action_result(request).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn g15_results_of_actions_are_not_those_of_another_zone() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(acting::builder(), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let action = upload_action(&web, UNLIKE, &SHA256.empty()).await;
    upload_action(&other, UNLIKE, &SHA256.empty()).await;
    let of_web = execute(&web, &action).await.unwrap();
    assert!(!of_web.cached_result);
    let of_web = of_web.result.unwrap();
    assert_eq!(kept(&cached(&web, &action).await.unwrap()), kept(&of_web));
    assert_eq!(cached(&other, &action).await, Err(Code::NotFound));
    assert!(is_missing(&other, &kept(&of_web)).await);
    let of_other = execute(&other, &action).await.unwrap();
    assert!(!of_other.cached_result, "it runs again in its own zone");
    let of_other = of_other.result.unwrap();
    assert_ne!(kept(&of_other), kept(&of_web));
    // Neither replaced the other, and each may read its own output.
    assert_eq!(kept(&cached(&web, &action).await.unwrap()), kept(&of_web));
    assert_eq!(kept(&cached(&other, &action).await.unwrap()), kept(&of_other));
    assert_eq!(reads(&other, &kept(&of_other)).await.first(), Some(&("BatchReadBlobs", None)));
    assert!(is_missing(&web, &kept(&of_other)).await);
}

#[tokio::test]
async fn g15_a_zone_reads_from_its_parent_and_not_from_its_child() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(acting::builder(), "main=web pulls<main=other")).await;
    let (main, pulls) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let action = upload_action(&main, UNLIKE, &SHA256.empty()).await;
    let of_main = execute(&main, &action).await.unwrap().result.unwrap();
    let seen = execute(&pulls, &action).await.unwrap();
    assert!(seen.cached_result);
    assert_eq!(kept(&seen.result.unwrap()), kept(&of_main));
    assert_eq!(reads(&pulls, &kept(&of_main)).await.first(), Some(&("BatchReadBlobs", None)));
    // What a pull request makes is not seen by main, whichever is first.
    let poisoned = upload_action(&pulls, "echo poisoned > kept", &SHA256.empty()).await;
    let of_pulls = execute(&pulls, &poisoned).await.unwrap().result.unwrap();
    assert_eq!(kept(&cached(&pulls, &poisoned).await.unwrap()), kept(&of_pulls));
    assert_eq!(cached(&main, &poisoned).await, Err(Code::NotFound));
    assert!(is_missing(&main, &kept(&of_pulls)).await);
}

#[tokio::test]
async fn g16_no_header_leads_to_another_zone() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let secret = upload(&web, &[b"behind a header"]).await.remove(0);
    let find = || FindMissingBlobsRequest { blob_digests: vec![proto(&secret)], ..Default::default() };
    for zone in ["web", "default", "nowhere"] {
        let calls = other.and("x-forebay-zone", zone);
        let status = calls.cas().find_missing_blobs(find()).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{zone}: {status:?}");
    }
    let status = other.and("x-forebay-zone", "a b").cas().find_missing_blobs(find()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(is_missing(&other.and("x-forebay-group", "web"), &secret).await);
    assert!(is_missing(&other.and("x-forebay-zone", "other"), &secret).await);
    // A caller that reaches all zones acts for the one that it names, and proves blobs for it.
    let operator = grpc(&locks, &farm, Some(&locks.operator)).await;
    assert!(!is_missing(&operator.and("x-forebay-zone", "web"), &secret).await);
    assert!(is_missing(&operator.and("x-forebay-zone", "other"), &secret).await);
    assert!(is_missing(&operator.and("x-forebay-group", "other"), &secret).await);
    upload(&operator.and("x-forebay-group", "other"), &[b"behind a header"]).await;
    assert!(!is_missing(&other, &secret).await);
}

#[tokio::test]
async fn g15_a_build_is_in_the_zone_of_its_group() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder(), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    // The Bazel of a build calls with the token of the build.
    let secret = upload(&web, &[b"of web"]).await.remove(0);
    let tokens = BuildTokens::of_file(&locks.path("secret")).unwrap();
    let token = |group: &str| {
        let build = BuildKey { group: group.parse().unwrap(), id: BuildId::generate() };
        tokens.issue(&build, std::time::SystemTime::now() + Duration::from_secs(600))
    };
    let stranger = grpc(&locks, &farm, None).await;
    let of_build = |group: &str| stranger.and("authorization", &format!("Bearer {}", token(group)));
    assert!(!is_missing(&of_build("web"), &secret).await);
    assert!(is_missing(&of_build("other"), &secret).await);
    // A build of one group cannot have a folder of the other zone as its files.
    let folder = upload(&web, &[&folder_with(&secret)]).await.remove(0);
    let (client, url) = (http(&locks), farm.http_url());
    let create = async |group: &str, key: &ApiKey| {
        let context = json!({ "kind": "tree", "digest": folder.to_string() });
        let body = json!({ "command": ["cat", "input"], "context": context, "outputs": ["input"] });
        let call = client.post(format!("{url}/v1/builds/{group}")).json(&body).bearer_auth(key.reveal());
        let answer = call.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.unwrap())
    };
    upload(&other, &[&folder_with(&secret)]).await;
    let (status, refused) = create("other", &locks.other).await;
    let of_other = if status == 201 { Some(refused["id"].as_str().unwrap().to_owned()) } else { None };
    let (status, reply) = create("web", &locks.web).await;
    assert_eq!(status, 201, "{reply}");
    let end = async |group: &str, id: &str| {
        let key = BuildKey { group: group.parse().unwrap(), id: id.parse().unwrap() };
        farm.wait_finished(&key, SOON).await
    };
    let record = end("web", reply["id"].as_str().unwrap()).await;
    let result = record.result().unwrap().clone();
    assert_eq!(result.outcome, model::Outcome::Succeeded, "{result:?}");
    let of_other = end("other", &of_other.expect("the folder itself is known to both")).await;
    assert_ne!(of_other.result().unwrap().outcome, model::Outcome::Succeeded, "{of_other:?}");
    // Its outputs are blobs of its zone.
    let blob = async |key: &ApiKey| {
        let path = format!("{url}/v1/blobs/{}", result.outputs.first().unwrap().digest);
        client.get(path).bearer_auth(key.reveal()).send().await.unwrap().status().as_u16()
    };
    assert_eq!((blob(&locks.web).await, blob(&locks.other).await), (200, 404));
}

#[tokio::test]
async fn b2_looking_for_blobs_of_another_zone_does_not_keep_them() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let digest = upload(&web, &[b"kept by no zone"]).await.remove(0);
    let hash = digest.hex();
    let path = farm.data().join(format!("cas/cas/sha256/{}/{hash}-{}", &hash[..2], digest.size));
    let day = Duration::from_secs(24 * 3600);
    let long_ago = std::time::SystemTime::now() - day;
    std::fs::File::open(&path).unwrap().set_modified(long_ago).unwrap();
    // Another process does not remember that the blob was just used.
    farm.replace("gateway", &[]).await;
    let other = grpc(&locks, &farm, Some(&locks.other)).await;
    for _ in 0..3 {
        assert!(is_missing(&other, &digest).await);
        reads(&other, &digest).await;
    }
    let age = || std::fs::metadata(&path).unwrap().modified().unwrap().elapsed().unwrap();
    assert!(age() >= day, "{:?}", age());
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    assert!(!is_missing(&web, &digest).await);
    assert!(age() < day, "the zone that has it keeps it: {:?}", age());
}

#[tokio::test]
async fn g17_results_say_where_they_come_from_and_are_purged_by_it() {
    let locks = Locks::new();
    let writer = ApiKey::generate().unwrap();
    locks.write_rules(&format!(
        "[[keys]]\nname = \"writer\"\nsha256 = \"{}\"\n[[rules]]\nkey = \"writer\"\ngroups = [\"web\"]\nrights = [\"cache-read\", \"cache-write\", \"operate\"]\n",
        writer.hash()
    ));
    let farm = start(&locks, zoned(acting::builder(), APART)).await;
    let (web, operator) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.operator)).await);
    let action = upload_action(&web, "echo made > kept", &SHA256.empty()).await;
    execute(&web, &action).await.unwrap();
    let found = reapi::provenance::of(&cached(&web, &action).await.unwrap()).unwrap();
    assert_eq!((found.caller.as_str(), found.action), ("key:web", action));
    assert_eq!(found.zone.as_ref().map(model::Zone::as_str), Some("web"));
    assert!(found.command.contains("echo made") && found.execution.starts_with("web/"), "{found:?}");
    assert!(!found.executor.is_empty() && !found.home.is_empty() && !found.host.is_empty(), "{found:?}");
    // A client that claims another origin is named itself.
    let forged = SHA256.digest(b"forged");
    let mut result = ActionResult { exit_code: 1, ..Default::default() };
    reapi::provenance::set(&mut result, &found);
    let writing = grpc(&locks, &farm, Some(&writer)).await;
    let request = UpdateActionResultRequest {
        action_digest: Some(proto(&forged)),
        action_result: Some(result),
        ..Default::default()
    };
    writing.action_cache().update_action_result(request).await.unwrap();
    let of_client = reapi::provenance::of(&cached(&web, &forged).await.unwrap()).unwrap();
    assert_eq!((of_client.caller.as_str(), of_client.executor.as_str()), ("key:writer", ""));
    let (client, url) = (http(&locks), format!("{}/v1/action-cache/purge", farm.http_url()));
    let purge = async |key: &ApiKey, body: serde_json::Value| {
        let answer = client.post(&url).json(&body).bearer_auth(key.reveal()).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.unwrap())
    };
    let of_executor = |dry_run: bool| json!({ "executor": found.executor, "dry_run": dry_run });
    for key in [&locks.web, &writer] {
        assert_eq!(purge(key, of_executor(false)).await.0, 403);
    }
    assert_eq!(
        purge(&locks.operator, json!({})).await.0,
        400,
        "without a condition it would delete everything"
    );
    let (status, dry) = purge(&locks.operator, of_executor(true)).await;
    assert_eq!((status, &dry["selected"], &dry["deleted"]), (200, &json!(1), &json!(0)), "{dry}");
    assert!(cached(&web, &action).await.is_ok());
    let (_, done) = purge(&locks.operator, of_executor(false)).await;
    assert_eq!((&done["examined"], &done["deleted"]), (&json!(2), &json!(1)), "{done}");
    assert_eq!(cached(&web, &action).await.unwrap_err(), Code::NotFound);
    assert!(cached(&web, &forged).await.is_ok());
    assert!(!is_missing(&operator, &action).await, "blobs stay");
    // By the command line, without a gateway.
    let forged = forged.to_string();
    let output = farm.cli(&["cas", "purge", "--action", &forged, "--json"]).await;
    let reply: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(reply["deleted"], json!(1), "{output:?}");
}

#[tokio::test]
async fn g18_an_image_of_the_own_making_has_no_blobs_of_another_zone() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(acting::builder(), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let layer = upload(&web, &[b"a tar archive with secrets"]).await.remove(0);
    let config = upload(&other, &[b"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}"]).await.remove(0);
    let part = |kind: &str, blob: &BlobDigest| json!({ "mediaType": kind, "digest": format!("sha256:{}", blob.hex()), "size": blob.size });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": part("application/vnd.oci.image.config.v1+json", &config),
        "layers": [part("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let manifest = upload(&other, &[manifest.to_string().as_bytes()]).await.remove(0);
    let image = format!("docker://forebay.internal/mine@sha256:{}", manifest.hex());
    let property = Property { name: "container-image".into(), value: image };
    let platform = Some(Platform { properties: vec![property] });
    let action = Action { platform, ..Action::default() };
    let (action, blobs) = action_of(SHA256, &acting::sh("cat /secrets"), action, &SHA256.empty());
    for source in blobs.into_values() {
        if let Source::Bytes(content) = source {
            upload(&other, &[&content]).await;
        }
    }
    let status = execute(&other, &action).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(
        status.message().contains("cannot be used"),
        "the store has its manifest, images do not: {status:?}"
    );
}

#[tokio::test]
async fn g18_an_environment_by_manifest_has_what_its_zone_has_and_no_layer_of_another_blob() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().with_actions(), APART)).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let secret = upload(&web, &[b"s3cret of web"]).await.remove(0);
    let tars = ["one", "two"].map(|content| files(&[("etc/version", content)]));
    let [one, two] = [&tars[0], &tars[1]].map(|tar| SHA256.digest(tar));
    upload(&other, &[&tars[0], &tars[1]]).await;
    let nowhere = SHA256.digest(b"what the store does not have");
    let part = |kind: &str, blob: &BlobDigest| json!({ "mediaType": kind, "digest": format!("sha256:{}", blob.hex()), "size": blob.size });
    let config = json!({ "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", one.hex())] } });
    let config = upload(&other, &[config.to_string().as_bytes()]).await.remove(0);
    let name: EnvironmentName = "other/x".parse().unwrap();
    let mut reasons = Vec::new();
    for (layer, state) in [(one, "ready"), (secret, "failed"), (nowhere, "failed"), (two, "failed")] {
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": part("application/vnd.oci.image.config.v1+json", &config),
            "layers": [part("application/vnd.oci.image.layer.v1.tar", &layer)],
        });
        let manifest = upload(&other, &[manifest.to_string().as_bytes()]).await.remove(0);
        let definition = EnvironmentDefinition::Stored(manifest);
        let (_, number) = farm.client().propose_environment(&name, definition, None).await.unwrap();
        farm.client().approve_environment(&name, Some(number), None).await.unwrap();
        let ended = async {
            loop {
                let all = farm.client().environments().await.unwrap();
                let found = all.into_iter().find(|it| it.name == name).unwrap();
                let version = found.versions.into_iter().find(|it| it.number == number).unwrap();
                match version.state {
                    EnvironmentState::Ready { .. } => return "ready".to_owned(),
                    EnvironmentState::Failed { reason, .. } => return format!("failed: {reason}"),
                    EnvironmentState::Proposed | EnvironmentState::Approved { .. } => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        };
        let ended = tokio::time::timeout(SOON, ended).await.unwrap();
        assert!(ended.starts_with(state), "{layer}: {ended}");
        reasons.push(ended.replace(&layer.hex(), "DIGEST"));
        let url = format!("{}/v2/{name}/blobs/sha256:{}", farm.http_url(), layer.hex());
        let answer = http(&locks).get(url).bearer_auth(locks.other.reveal()).send().await.unwrap();
        assert_eq!(answer.status() == 200, state == "ready", "{layer}");
    }
    let [_, of_web, of_none, _] = &reasons[..] else { panic!("{reasons:?}") };
    assert_eq!(of_web, of_none, "a blob of another zone is answered as one that no zone has");
}
