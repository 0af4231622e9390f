//! What a caller of a gateway can still do when its key is revoked: nothing, also with what is open.

use std::time::Duration;

use farm::{Farm, Locks, SOON};
use futures::StreamExt as _;
use model::BuildId;
use reapi::{bytestream::QueryWriteStatusRequest, stream::WriteRequest};

use crate::{
    acting,
    check::request,
    gateway_access::capabilities,
    locked::{SHA256, grpc, http, start},
};

#[tokio::test]
async fn a_revoked_key_ends_within_five_seconds() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    capabilities(&web).await.unwrap();
    locks.write_rules_without("web", "");
    let began = std::time::Instant::now();
    while capabilities(&web).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::task::yield_now().await;
    }
    // Rules that cannot be used change nothing.
    let operator = grpc(&locks, &farm, Some(&locks.operator)).await;
    let gateway = farm.take("gateway");
    for (content, fault) in [("", "there are no rules"), ("rules = 1", "invalid type")] {
        locks.write("access.toml", content);
        let log = || gateway.log_text();
        while !log().lines().any(|line| line.contains(fault) && line.contains("the earlier ones apply")) {
            assert!(began.elapsed() < SOON, "{fault}: {}", log());
            capabilities(&operator).await.unwrap();
        }
        capabilities(&operator).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_still_sent_ends_with_the_right_to_it() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let key = farm.submit("web", request(&["sleep", "60"])).await;
    let (client, url) = (http(&locks), farm.http_url());
    let open = async |path: &str, accept: &str| {
        let request = client.get(format!("{url}{path}")).bearer_auth(locks.web.reveal());
        let answer = request.header("accept", accept).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer
    };
    let events = open(&format!("/v1/builds/{key}/events"), "*/*").await;
    let page = open(&format!("/builds/{key}"), "text/event-stream").await;
    locks.write_rules_without("web", "");
    let ended = async { tokio::join!(events.text(), page.text()) };
    let (events, page) = tokio::time::timeout(Duration::from_secs(8), ended).await.expect("both end");
    assert!(events.is_ok() && page.is_ok());
}

#[tokio::test]
async fn a_request_that_still_arrives_ends_with_the_right_to_it() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    // One byte, and the rest never.
    let slow = || futures::stream::iter([Ok::<_, std::io::Error>("{")]).chain(futures::stream::pending());
    let post =
        http(&locks).post(format!("{}/v1/builds/web", farm.http_url())).bearer_auth(locks.web.reveal());
    let post =
        post.header("content-type", "application/json").body(reqwest::Body::wrap_stream(slow())).send();
    let calls = grpc(&locks, &farm, Some(&locks.web)).await;
    let digest = SHA256.digest(b"whole content");
    let resource = format!("uploads/{}/blobs/{}/{}", BuildId::generate(), digest.hex(), digest.size);
    let part = WriteRequest {
        resource_name: resource.clone(),
        data: bytes::Bytes::from_static(b"whole"),
        ..Default::default()
    };
    let parts = futures::stream::iter([part]).chain(futures::stream::pending());
    let mut bytes = calls.bytes();
    let write = bytes.write(parts);
    let revoke = async {
        let name = QueryWriteStatusRequest { resource_name: resource.clone() };
        let mut asking = calls.bytes();
        while asking.query_write_status(name.clone()).await.unwrap().into_inner().committed_size == 0 {}
        locks.write_rules_without("web", "");
    };
    let ended = async { tokio::join!(post, write, revoke) };
    let (post, write, ()) = tokio::time::timeout(Duration::from_secs(8), ended).await.expect("both end");
    assert!(post.is_err() || post.is_ok_and(|answer| answer.status().is_client_error()));
    write.unwrap_err();
}
