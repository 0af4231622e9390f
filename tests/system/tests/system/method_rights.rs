//! Every method of the gateway's gRPC services, tried by callers without a key and of another zone.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use build_events::service::{OrderedBuildEvent, StreamId, ToolStreamRequest};
use bytes::{Buf as _, BufMut as _, Bytes};
use farm::{Locks, SOON};
use model::{BlobDigest, OutputStream};
use prost::Message as _;
use reapi::{
    asset::{FetchBlobRequest, FetchDirectoryRequest, PushBlobRequest, PushDirectoryRequest},
    bytestream::{QueryWriteStatusRequest, ReadRequest},
    execution::{
        BatchReadBlobsRequest, BatchUpdateBlobsRequest, ExecuteRequest, FindMissingBlobsRequest,
        GetActionResultRequest, GetTreeRequest, SpliceBlobRequest, SplitBlobRequest,
        UpdateActionResultRequest, WaitExecutionRequest, batch_update_blobs_request,
    },
    logstream::{CreateLogStreamRequest, LogStream},
    longrunning::{
        CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, Operation, WaitOperationRequest,
    },
    stream::WriteRequest,
};
use serde_json::Value;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::{
    acting,
    locked::{Calls, SHA256, grpc, start},
    zones::{APART, execute, proto, upload, upload_action, zoned},
};

/// Methods that answer a caller without a key.
const FOR_ALL: [&str; 2] = [
    // Load balancers ask without a key whether the process serves.
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
];

/// Methods that answer a caller of another zone, because they show nothing of the zone, or only what the caller has.
const FOR_OTHERS: [&str; 12] = [
    // From the servers that the request names; what was pushed for it into another zone is not found.
    "/build.bazel.remote.asset.v1.Fetch/FetchBlob",
    "/build.bazel.remote.asset.v1.Fetch/FetchDirectory",
    // What the gateway supports is the same for all.
    "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities",
    // Each blob has a status of its own: missing, as one that no zone has.
    "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchReadBlobs",
    "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs",
    // Writes into the caller's zone.
    "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchUpdateBlobs",
    // Runs in the caller's group, whose zone lacks the blobs.
    "/build.bazel.remote.execution.v2.Execution/Execute",
    // Makes a log stream of the caller, with a random name.
    "/build.bazel.remote.logstream.v1.LogStreamService/CreateLogStream",
    // Reports uploads of the caller's zone.
    "/google.bytestream.ByteStream/QueryWriteStatus",
    "/google.bytestream.ByteStream/Write of a blob",
    // Its name is random: only the writer can have passed it on.
    "/google.bytestream.ByteStream/Read of a log stream",
    // Events of this kind are not stored.
    "/google.devtools.build.v1.PublishBuildEvent/PublishLifecycleEvent",
];

/// Methods that need the writer's token, which an operator does not have.
const WITH_A_TOKEN: [&str; 1] = ["/google.bytestream.ByteStream/Write of a log stream"];

const PUSH_BLOB: &str = "/build.bazel.remote.asset.v1.Push/PushBlob";

/// The message as it is on the wire.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Calls a method of any kind with one message, and returns the first message of the answer. On the wire all kinds of
/// methods are the same.
async fn call(calls: &Calls, path: &str, message: Vec<u8>) -> Result<Option<Bytes>, Status> {
    let mut request = Request::new(futures::stream::iter([Bytes::from(message)]));
    *request.metadata_mut() = calls.headers.clone();
    let mut client = Grpc::new(calls.channel.clone());
    client.ready().await.unwrap();
    let first = async {
        let answer = client.streaming(request, path.parse().unwrap(), Raw).await?;
        answer.into_inner().message().await
    };
    tokio::time::timeout(SOON, first).await.unwrap_or_else(|_| panic!("{path} is not answered"))
}

/// The sources of this tree and of the packages that bring services of gRPC, as the build uses them.
fn sources() -> Vec<String> {
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--offline", "--format-version", "1"]).current_dir(farm::repository());
    let output = metadata.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_gateway = |package: &&Value| {
        let dependencies = package["dependencies"].as_array().unwrap();
        package["source"].is_string() && dependencies.iter().any(|it| it["name"] == "tonic")
    };
    let packages = metadata["packages"].as_array().unwrap().iter().filter(of_gateway);
    let folders = packages.map(|package| PathBuf::from(package["manifest_path"].as_str().unwrap()));
    let mut files: Vec<PathBuf> = Vec::new();
    folders.for_each(|manifest| collect(manifest.with_file_name("src"), &mut files));
    let ours =
        tidy::files("rs").into_iter().filter(|it| it.path.starts_with("services/") || is_shared(&it.path));
    let theirs = files.into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    ours.map(|file| file.text).chain(theirs).collect()
}

