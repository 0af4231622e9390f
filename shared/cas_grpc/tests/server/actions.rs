//! What the action cache stores and inlines.

use crate::common::{Blake3, Server, Sha256, noise};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    digest,
    execution::{ActionResult, GetActionResultRequest, OutputFile, UpdateActionResultRequest},
};
use tonic::{Code, Status};

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code()
}

async fn update(server: &Server, action: &BlobDigest, result: ActionResult) -> Result<ActionResult, Status> {
    let request = UpdateActionResultRequest {
        action_digest: Some(digest::to_proto(action)),
        action_result: Some(result),
        digest_function: digest::value(action.function).into(),
        ..Default::default()
    };
    server.actions().update_action_result(request).await.map(tonic::Response::into_inner)
}

fn request(action: &BlobDigest) -> GetActionResultRequest {
    GetActionResultRequest {
        action_digest: Some(digest::to_proto(action)),
        digest_function: digest::value(action.function).into(),
        ..Default::default()
    }
}

async fn get(server: &Server, request: GetActionResultRequest) -> Result<ActionResult, Status> {
    server.actions().get_action_result(request).await.map(tonic::Response::into_inner)
}

fn file(path: &str, digest: &BlobDigest) -> OutputFile {
    OutputFile { path: path.into(), digest: Some(digest::to_proto(digest)), ..OutputFile::default() }
}

#[tokio::test]
async fn a_result_belongs_to_its_instance_and_names_a_worker() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let action = function.digest(b"action");
        update(&server, &action, ActionResult::default()).await.unwrap();
        let found = get(&server, request(&action)).await.unwrap();
        assert!(!found.execution_metadata.unwrap().worker.is_empty());
        let elsewhere = GetActionResultRequest { instance_name: "main".into(), ..request(&action) };
        assert_eq!(code(get(&server, elsewhere).await), Code::NotFound);
    }
    assert_eq!(code(get(&server, GetActionResultRequest::default()).await), Code::InvalidArgument);
}

#[tokio::test]
async fn an_incomplete_result_is_stored_but_not_returned() {
    let server = Server::start().await;
    let gone =
        ActionResult { output_files: vec![file("gone", &Sha256.digest(b"gone"))], ..ActionResult::default() };
    // The empty blob is present without an upload.
    let empty =
        ActionResult { stdout_digest: Some(digest::to_proto(&Sha256.empty())), ..ActionResult::default() };
    for (action, result, found) in [(b"one", gone, false), (b"two", empty, true)] {
        let action = Sha256.digest(action);
        update(&server, &action, result).await.unwrap();
        let got = get(&server, request(&action)).await;
        assert_eq!(got.as_ref().err().map(Status::code), (!found).then_some(Code::NotFound));
    }
}

#[tokio::test]
async fn only_what_is_asked_for_and_fits_is_inlined() {
    let server = Server::start().await;
    let large = noise(3 << 20, 1);
    let (stdout, stderr) = (server.put(b"out").await, server.put(b"err").await);
    let (one, big) = (server.put(b"one").await, server.put(&large).await);
    let result = ActionResult {
        stdout_digest: Some(digest::to_proto(&stdout)),
        stderr_digest: Some(digest::to_proto(&stderr)),
        output_files: vec![file("a/one", &one), file("big", &big), file("bigger", &big)],
        ..ActionResult::default()
    };
    let action = Sha256.digest(b"action");
    update(&server, &action, result).await.unwrap();
    let plain = get(&server, request(&action)).await.unwrap();
    assert!(plain.stdout_raw.is_empty() && plain.stderr_raw.is_empty());
    assert!(plain.output_files.iter().all(|file| file.contents.is_empty()));
    let asked = GetActionResultRequest {
        inline_stdout: true,
        inline_output_files: ["one", "a/one", "big", "bigger"].map(str::to_owned).to_vec(),
        ..request(&action)
    };
    let inlined = get(&server, asked).await.unwrap();
    assert_eq!((&*inlined.stdout_raw, &*inlined.stderr_raw), (&b"out"[..], &b""[..]));
    assert_eq!(inlined.output_files[0].contents, b"one");
    assert_eq!(inlined.output_files[1].contents, large);
    assert!(inlined.output_files[2].contents.is_empty(), "no room for a second one");
    assert!(inlined.encoded_len() < 4 << 20);
}

#[tokio::test]
async fn what_a_client_inlines_goes_to_the_store() {
    let server = Server::start().await;
    let action = Sha256.digest(b"action");
    let contents = b"contents".to_vec();
    let output = OutputFile { contents, ..file("f", &Sha256.digest(b"contents")) };
    let result =
        ActionResult { stdout_raw: b"said".into(), output_files: vec![output], ..ActionResult::default() };
    update(&server, &action, result).await.unwrap();
    let found = get(&server, request(&action)).await.unwrap();
    assert_eq!(found.stdout_digest, Some(digest::to_proto(&Sha256.digest(b"said"))));
    assert!(found.stdout_raw.is_empty() && found.output_files[0].contents.is_empty());
    assert!(server.has(&Sha256.digest(b"said")).await && server.has(&Sha256.digest(b"contents")).await);
    let wrong = OutputFile { contents: b"other".into(), ..file("f", &Sha256.digest(b"contents")) };
    let result = ActionResult { output_files: vec![wrong], ..ActionResult::default() };
    assert_eq!(code(update(&server, &action, result).await), Code::InvalidArgument);
}
