//! The action cache (statements 74 to 83).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

mod common;

use common::{Blake3, READ_ONLY, Server, Sha256, noise};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    digest,
    execution::{
        ActionResult, Directory, DirectoryNode, FileNode, GetActionResultRequest, OutputDirectory,
        OutputFile, Tree, UpdateActionResultRequest,
    },
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
async fn s74_s81_s82_s83_results_come_back_as_they_are() {
    let server = Server::start().await;
    for function in [Sha256, Blake3] {
        let action = function.digest(b"action");
        assert_eq!(code(get(&server, request(&action)).await), Code::NotFound);
        let result = ActionResult { exit_code: 3, ..ActionResult::default() };
        update(&server, &action, result).await.unwrap();
        let found = get(&server, request(&action)).await.unwrap();
        assert_eq!(found.exit_code, 3);
        assert!(!found.execution_metadata.unwrap().worker.is_empty());
        // Another instance does not see the result (16).
        let elsewhere = GetActionResultRequest { instance_name: "main".into(), ..request(&action) };
        assert_eq!(code(get(&server, elsewhere).await), Code::NotFound);
        assert_eq!(code(get(&server, request(&function.digest(b"salted"))).await), Code::NotFound);
    }
    update(&server, &Sha256.digest(b"empty"), ActionResult::default()).await.unwrap();
    let found = get(&server, request(&Sha256.digest(b"empty"))).await.unwrap();
    assert!(!found.encode_to_vec().is_empty());
}

#[tokio::test]
async fn s75_a_result_with_something_gone_is_none() {
    let server = Server::start().await;
    let here = server.put(b"here").await;
    let gone = Sha256.digest(b"gone");
    let directory = |file: &BlobDigest| Directory {
        files: vec![FileNode {
            name: "f".into(),
            digest: Some(digest::to_proto(file)),
            ..Default::default()
        }],
        ..Directory::default()
    };
    let tree_of = |child: &Directory| {
        let digest = Some(digest::to_proto(&Sha256.digest(&child.encode_to_vec())));
        let node = DirectoryNode { name: "d".into(), digest };
        let root = Directory { directories: vec![node], ..Directory::default() };
        Tree { root: Some(root), children: vec![child.clone()] }.encode_to_vec()
    };
    let whole = server.put(&tree_of(&directory(&here))).await;
    let broken = server.put(&tree_of(&directory(&gone))).await;
    let output = |tree: &BlobDigest| ActionResult {
        output_directories: vec![OutputDirectory {
            path: "out".into(),
            tree_digest: Some(digest::to_proto(tree)),
            ..OutputDirectory::default()
        }],
        ..ActionResult::default()
    };
    let stdout = |digest: &BlobDigest| ActionResult {
        stdout_digest: Some(digest::to_proto(digest)),
        ..ActionResult::default()
    };
    let outcomes = [
        (ActionResult { output_files: vec![file("a", &here)], ..Default::default() }, true),
        (
            ActionResult { output_files: vec![file("a", &here), file("b", &gone)], ..Default::default() },
            false,
        ),
        (output(&whole), true),
        (output(&broken), false),
        (output(&gone), false),
        (stdout(&here), true),
        (stdout(&Sha256.empty()), true),
        (stdout(&gone), false),
    ];
    for (index, (result, found)) in outcomes.into_iter().enumerate() {
        let action = Sha256.digest(&[u8::try_from(index).unwrap()]);
        update(&server, &action, result).await.unwrap();
        let got = get(&server, request(&action)).await;
        assert_eq!(got.as_ref().err().map(Status::code), (!found).then_some(Code::NotFound), "{index}");
    }
}

#[tokio::test]
async fn s76_s77_only_what_is_asked_for_and_fits_is_inlined() {
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
async fn s79_what_a_client_inlines_goes_to_the_store() {
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

#[tokio::test]
async fn s78_s80_what_may_not_be_written() {
    let server = Server::start().await;
    let (action, here) = (Sha256.digest(b"action"), server.put(b"here").await);
    let bad = ActionResult { output_files: vec![file("/abs", &here)], ..ActionResult::default() };
    assert_eq!(code(update(&server, &action, bad).await), Code::InvalidArgument);
    let mut bad = file("f", &here);
    bad.digest.as_mut().unwrap().hash = "AB".into();
    let bad = ActionResult { output_files: vec![bad], ..ActionResult::default() };
    assert_eq!(code(update(&server, &action, bad).await), Code::InvalidArgument);
    let request =
        UpdateActionResultRequest { action_digest: Some(digest::to_proto(&action)), ..Default::default() };
    assert_eq!(code(server.actions().update_action_result(request.clone()).await), Code::InvalidArgument);
    let request = UpdateActionResultRequest {
        instance_name: READ_ONLY.into(),
        action_result: Some(ActionResult::default()),
        ..request
    };
    assert_eq!(code(server.actions().update_action_result(request).await), Code::PermissionDenied);
    let wrong = GetActionResultRequest { instance_name: "other".into(), ..self::request(&action) };
    assert_eq!(code(get(&server, wrong).await), Code::InvalidArgument);
    assert_eq!(code(get(&server, GetActionResultRequest::default()).await), Code::InvalidArgument);
}