fn is_shared(path: &str) -> bool {
    path.starts_with("shared/") && !path.starts_with("shared/callers/src/testing")
}

fn collect(folder: PathBuf, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

/// The paths of methods in string literals: `/package.Service/Method`.
fn methods() -> BTreeSet<String> {
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric());
    let is_path = |text: &&str| {
        let Some((service, method)) = text.strip_prefix('/').and_then(|it| it.split_once('/')) else {
            return false;
        };
        let mut parts = service.rsplit('.');
        let name = parts.next().is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
        name && parts.next().is_some() && service.split('.').all(is_word) && is_word(method)
    };
    let sources = sources();
    sources.iter().flat_map(|text| text.split('"').filter(is_path)).map(str::to_owned).collect()
}

/// Group `web` with an execution, blobs and a log stream, in a zone that no other group has.
struct Known {
    secret: String,
    blob: BlobDigest,
    folder: BlobDigest,
    action: BlobDigest,
    operation: String,
    /// Resource names of the output of the operation, and of a log stream with the token of its writer.
    live: String,
    log: LogStream,
    /// Its execution ends when no client waits.
    _stream: Streaming<Operation>,
}

impl Known {
    /// Executions, blobs and a log stream of this caller; the last execution ends when the file exists.
    async fn of(web: &Calls, may_end: &std::path::Path) -> Self {
        let secret = uuid();
        let blob = upload(web, &[secret.as_bytes(), b""]).await.remove(0);
        let folder = reapi::execution::Directory {
            files: vec![reapi::execution::FileNode {
                name: secret.clone(),
                digest: Some(proto(&blob)),
                ..Default::default()
            }],
            ..Default::default()
        };
        let folder = upload(web, &[&folder.encode_to_vec()]).await.remove(0);
        let action = upload_action(web, &format!("echo {secret}"), &SHA256.empty()).await;
        execute(web, &action).await.unwrap();
        let script = format!("echo {secret}; while ! test -e {}; do sleep 0.05; done", may_end.display());
        let runs = upload_action(web, &script, &SHA256.empty()).await;
        let request = ExecuteRequest { action_digest: Some(proto(&runs)), ..Default::default() };
        let mut stream = web.execution().execute(request).await.unwrap().into_inner();
        let operation = stream.message().await.unwrap().unwrap().name;
        let execution = operation.strip_prefix("operations/").unwrap().replace('/', ".");
        let live = format!("logstreams/live.{execution}.{}", OutputStream::Stdout.as_str());
        let log = write_log(web).await;
        Self { secret, blob, folder, action, operation, live, log, _stream: stream }
    }

    /// Fails if an answer shows content, or a digest that its request does not name.
    fn assert_hidden(&self, what: &str, request: &[u8], answer: &str) {
        assert!(!answer.contains(&self.secret), "{what}: {answer}");
        let hash = self.blob.hex();
        let is_named = String::from_utf8_lossy(request).contains(&hash);
        assert!(is_named || !answer.contains(&hash), "{what}: {answer}");
    }

