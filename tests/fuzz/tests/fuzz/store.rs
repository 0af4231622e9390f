//! The store's services: bodies of calls, and trees that are read without a library.

use bytes::Bytes;
use callers::{Callers, Guarded};
use cas::{Cas, CasConfig};
use cas_grpc::{BlobApi, Limits};
use fuzz_tests::{Target, fuzz};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use reapi::{
    execution::{
        ActionResult, BatchUpdateBlobsRequest, Directory, DirectoryNode, FileNode, FindMissingBlobsRequest,
        OutputDirectory, Tree, batch_update_blobs_request,
    },
    stream::WriteRequest,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::{
    body::Body,
    codegen::{Service as _, http},
    service::Routes,
};

use crate::{
    blobs::{SHA256, digest},
    choice::seed,
};

const WORDS: &[&[u8]] = &[
    b"\x0a\x00",
    b"\x0b",
    b"\x0c",
    b"\x12\x02\x08\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\0\0\0\0\x05",
    b"\x01\0\0\0\x05",
    b"\0\xff\xff\xff\xff",
    b"uploads/",
    b"/blobs/",
    b"compressed-blobs/zstd/",
    b"\x28\xb5\x2f\xfd",
];
/// The methods, by the first byte of an input.
const PATHS: [&str; 4] = [
    "/google.bytestream.ByteStream/Write",
    "/google.bytestream.ByteStream/Read",
    "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchUpdateBlobs",
    "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs",
];

/// A store in a folder, and the services in front of it, without a connection.
struct Store {
    runtime: Runtime,
    cas: Cas,
    services: Guarded<Routes>,
    _folder: TempDir,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        let cas = Cas::open(CasConfig::new(folder.path().join("cas"))).unwrap();
        let routes = cas_grpc::routes(BlobApi {
            cas: cas.clone(),
            instances: "=default main=default".parse().unwrap(),
            zones: policy::zones::Zones::default(),
            now: std::sync::Arc::new(model::Millis::of_this_machine),
            limits: Limits::default(),
            executes: false,
            live: None,
            log_writes: None,
        });
        drop(guard);
        let services = cas_grpc::guarded(routes, Callers::anyone());
        Self { runtime, cas, services, _folder: folder }
    }

    /// The status of a call with this body.
    fn call(&self, input: &[u8]) -> String {
        let (first, rest) = input.split_first().unwrap_or((&0, &[]));
        let body = Full::new(Bytes::copy_from_slice(rest)).map_err(|never| match never {});
        let request = http::Request::post(PATHS[usize::from(*first) % PATHS.len()])
            .header("content-type", "application/grpc")
            .body(Body::new(body))
            .unwrap();
        let mut services = self.services.clone();
        self.runtime.block_on(async {
            let answer = services.call(request).await.unwrap();
            let in_head = answer.headers().get("grpc-message").cloned();
            let end = answer.into_body().collect().await.map(|body| body.trailers().cloned());
            let in_end = end.ok().flatten().and_then(|it| it.get("grpc-message").cloned());
            let message = in_head.or(in_end);
            message.map_or_else(String::new, |it| String::from_utf8_lossy(it.as_bytes()).into_owned())
        })
    }

    /// What the store says of a tree, whose root or whole is this blob.
    fn tree(&self, input: &[u8]) -> String {
        self.runtime.block_on(async {
            let blob = self.cas.put_bytes(SHA256, Bytes::copy_from_slice(input)).await.unwrap();
            let checked = self.cas.check_tree(&blob).await;
            let blobs = self.cas.blobs_of_tree(&blob).await;
            let tree_digest = Some(reapi::digest::to_proto(&blob));
            let folder = OutputDirectory { path: "out".into(), tree_digest, ..Default::default() };
            let result = ActionResult { output_directories: vec![folder], ..Default::default() };
            let complete = self.cas.has_outputs_of(&result, &blob).await;
            let shown = [format!("{checked:?}"), format!("{:?}", blobs.map(drop)), format!("{complete:?}")];
            shown.map(|text| text.chars().take(30).collect::<String>()).concat()
        })
    }
}

/// A message as a call has it.
fn framed(message: &impl prost::Message) -> Vec<u8> {
    let content = message.encode_to_vec();
    let length = u32::try_from(content.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &content].concat()
}

fn calls() -> Vec<Vec<u8>> {
    let blob = SHA256.digest(b"hello");
    let name = format!("uploads/0198c5d3-0000-7000-8000-000000000001/blobs/{}/{}", blob.hex(), blob.size);
    let write = |resource_name: &str, write_offset, data: &'static [u8], finish_write| {
        let data = Bytes::from_static(data);
        WriteRequest { resource_name: resource_name.to_owned(), write_offset, finish_write, data }
    };
    let whole = framed(&write(&name, 0, b"hello", true));
    let parts = [framed(&write(&name, 0, b"he", false)), framed(&write("", 2, b"llo", true))].concat();
    let read = reapi::bytestream::ReadRequest {
        resource_name: format!("blobs/{}/{}", blob.hex(), blob.size),
        ..Default::default()
    };
    let data = b"hello".to_vec();
    let update =
        batch_update_blobs_request::Request { digest: Some(digest(&data)), data, ..Default::default() };
    let batch = BatchUpdateBlobsRequest { requests: vec![update], ..Default::default() };
    let find = FindMissingBlobsRequest { blob_digests: vec![digest(b"x")], ..Default::default() };
    vec![
        seed(0, whole),
        seed(0, parts),
        seed(1, framed(&read)),
        seed(2, framed(&batch)),
        seed(3, framed(&find)),
    ]
}

#[test]
fn bodies_of_calls_are_answered() {
    let store = Store::new();
    fuzz(&Target { name: "calls", seeds: calls(), words: WORDS, check: &|input| store.call(input) });
}

#[test]
fn trees_are_complete_or_said_not_to_be() {
    let store = Store::new();
    let file = FileNode { name: "a".into(), digest: Some(digest(b"")), ..Default::default() };
    let leaf = Directory { files: vec![file], ..Default::default() };
    let leaf_digest = Some(digest(&leaf.encode_to_vec()));
    let node = DirectoryNode { name: "b".into(), digest: leaf_digest };
    let root = Directory { directories: vec![node], ..leaf.clone() };
    let tree = Tree { root: Some(root.clone()), children: vec![leaf.clone()] };
    let seeds = vec![leaf.encode_to_vec(), root.encode_to_vec(), tree.encode_to_vec()];
    fuzz(&Target { name: "trees", seeds, words: WORDS, check: &|input| store.tree(input) });
}
