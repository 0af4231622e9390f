//! Checks 150–153: remote assets.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::DigestFunction;
use prost::Message as _;
use reapi::{
    asset::{FetchBlobRequest, FetchBlobResponse, FetchDirectoryRequest, PushBlobRequest, Qualifier},
    protobuf::Timestamp,
    status::{BadRequest, unpack},
};
use tonic::{Code, Status};

use crate::{
    check::{Check, check},
    context::{Cx, within},
    names::{fresh, fresh_text},
    origin::Origin,
    stop::{Judged, Stop, describe, fail, has_code, named, need, pass, refused, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(150, I, Must, Nothing, "an unsupported qualifier is refused by name", qualifiers),
    check!(151, I, Must, Nothing, "fetched content is verified, and failures are distinguished", outcomes),
    check!(
        152,
        I,
        Should,
        Nothing,
        "fetched content is in the store, and is fetched again when too old",
        stored
    ),
    check!(153, I, Must, Nothing, "a fetch returns pushed content", push),
];

const ABSENT: &str = "the server does not implement FetchBlob";

fn qualifier(name: &str, value: &str) -> Qualifier {
    Qualifier { name: name.into(), value: value.into() }
}

fn request(cx: &Cx, uri: &str, qualifiers: Vec<Qualifier>) -> FetchBlobRequest {
    FetchBlobRequest {
        instance_name: cx.client.instance.clone(),
        uris: vec![uri.to_owned()],
        qualifiers,
        ..FetchBlobRequest::default()
    }
}

async fn fetch(cx: &Cx, request: FetchBlobRequest) -> Result<FetchBlobResponse, Status> {
    Ok(cx.client.fetch().fetch_blob(request).await?.into_inner())
}

/// Calls `FetchBlob`; skips the check if the server does not implement it.
async fn fetched(cx: &Cx, request: FetchBlobRequest) -> Result<FetchBlobResponse, Stop> {
    let answer = within(Duration::from_secs(20), "FetchBlob", fetch(cx, request)).await?;
    match answer {
        Ok(response) => Ok(response),
        Err(status) if status.code() == Code::Unimplemented => Err(Stop::Skip(ABSENT.into())),
        Err(status) => Err(Stop::Fail(format!("FetchBlob is answered with {}", describe(&status)))),
    }
}

async fn origin(cx: &Cx, content: &[u8]) -> Result<Origin, Stop> {
    match Origin::start(&cx.options.origin_host, content.to_vec()).await {
        Ok(origin) => Ok(origin),
        Err(error) => Err(Stop::Fail(format!("the tool cannot serve anything: {error}"))),
    }
}

fn sri(content: &[u8]) -> Qualifier {
    let hash = DigestFunction::Sha256.digest(content).hash;
    qualifier("checksum.sri", &format!("sha256-{}", STANDARD.encode(hash)))
}

async fn qualifiers(cx: &Cx) -> Judged {
    const NAME: &str = "conform.no-such-qualifier";
    let unknown = vec![qualifier(NAME, "1")];
    let request = request(cx, "http://127.0.0.1:9/nothing", unknown.clone());
    let blob = match fetch(cx, request).await {
        Err(status) if status.code() == Code::Unimplemented => skip!("{ABSENT}"),
        answer => refused(answer, &[Code::InvalidArgument], "FetchBlob with an unknown qualifier")?,
    };
    let violations: Vec<_> = reapi::rpc::Status::decode(blob.details())
        .unwrap_or_default()
        .details
        .iter()
        .filter_map(|any| unpack::<BadRequest>(any, "google.rpc.BadRequest"))
        .flat_map(|bad| bad.field_violations)
        .collect();
    need!(
        violations.iter().any(|one| one.field == "qualifiers.name" && one.description.contains(NAME)),
        "the refusal of an unknown qualifier has the violations {violations:?}"
    );
    let request = FetchDirectoryRequest {
        instance_name: cx.client.instance.clone(),
        uris: vec!["http://127.0.0.1:9/nothing".into()],
        qualifiers: unknown,
        ..FetchDirectoryRequest::default()
    };
    let answer = cx.client.fetch().fetch_directory(request).await;
    let codes = [Code::InvalidArgument, Code::Unimplemented];
    refused(answer, &codes, "FetchDirectory with an unknown qualifier")?;
    pass()
}

async fn outcomes(cx: &Cx) -> Judged {
    let content = fresh(3000);
    let origin = origin(cx, &content).await?;
    let good = fetched(cx, request(cx, &origin.url("/blob"), vec![sri(&content)])).await?;
    let (code, message) = good.status.as_ref().map_or((0, ""), |status| (status.code, &*status.message));
    if code != 0 && origin.hits() == 0 && !matches!(&*cx.options.origin_host, "127.0.0.1" | "localhost") {
        skip!("the server cannot reach {}: {message}", origin.url("/blob"));
    }
    has_code(good.status.as_ref(), &[Code::Ok], "a fetch with the right checksum")?;
    let wrong = fetched(cx, request(cx, &origin.url("/blob?wrong"), vec![sri(b"something else")])).await?;
    let (code, message) = wrong.status.as_ref().map_or((0, ""), |status| (status.code, &*status.message));
    need!(code != 0, "a fetch with a wrong checksum succeeds");
    need!(
        Code::from(code) != Code::NotFound,
        "a fetch with a wrong checksum ends with {}",
        named(Code::from(code), message)
    );
    let absent = fetched(cx, request(cx, &origin.url("/absent"), Vec::new())).await?;
    has_code(absent.status.as_ref(), &[Code::NotFound], "a fetch of a resource that the origin lacks")?;
    let forbidden = fetched(cx, request(cx, &origin.url("/forbidden"), Vec::new())).await?;
    has_code(forbidden.status.as_ref(), &[Code::PermissionDenied], "a fetch that the origin refuses")?;
    let slow = FetchBlobRequest {
        timeout: Some(reapi::protobuf::Duration { seconds: 1, nanos: 0 }),
        ..request(cx, &origin.url("/slow"), Vec::new())
    };
    let slow = fetched(cx, slow).await?;
    has_code(slow.status.as_ref(), &[Code::DeadlineExceeded], "a fetch that takes longer than its timeout")?;
    pass()
}

fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(now.as_secs()).unwrap_or_default(), nanos: 0 }
}