    /// Requests for what `web` has, at least one, each with the path of the method and what it is for.
    fn requests(&self, path: &str) -> Vec<(String, Vec<u8>)> {
        let read = |resource_name| ReadRequest { resource_name, ..Default::default() }.encode_to_vec();
        let of = |what: &str, request| (format!("{path} of {what}"), request);
        let blob = format!("{}/{}", self.blob.hex(), self.blob.size);
        match path.rsplit_once('/').unwrap().1 {
            "Read" => vec![
                of("a blob", read(format!("blobs/{blob}"))),
                of("a compressed blob", read(format!("compressed-blobs/zstd/{blob}"))),
                of("an output", read(self.live.clone())),
                of("a log stream", read(self.log.name.clone())),
            ],
            "Write" => {
                let data = || Bytes::from(self.secret.clone());
                let write = |resource_name| {
                    WriteRequest { resource_name, data: data(), finish_write: true, ..Default::default() }
                        .encode_to_vec()
                };
                vec![
                    of("a blob", write(format!("uploads/{}/blobs/{blob}", uuid()))),
                    of("a log stream", write(format!("{}/{}", self.log.name, "0".repeat(32)))),
                ]
            }
            "PublishBuildToolEventStream" => {
                let project_id = format!("forebay/web/worker-1.0a/{}/1", model::BuildId::generate());
                let stream_id = Some(StreamId { build_id: uuid(), invocation_id: uuid(), component: 3 });
                let event = OrderedBuildEvent { stream_id, sequence_number: 1, ..Default::default() };
                let ordered_build_event = Some(event);
                let request = ToolStreamRequest { ordered_build_event, project_id, ..Default::default() };
                vec![of("a build", request.encode_to_vec())]
            }
            method => vec![(path.to_owned(), self.request(method))],
        }
    }

    /// A request for what `web` has; empty for methods whose requests name nothing.
    fn request(&self, method: &str) -> Vec<u8> {
        let (digest, action) = (Some(proto(&self.blob)), Some(proto(&self.action)));
        let name = self.operation.clone();
        let uris = vec!["https://127.0.0.1:1/asset".to_owned()];
        match method {
            "Execute" => ExecuteRequest { action_digest: action, ..Default::default() }.encode_to_vec(),
            "WaitExecution" => WaitExecutionRequest { name }.encode_to_vec(),
            "GetOperation" => GetOperationRequest { name }.encode_to_vec(),
            "WaitOperation" => WaitOperationRequest { name, ..Default::default() }.encode_to_vec(),
            "CancelOperation" => CancelOperationRequest { name }.encode_to_vec(),
            "DeleteOperation" => DeleteOperationRequest { name }.encode_to_vec(),
            "GetActionResult" => {
                GetActionResultRequest { action_digest: action, ..Default::default() }.encode_to_vec()
            }
            "UpdateActionResult" => {
                let action_result = Some(reapi::execution::ActionResult::default());
                UpdateActionResultRequest { action_digest: action, action_result, ..Default::default() }
                    .encode_to_vec()
            }
            "FetchBlob" => FetchBlobRequest { uris, ..Default::default() }.encode_to_vec(),
            "FetchDirectory" => FetchDirectoryRequest { uris, ..Default::default() }.encode_to_vec(),
            "PushBlob" => PushBlobRequest { uris, blob_digest: digest, ..Default::default() }.encode_to_vec(),
            "PushDirectory" => {
                let root_directory_digest = Some(proto(&self.folder));
                PushDirectoryRequest { uris, root_directory_digest, ..Default::default() }.encode_to_vec()
            }
            _ => self.blob_request(method),
        }
    }

    /// The same for the methods of the store and of streams of bytes.
    fn blob_request(&self, method: &str) -> Vec<u8> {
        let (digest, folder) = (Some(proto(&self.blob)), Some(proto(&self.folder)));
        match method {
            "FindMissingBlobs" => {
                let blob_digests = digest.into_iter().collect();
                FindMissingBlobsRequest { blob_digests, ..Default::default() }.encode_to_vec()
            }
            "BatchReadBlobs" => {
                let digests = digest.into_iter().collect();
                BatchReadBlobsRequest { digests, ..Default::default() }.encode_to_vec()
            }
            "BatchUpdateBlobs" => {
                let data = b"own".to_vec();
                let digest = Some(proto(&SHA256.digest(&data)));
                let requests =
                    vec![batch_update_blobs_request::Request { digest, data, ..Default::default() }];
                BatchUpdateBlobsRequest { requests, ..Default::default() }.encode_to_vec()
            }
            "GetTree" => GetTreeRequest { root_digest: folder, ..Default::default() }.encode_to_vec(),
            "SplitBlob" => SplitBlobRequest { blob_digest: digest, ..Default::default() }.encode_to_vec(),
            "SpliceBlob" => {
                let chunk_digests = digest.iter().cloned().collect();
                SpliceBlobRequest { blob_digest: digest, chunk_digests, ..Default::default() }.encode_to_vec()
            }
            "QueryWriteStatus" => {
                let resource_name = format!("uploads/{}/blobs/{}", uuid(), self.blob);
                QueryWriteStatusRequest { resource_name }.encode_to_vec()
            }
            "CreateLogStream" => CreateLogStreamRequest { parent: String::new() }.encode_to_vec(),
            _ => Vec::new(),
        }
    }
}

