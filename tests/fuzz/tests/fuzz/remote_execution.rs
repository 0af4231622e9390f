//! Messages of the Remote Execution API: decoding, and the checks before an executor has them.

use fuzz_tests::{Target, fuzz};
use policy::actions;
use prost::Message;
use reapi::{
    canonical, directory,
    execution::{
        Action, ActionResult, Command, Directory, DirectoryNode, ExecuteResponse, FileNode, OutputFile,
        Platform, RequestMetadata, SymlinkNode, Tree, command::EnvironmentVariable, platform::Property,
    },
    metadata, provenance, rpc, status,
};
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

use crate::{
    blobs::{SHA256, digest},
    choice::{Reader, outcome, read, seed},
};

const WORDS: &[&[u8]] = &[
    b"\x0a\x00",
    b"\x0b",
    b"\x0c",
    b"\x12\x02\x08\x01",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"..",
    b"/",
    b"\0",
    b"../../etc",
    b"OSFamily",
    b"container-image",
    b"docker://",
    b"resources:gpu",
    b"EstimatedMemory",
    b"1e300",
    b"NaN",
    b"-1",
    b"[",
    b"{\"name\":",
];

fn platform() -> Platform {
    let property = |(name, value): (&str, &str)| Property { name: name.into(), value: value.into() };
    let all = [("OSFamily", "linux"), ("container-image", "docker://debian:13"), ("EstimatedMemory", "2GB")];
    Platform { properties: all.map(property).into() }
}

fn action() -> Vec<u8> {
    let timeout = Some(reapi::protobuf::Duration { seconds: 60, nanos: 5 });
    let (command_digest, input_root_digest) = (Some(digest(b"command")), Some(digest(b"root")));
    let platform = Some(platform());
    Action { command_digest, input_root_digest, timeout, platform, ..Default::default() }.encode_to_vec()
}

fn command() -> Vec<u8> {
    let environment_variables = vec![EnvironmentVariable { name: "A".into(), value: "b".into() }];
    Command {
        arguments: vec!["/bin/sh".into(), "-c".into(), "true".into()],
        environment_variables,
        output_paths: vec!["out/a".into()],
        working_directory: "src".into(),
        ..Default::default()
    }
    .encode_to_vec()
}

fn folder() -> Directory {
    Directory {
        files: vec![FileNode { name: "a".into(), digest: Some(digest(b"a")), ..Default::default() }],
        directories: vec![DirectoryNode { name: "b".into(), digest: Some(digest(b"b")) }],
        symlinks: vec![SymlinkNode { name: "c".into(), target: "../a".into(), ..Default::default() }],
        ..Default::default()
    }
}

fn result() -> ActionResult {
    let file = OutputFile { path: "out/a".into(), digest: Some(digest(b"a")), ..Default::default() };
    ActionResult { output_files: vec![file], stdout_raw: b"text".into(), exit_code: 1, ..Default::default() }
}

fn an_action(input: &[u8]) -> String {
    outcome(gateway::grpc::checked(input, &command()).map_err(|status| status.message().to_owned()))
}

fn a_command(input: &[u8]) -> String {
    outcome(gateway::grpc::checked(&action(), input).map_err(|status| status.message().to_owned()))
}

/// What executors are asked for by properties of a platform.
fn a_platform(input: &[u8]) -> String {
    let platform = match Platform::decode(input) {
        Err(error) => return error.to_string(),
        Ok(platform) => platform,
    };
    let asked: Vec<_> = platform.properties.into_iter().map(|it| (it.name, it.value)).collect();
    [
        outcome(actions::asked_image(&asked)),
        outcome(actions::asked_interactor(&asked)),
        outcome(actions::asked_services(&asked)),
        outcome(actions::limits::read(&asked)),
        actions::refuses_cache(&asked).to_string(),
    ]
    .concat()
}

/// A directory that is accepted is already in the order of the protocol.
fn a_directory(input: &[u8]) -> String {
    let found = match Directory::decode(input) {
        Err(error) => return error.to_string(),
        Ok(found) => found,
    };
    let checked = directory::check(&found);
    let mut sorted = found.clone();
    canonical::sort_directory(&mut sorted);
    assert!(checked.is_err() || sorted == found, "{found:?}");
    outcome(checked)
}

fn a_result(input: &[u8]) -> String {
    let mut found = match ActionResult::decode(input) {
        Err(error) => return error.to_string(),
        Ok(found) => found,
    };
    let digests = found.output_files.iter().filter_map(|it| it.digest.as_ref());
    let bad = digests.filter(|it| reapi::digest::from_proto(it, SHA256).is_err()).count();
    let known = provenance::of(&found).is_some();
    provenance::remove(&mut found);
    assert!(provenance::of(&found).is_none() || !known, "its origin is still there");
    format!("{} {known}", bad.min(3))
}

fn a_status(input: &[u8]) -> String {
    let found = match rpc::Status::decode(input) {
        Err(error) => return error.to_string(),
        Ok(found) => found,
    };
    let shown = (status::missing_blobs(&found).len(), status::field_violations(&found).len());
    let _ = status::from_rpc(&found);
    format!("{shown:?} {}", status::retry_delay(&found).is_some())
}

fn a_header(input: &[u8]) -> String {
    let mut headers = MetadataMap::new();
    let value = BinaryMetadataValue::from_bytes(input);
    headers.insert_bin("build.bazel.remote.execution.v2.requestmetadata-bin", value);
    let found = metadata::request_metadata(&headers);
    format!("{} {}", metadata::tool_name(&found).len().min(3), metadata::counts_uncompressed(&found))
}

fn decoded<T: Message + Default>(input: &[u8]) -> String {
    let message = match T::decode(input) {
        Err(error) => return error.to_string(),
        Ok(message) => message,
    };
    let written = message.encode_to_vec();
    assert_eq!(T::decode(&*written).unwrap().encode_to_vec(), written);
    "read".to_owned()
}

#[test]
fn messages_of_the_remote_execution_api_are_refused_or_checked() {
    let readers: [Reader; 9] = [
        an_action,
        a_command,
        a_platform,
        a_directory,
        a_result,
        a_status,
        a_header,
        decoded::<Tree>,
        decoded::<ExecuteResponse>,
    ];
    let missing = status::rpc_status(&status::missing(&[SHA256.digest(b"a")]));
    let tree = Tree { root: Some(folder()), children: vec![folder()] };
    let response = ExecuteResponse { result: Some(result()), message: "done".into(), ..Default::default() };
    let header = RequestMetadata { tool_invocation_id: "x".into(), ..Default::default() };
    let seeds = [
        action(),
        command(),
        platform().encode_to_vec(),
        folder().encode_to_vec(),
        result().encode_to_vec(),
        missing.encode_to_vec(),
        header.encode_to_vec(),
        tree.encode_to_vec(),
        response.encode_to_vec(),
    ];
    for place in [0, 1, 3] {
        assert_eq!(readers[place](&seeds[place]), "read", "{place}");
    }
    let seeds = seeds.iter().enumerate().map(|(place, content)| seed(place, content)).collect();
    fuzz(&Target { name: "remote_execution", seeds, words: WORDS, check: &|input| read(&readers, input) });
}
