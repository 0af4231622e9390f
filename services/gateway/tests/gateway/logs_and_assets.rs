//! Log streams and remote assets.

use crate::support::{Farm, Gateway, SOON};
use axum::{Router, http::StatusCode, routing::get};
use model::DigestFunction;
use reapi::{
    asset::{
        FetchBlobRequest, FetchBlobResponse, FetchDirectoryRequest, PushBlobRequest, PushDirectoryRequest,
        Qualifier, fetch_client::FetchClient, push_client::PushClient,
    },
    bytestream::{
        QueryWriteStatusRequest, ReadRequest, WriteRequest, WriteResponse,
        byte_stream_client::ByteStreamClient,
    },
    logstream::{CreateLogStreamRequest, log_stream_service_client::LogStreamServiceClient},
    protobuf, status,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

async fn write(gateway: &Gateway, name: &str, piece: WriteRequest) -> Result<WriteResponse, Status> {
    let pieces = tokio_stream::iter([WriteRequest { resource_name: name.to_owned(), ..piece }]);
    let written = ByteStreamClient::new(gateway.channel.clone()).write(pieces).await;
    written.map(tonic::Response::into_inner)
}

fn piece(offset: i64, data: &str, finish: bool) -> WriteRequest {
    WriteRequest {
        write_offset: offset,
        data: data.as_bytes().to_vec(),
        finish_write: finish,
        ..WriteRequest::default()
    }
}

async fn read_all(gateway: &Gateway, name: &str, offset: i64) -> Result<String, Status> {
    let request = ReadRequest { resource_name: name.to_owned(), read_offset: offset, read_limit: 0 };
    let mut stream = ByteStreamClient::new(gateway.channel.clone()).read(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(piece) = stream.message().await? {
        all.extend(piece.data);
    }
    Ok(String::from_utf8(all).unwrap())
}

#[tokio::test]
async fn a_log_stream_is_read_as_it_grows() {
    let farm = Farm::start().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let parent = "main".to_owned();
    let created = LogStreamServiceClient::new(one.channel.clone())
        .create_log_stream(CreateLogStreamRequest { parent })
        .await
        .unwrap()
        .into_inner();
    assert!(created.write_resource_name.starts_with(&format!("{}/", created.name)));
    let error = write(&one, &created.name, piece(0, "x", false)).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let error = read_all(&one, &created.write_resource_name, 0).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let forged = format!("{}/0123456789abcdef", created.name);
    let error = write(&one, &forged, piece(0, "x", false)).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");

    // Read at another gateway, before anything is written.
    let request = ReadRequest { resource_name: created.name.clone(), ..ReadRequest::default() };
    let mut reader = ByteStreamClient::new(two.channel.clone()).read(request).await.unwrap().into_inner();
    let (pieces, stream) = mpsc::unbounded_channel();
    let (channel, name) = (one.channel.clone(), created.write_resource_name.clone());
    let writer = tokio::spawn(async move {
        ByteStreamClient::new(channel).write(UnboundedReceiverStream::new(stream)).await
    });
    pieces.send(WriteRequest { resource_name: name.clone(), ..piece(0, "one ", false) }).unwrap();
    let first = tokio::time::timeout(SOON, reader.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.data, b"one ");
    pieces.send(piece(4, "two ", false)).unwrap();
    let second = tokio::time::timeout(SOON, reader.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(second.data, b"two ");
    drop(pieces);
    assert_eq!(writer.await.unwrap().unwrap().into_inner().committed_size, 8);

    let asked = QueryWriteStatusRequest { resource_name: name.clone() };
    let progress = ByteStreamClient::new(two.channel.clone()).query_write_status(asked).await.unwrap();
    assert_eq!((progress.get_ref().committed_size, progress.get_ref().complete), (8, false));
    assert!(write(&two, &name, piece(4, "overwritten", false)).await.is_err());
    assert_eq!(write(&two, &name, piece(8, "three", true)).await.unwrap().committed_size, 13);
    assert_eq!(reader.message().await.unwrap().unwrap().data, b"three");
    assert_eq!(reader.message().await.unwrap(), None);
    assert!(write(&two, &name, piece(13, "more", false)).await.is_err());
    assert_eq!(read_all(&one, &created.name, 0).await.unwrap(), "one two three");
    assert_eq!(read_all(&one, &created.name, 6).await.unwrap(), "o three");
    let unknown = format!("main/logstreams/{}", uuid::Uuid::new_v4().simple());
    assert_eq!(read_all(&one, &unknown, 0).await.unwrap_err().code(), Code::NotFound);
}

fn qualifier(name: &str, value: &str) -> Qualifier {
    Qualifier { name: name.into(), value: value.into() }
}

fn blob_request(uri: &str, qualifiers: Vec<Qualifier>) -> FetchBlobRequest {
    FetchBlobRequest {
        instance_name: "main".into(),
        uris: vec![uri.to_owned()],
        qualifiers,
        ..FetchBlobRequest::default()
    }
}

async fn fetch(gateway: &Gateway, request: FetchBlobRequest) -> Result<FetchBlobResponse, Status> {
    Ok(FetchClient::new(gateway.channel.clone()).fetch_blob(request).await?.into_inner())
}

async fn code(gateway: &Gateway, request: FetchBlobRequest) -> Code {
    Code::from_i32(fetch(gateway, request).await.unwrap().status.unwrap().code)
}

async fn origin() -> String {
    let slow = async || {
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        "late"
    };
    let router = Router::new()
        .route("/hello", get(async || "hello"))
        .route("/forbidden", get(async || StatusCode::FORBIDDEN))
        .route("/slow", get(slow));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

#[tokio::test]
async fn assets_are_fetched_and_checked() {
    const HELLO: &str = "sha256-LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let origin = origin().await;
    let at = |path: &str, qualifiers| blob_request(&format!("{origin}{path}"), qualifiers);

    let hello = DigestFunction::Sha256.digest(b"hello");
    let response = fetch(&gateway, at("/hello", vec![qualifier("checksum.sri", HELLO)])).await.unwrap();
    assert_eq!(response.status.unwrap().code, 0);
    assert_eq!(response.blob_digest, Some(reapi::digest::to_proto(&hello)));
    assert_eq!(response.digest_function, 1);
    assert_eq!(farm.cas.get(&hello).await.unwrap().unwrap(), "hello");
    let blake = FetchBlobRequest { digest_function: 9, ..at("/hello", Vec::new()) };
    let response = fetch(&gateway, blake).await.unwrap();
    let digest = reapi::digest::to_proto(&DigestFunction::Blake3.digest(b"hello"));
    assert_eq!((response.digest_function, response.blob_digest), (9, Some(digest)));

    let wrong = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    assert_eq!(code(&gateway, at("/hello", vec![qualifier("checksum.sri", wrong)])).await, Code::Aborted);
    assert_eq!(code(&gateway, at("/absent", Vec::new())).await, Code::NotFound);
    assert_eq!(code(&gateway, at("/forbidden", Vec::new())).await, Code::PermissionDenied);
    assert_eq!(code(&gateway, blob_request("file:///etc/passwd", Vec::new())).await, Code::PermissionDenied);
    assert_eq!(code(&gateway, blob_request("urn:x:y", Vec::new())).await, Code::NotFound);
    let limit = Some(protobuf::Duration { seconds: 0, nanos: 100_000_000 });
    let slow = FetchBlobRequest { timeout: limit, ..at("/slow", Vec::new()) };
    assert_eq!(code(&gateway, slow).await, Code::DeadlineExceeded);
    let second = FetchBlobRequest {
        uris: vec![format!("{origin}/absent"), format!("{origin}/hello")],
        ..at("", Vec::new())
    };
    assert_eq!(fetch(&gateway, second).await.unwrap().uri, format!("{origin}/hello"));

    let error = fetch(&gateway, at("/hello", vec![qualifier("x", "1")])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let violations = status::field_violations(&status::rpc_status(&error));
    assert_eq!(violations[0].description, "\"x\" not supported");
    let none = FetchBlobRequest { uris: Vec::new(), ..at("", Vec::new()) };
    assert_eq!(fetch(&gateway, none).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn g13_assets_come_from_no_closed_address_and_through_no_redirect_to_one() {
    let closed = origin().await;
    let port = closed.strip_prefix("http://127.0.0.1:").unwrap().to_owned();
    let to = format!("http://localhost:{port}/hello");
    let redirect = async move || axum::response::Redirect::temporary(&to);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let open = listener.local_addr().unwrap();
    let router = Router::new().route("/elsewhere", get(redirect)).route("/here", get(async || "here"));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let mut farm = Farm::start().await;
    farm.settings.fetch_hosts = vec![open.to_string().parse().unwrap()];
    let gateway = farm.gateway().await;
    let hosts = [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::]",
        "user:pass@localhost",
        "example.com@127.0.0.1",
    ];
    let urls = hosts.map(|host| format!("http://{host}:{port}/hello")).into_iter();
    let others = ["http://169.254.169.254/latest".to_owned(), "http://127.0.0.1:6379/".to_owned()];
    for url in urls.chain(others).chain([format!("http://{open}/elsewhere")]) {
        let status = fetch(&gateway, blob_request(&url, Vec::new())).await.unwrap().status.unwrap();
        assert_eq!(Code::from_i32(status.code), Code::PermissionDenied, "{url}: {status:?}");
        assert!(status.message.contains("fetch_hosts"), "{url}: {status:?}");
    }
    assert_eq!(code(&gateway, blob_request(&format!("http://{open}/here"), Vec::new())).await, Code::Ok);
}

#[tokio::test]
async fn what_was_pushed_is_fetched_by_exactly_its_name() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let blob = farm.put(b"pushed".to_vec()).await;
    let uri = "urn:fdc:example:thing".to_owned();
    let push = PushBlobRequest {
        instance_name: "main".into(),
        uris: vec![uri.clone()],
        qualifiers: vec![qualifier("commit", "abc"), qualifier("b", "2")],
        blob_digest: Some(reapi::digest::to_proto(&blob)),
        ..PushBlobRequest::default()
    };
    let mut pushes = PushClient::new(gateway.channel.clone());
    pushes.push_blob(push.clone()).await.unwrap();
    let qualifiers = vec![qualifier("b", "2"), qualifier("commit", "abc")];
    let response = fetch(&gateway, blob_request(&uri, qualifiers.clone())).await.unwrap();
    assert_eq!(response.blob_digest, Some(reapi::digest::to_proto(&blob)));
    let error = fetch(&gateway, blob_request(&uri, vec![qualifier("commit", "abc")])).await.unwrap_err();
    assert_eq!(
        error.code(),
        Code::InvalidArgument,
        "it is not this one, and the qualifier means nothing else"
    );
    let far = Some(protobuf::Timestamp { seconds: 4_000_000_000, nanos: 0 });
    let young = FetchBlobRequest { oldest_content_accepted: far, ..blob_request(&uri, qualifiers) };
    assert!(fetch(&gateway, young).await.is_err());

    let read_only = PushBlobRequest { instance_name: "ro".into(), ..push.clone() };
    assert_eq!(pushes.push_blob(read_only).await.unwrap_err().code(), Code::PermissionDenied);
    let absent = reapi::digest::to_proto(&DigestFunction::Sha256.digest(b"absent"));
    let error = pushes.push_blob(PushBlobRequest { blob_digest: Some(absent), ..push }).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);

    let root = farm.put(Vec::new()).await;
    let push = PushDirectoryRequest {
        instance_name: "main".into(),
        uris: vec![uri.clone()],
        root_directory_digest: Some(reapi::digest::to_proto(&root)),
        ..PushDirectoryRequest::default()
    };
    pushes.push_directory(push).await.unwrap();
    let request =
        FetchDirectoryRequest { instance_name: "main".into(), uris: vec![uri], ..Default::default() };
    let mut fetches = FetchClient::new(gateway.channel.clone());
    let response = fetches.fetch_directory(request.clone()).await.unwrap().into_inner();
    assert_eq!(response.root_directory_digest, Some(reapi::digest::to_proto(&root)));
    let other = FetchDirectoryRequest { uris: vec!["urn:other".into()], ..request };
    let response = fetches.fetch_directory(other).await.unwrap().into_inner();
    assert_eq!(response.status.unwrap().code, i32::from(Code::NotFound));
}