/// Writes a complete log stream: a permitted read of it ends.
async fn write_log(web: &Calls) -> LogStream {
    let made = call(web, "/build.bazel.remote.logstream.v1.LogStreamService/CreateLogStream", vec![]).await;
    let log = LogStream::decode(made.unwrap().unwrap()).unwrap();
    let resource_name = log.write_resource_name.clone();
    let data = Bytes::from_static(b"a line");
    let write = WriteRequest { resource_name, data, finish_write: true, ..Default::default() };
    call(web, reapi::stream::WRITE, write.encode_to_vec()).await.unwrap();
    log
}

fn uuid() -> String {
    model::ExecutionId::generate().to_string()
}

fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::PermissionDenied | Code::Unauthenticated | Code::NotFound | Code::Unimplemented
    )
}

/// The services of which the gateway has a method.
async fn served(operator: &Calls, methods: &BTreeSet<String>) -> BTreeSet<String> {
    let mut served = BTreeSet::new();
    for path in methods {
        let answer = call(operator, path, Vec::new()).await;
        if !answer.is_err_and(|status| status.code() == Code::Unimplemented) {
            served.insert(path.rsplit_once('/').unwrap().0.to_owned());
        }
    }
    served
}

/// The number of services that the sources add to a server of gRPC.
fn added() -> usize {
    let adds = |text: &str| text.matches("add_service(").count() + text.matches("Routes::new(").count();
    let is_server =
        |path: &str| ["services/gateway/src/", "shared/cas_grpc/src/"].iter().any(|it| path.starts_with(it));
    tidy::files("rs").iter().filter(|file| is_server(&file.path)).map(|file| adds(&file.text)).sum()
}

fn all<const N: usize>(paths: [&str; N]) -> BTreeSet<String> {
    paths.into_iter().map(str::to_owned).collect()
}

/// The requests that these callers are not refused, of all methods.
async fn answered(
    callers: &[Calls],
    methods: &BTreeSet<String>,
    known: &Known,
    is_refusal: fn(&Status) -> bool,
) -> BTreeSet<String> {
    let mut answered = BTreeSet::new();
    for path in methods {
        for (what, request) in known.requests(path) {
            for calls in callers {
                let answer = call(calls, path, request.clone()).await;
                known.assert_hidden(&what, &request, &format!("{answer:?}"));
                if !answer.is_err_and(|status| is_refusal(&status)) {
                    answered.insert(what.clone());
                }
            }
        }
    }
    answered
}

#[tokio::test]
async fn every_method_refuses_callers_without_a_key_and_of_another_zone() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(acting::builder(), APART)).await;
    let calls = async |key| grpc(&locks, &farm, key).await;
    let may_end = farm.folder().join("may-end");
    let known = Known::of(&calls(Some(&locks.web)).await, &may_end).await;
    let operator = calls(Some(&locks.operator)).await.and("x-forebay-group", "web");
    call(&operator, PUSH_BLOB, known.request("PushBlob")).await.unwrap();
    let methods = methods();
    let no_key = |status: &Status| status.code() == Code::Unauthenticated;
    let to_all = answered(&[calls(None).await], &methods, &known, no_key).await;
    let other = calls(Some(&locks.other)).await;
    let others = [other.clone(), other.and("x-forebay-group", "web")];
    let to_others = answered(&others, &methods, &known, is_refusal).await;
    let open = &all(FOR_ALL) | &all(FOR_OTHERS);
    assert_eq!((to_all, to_others), (all(FOR_ALL), open));
    // The list above misses no service.
    let served = served(&operator, &methods).await;
    assert_eq!(served.len(), added(), "{served:?}");
    // An operator of the group gets answers to the same requests.
    for path in methods.iter().filter(|path| served.contains(path.rsplit_once('/').unwrap().0)) {
        for (what, request) in known.requests(path).into_iter().filter(|(_, request)| !request.is_empty()) {
            let answer = call(&operator, path, request).await;
            let is_refused = answer.as_ref().is_err_and(is_refusal);
            assert_eq!(is_refused, WITH_A_TOKEN.contains(&what.as_str()), "{what}: {answer:?}");
        }
    }
    std::fs::write(may_end, "").unwrap();
}