async fn stored(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(3000));
    let origin = origin(cx, &content).await?;
    let url = origin.url(&format!("/blob?{}", fresh_text()));
    let first = fetched(cx, request(cx, &url, Vec::new())).await?;
    has_code(first.status.as_ref(), &[Code::Ok], "a fetch")?;
    let sha256 = client.of_function(DigestFunction::Sha256);
    let expected = sha256.digest(&content);
    need!(first.blob_digest.as_ref() == Some(&expected), "a fetch names {:?}", first.blob_digest);
    need!(first.uri == url, "a fetch of {url} names {:?}", first.uri);
    let value = sha256.function_value();
    need!(
        first.digest_function == value,
        "a fetch that names no digest function is answered with number {}",
        first.digest_function
    );
    need!(sha256.read(&expected).await? == content, "the fetched content is not in the store");
    let asked =
        FetchBlobRequest { digest_function: client.function_value(), ..request(cx, &url, Vec::new()) };
    let answer = fetched(cx, asked).await?;
    need!(answer.digest_function == client.function_value(), "the digest function is not echoed");
    let before = origin.hits();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let newer = FetchBlobRequest { oldest_content_accepted: Some(now()), ..request(cx, &url, Vec::new()) };
    has_code(fetched(cx, newer).await?.status.as_ref(), &[Code::Ok], "a fetch of new content")?;
    need!(origin.hits() > before, "content that is too old was not fetched again");
    let none = FetchBlobRequest { uris: Vec::new(), ..request(cx, &url, Vec::new()) };
    refused(fetch(cx, none).await, &[Code::InvalidArgument], "a fetch without a URI")?;
    let twice = vec![qualifier("checksum.sri", "sha256-AA=="), qualifier("checksum.sri", "sha256-AB==")];
    let answer = fetch(cx, request(cx, &url, twice)).await;
    refused(answer, &[Code::InvalidArgument], "a fetch with a qualifier twice")?;
    pass()
}

async fn push(cx: &Cx) -> Judged {
    let client = &cx.client;
    let digest = client.put(&fresh(300)).await?;
    let uri = format!("urn:conform:{}", fresh_text());
    let qualifiers = vec![qualifier("conform.kind", "one")];
    let pushed = PushBlobRequest {
        instance_name: client.instance.clone(),
        uris: vec![uri.clone()],
        qualifiers: qualifiers.clone(),
        blob_digest: Some(digest.clone()),
        digest_function: client.function_value(),
        ..PushBlobRequest::default()
    };
    match client.push().push_blob(pushed).await {
        Ok(_) => {}
        Err(status) if status.code() == Code::Unimplemented => {
            skip!("the server does not implement PushBlob")
        }
        Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => {
            skip!("this caller has no permission to push")
        }
        Err(status) => fail!("PushBlob is answered with {}", describe(&status)),
    }
    let asked =
        FetchBlobRequest { digest_function: client.function_value(), ..request(cx, &uri, qualifiers) };
    let found = fetched(cx, asked).await?;
    has_code(found.status.as_ref(), &[Code::Ok], "a fetch of pushed content")?;
    need!(found.blob_digest == Some(digest), "a fetch of pushed content returns other content");
    let other = fetch(cx, request(cx, &uri, vec![qualifier("conform.kind", "two")])).await;
    let is_found = other.is_ok_and(|answer| answer.status.is_none_or(|status| status.code == 0));
    need!(!is_found, "pushed content is found under other qualifiers");
    pass()
}
