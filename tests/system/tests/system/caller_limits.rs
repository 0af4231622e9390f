//! How much a caller of a gateway may use, and how long the queue of a group may be.

use std::time::{Duration, Instant};

use farm::{Farm, Locks, SOON};
use futures::future::join_all;
use model::{BuildRequest, Outcome, Priority, State};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    check::{ended, request},
    locked::{grpc, http, start},
};

/// Rights with limits for the caller `other`, before its other rule.
fn limited(limits: &str) -> String {
    format!(
        "[[rules]]\nkey = \"limited\"\ngroups = [\"web\"]\nrights = [\"read\", \"submit\", \"execute\", \"cache-read\", \
         \"blob-write\"]\nlimits = {{ {limits} }}\n"
    )
}

/// Locks, with a caller that has limits.
fn locks_with(limits: &str) -> (Locks, callers::ApiKey) {
    let (locks, key) = (Locks::new(), callers::ApiKey::generate().unwrap());
    let entry = format!("[[keys]]\nname = \"limited\"\nsha256 = \"{}\"\n", key.hash());
    locks.write_rules(&format!("{}{entry}", limited(limits)));
    (locks, key)
}

#[tokio::test]
async fn o1_a_caller_that_submits_too_fast_is_asked_to_wait() {
    let (locks, key) = locks_with("builds_per_second = 0.5, builds_at_once = 3");
    let farm = start(&locks, Farm::builder().only(&["enqueuer", "gateway"])).await;
    let (client, url) = (http(&locks), farm.http_url());
    let submit = |key: &callers::ApiKey| {
        let request = client.post(format!("{url}/v1/builds/web")).bearer_auth(key.reveal());
        request.json(&json!({ "command": ["true"] })).send()
    };
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(submit(&key).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [201, 201, 201, 429, 429]);
    let refused = submit(&key).await.unwrap();
    let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (body["error"].as_str(), body["retry_after_seconds"].as_u64()),
        (Some("limit_reached"), Some(after))
    );
    assert!(body["message"].as_str().unwrap().contains("0.5 (3 at once)"), "{body}");
    // Others are not affected, and the caller is served once it has waited as it was asked to.
    assert_eq!(submit(&locks.web).await.unwrap().status(), 201);
    tokio::time::sleep(Duration::from_secs(after)).await;
    assert_eq!(submit(&key).await.unwrap().status(), 201);
}

#[tokio::test]
async fn calls_above_the_limit_are_refused_over_http_and_grpc() {
    let (locks, key) = locks_with("calls_per_second = 0.1, calls_at_once = 2");
    let farm = start(&locks, Farm::builder().only(&["enqueuer", "gateway"])).await;
    let calls = grpc(&locks, &farm, Some(&key)).await;
    let ask = async || {
        calls
            .capabilities()
            .get_capabilities(reapi::execution::GetCapabilitiesRequest::default())
            .await
            .map(drop)
    };
    ask().await.unwrap();
    ask().await.unwrap();
    let status = ask().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let delay = reapi::status::retry_delay(&reapi::status::rpc_status(&status)).unwrap();
    assert!((Duration::from_secs(1)..Duration::from_secs(11)).contains(&delay), "{delay:?}");
    // The limit is that of the caller, by whatever API it calls.
    let client = http(&locks);
    let get = async |key: &callers::ApiKey| {
        let url = format!("{}/v1/builds/web", farm.http_url());
        client.get(url).bearer_auth(key.reveal()).send().await.unwrap().status().as_u16()
    };
    assert_eq!((get(&key).await, get(&locks.web).await), (429, 200));
}

#[tokio::test]
async fn h5_idle_watchers_of_one_key_are_limited() {
    const WATCHES: usize = 20;
    let (locks, key) = locks_with("watches = 20");
    let farm = start(&locks, Farm::builder().only(&["enqueuer", "gateway"])).await;
    let build = farm.submit("web", request(&["sleep", "60"])).await;
    let (client, url) = (http(&locks), farm.http_url());
    let events = format!("{url}/v1/builds/{build}/events");
    let watch = |key: &callers::ApiKey| client.get(&events).bearer_auth(key.reveal()).send();
    let mut answers = Vec::new();
    for _ in 0..10 {
        answers.extend(join_all((0..100).map(|_| watch(&key))).await.into_iter().map(Result::unwrap));
    }
    let (open, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert_eq!(open.len(), WATCHES);
    assert!(refused.iter().all(|it| it.status() == 429 && it.headers().contains_key("retry-after")));
    // A live page is a watch, too.
    let page = client.get(format!("{url}/builds/{build}")).bearer_auth(key.reveal());
    assert_eq!(page.header("accept", "text/event-stream").send().await.unwrap().status(), 429);
    assert_eq!(watch(&locks.web).await.unwrap().status(), 200);
    // One that leaves makes room.
    drop(open);
    let began = Instant::now();
    while watch(&key).await.unwrap().status() != 200 {
        assert!(began.elapsed() < SOON, "the watches of clients that left still count");
    }
}

#[tokio::test]
async fn connections_above_the_limit_are_refused_until_others_end() {
    let (locks, key) = locks_with("connections = 2");
    let farm = start(&locks, Farm::builder().only(&["enqueuer", "gateway"])).await;
    let ask = async |calls: &crate::locked::Calls| {
        calls
            .capabilities()
            .get_capabilities(reapi::execution::GetCapabilitiesRequest::default())
            .await
            .map(drop)
    };
    let first = grpc(&locks, &farm, Some(&key)).await;
    let second = grpc(&locks, &farm, Some(&key)).await;
    let third = grpc(&locks, &farm, Some(&key)).await;
    for _ in 0..3 {
        ask(&first).await.unwrap();
        ask(&second).await.unwrap();
    }
    assert_eq!(ask(&third).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(first);
    let began = Instant::now();
    while ask(&third).await.is_err() {
        assert!(began.elapsed() < SOON, "the connection that ended still counts");
    }
    let other = grpc(&locks, &farm, Some(&locks.web)).await;
    ask(&other).await.unwrap();
}

#[tokio::test]
async fn uploads_arrive_as_fast_as_the_caller_may_upload() {
    let (locks, key) = locks_with("upload_bytes_per_second = 500000");
    let farm = start(&locks, crate::acting::builder()).await;
    let upload = async |key: &callers::ApiKey, fill: u8| {
        let data = vec![fill; 1_500_000];
        let digest = reapi::digest::to_proto(&crate::locked::SHA256.digest(&data));
        let one = reapi::execution::batch_update_blobs_request::Request {
            digest: Some(digest),
            data,
            ..Default::default()
        };
        let request = reapi::execution::BatchUpdateBlobsRequest { requests: vec![one], ..Default::default() };
        let began = Instant::now();
        grpc(&locks, &farm, Some(key)).await.cas().batch_update_blobs(request).await.unwrap();
        began.elapsed()
    };
    // 1.5 MB at 0.5 MB per second, of which the first 0.5 MB pass at once.
    let slowed = upload(&key, 1).await;
    assert!(slowed > Duration::from_millis(1900), "{slowed:?}");
    let other = upload(&locks.web, 2).await;
    assert!(other < slowed, "{other:?}");
}

/// The service that queues, the one that the index needs, and a worker.
fn queueing(most: &str) -> farm::Builder {
    Farm::builder().without("gateway").workspaces(1).env("FOREBAY_QUEUE_BUILDS_MAX", most)
}

#[tokio::test]
async fn o1_a_group_that_floods_its_queue_is_refused_and_others_go_on() {
    let farm = queueing("200").start().await;
    // The workspace is in use: all others wait.
    let running = farm.submit("busy", request(&["sleep", "1000"])).await;
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    let flood = async {
        let (mut accepted, mut refused) = (0, Vec::new());
        for _ in 0..60 {
            let calls = (0..50).map(|_| async {
                let group = "flood".parse().unwrap();
                let request = BuildRequest { id: Some(model::BuildId::generate()), ..request(&["true"]) };
                farm.client().create(&group, &request, None).await
            });
            for answer in join_all(calls).await {
                match answer {
                    Ok(_) => accepted += 1,
                    Err(client::ClientError::Api(error)) => refused.push(error),
                    Err(error) => panic!("{error}"),
                }
            }
            if refused.len() > 100 {
                break;
            }
        }
        (accepted, refused)
    };
    let (accepted, refused) = flood.await;
    // For a moment, builds that were added while the queue was measured count twice.
    assert!((100..2000).contains(&accepted), "{accepted} were accepted");
    let error = &refused[0];
    assert_eq!(error.error, model::ErrorCode::LimitReached);
    assert!(error.message.contains("group flood") && error.message.contains("may have 200"), "{error:?}");
    assert!(error.retry_after_seconds.is_some_and(|seconds| seconds >= 1));
    // Publishers on the bus are refused in the same way.
    let published = farm.publish("flood", Priority::Batch, &request(&["true"])).await;
    let record = ended(&farm, &published).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Rejected);
    assert!(record.result().unwrap().reason.as_ref().unwrap().message.contains("queue_builds_max"));
    farm.client().cancel(&running, None).await.unwrap();
    ended(&farm, &running).await;
    let urgent = farm.create("urgent", Priority::Emergency, &["true"]).await;
    let (queued, _) = farm.wait_until(&urgent, SOON, |_| true).await;
    let (began, _) = farm.wait_until(&urgent, SOON, |record| record.state() != State::Enqueued).await;
    // Each build of the flood writes at least four messages: the build in progress ends, and few others pass by.
    let meanwhile = began.0 - queued.0;
    assert!(meanwhile < 60, "{meanwhile} messages of builds before the urgent one begins");
}

#[tokio::test]
async fn a_group_that_sends_large_builds_does_not_fill_the_log_of_all() {
    let farm = queueing("0").env("FOREBAY_QUEUE_MIB_PER_HOUR", "1").start().await;
    let create = async |group: &str| {
        let env = [("LARGE".to_owned(), "x".repeat(100_000))].into();
        let request = BuildRequest { id: Some(model::BuildId::generate()), env, ..request(&["true"]) };
        farm.client().create(&group.parse().unwrap(), &request, None).await
    };
    let mut accepted = 0;
    let refused = loop {
        match create("large").await {
            Ok(_) if accepted < 10 => accepted += 1,
            Ok(_) => panic!("all were accepted"),
            Err(client::ClientError::Api(error)) => break error,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(accepted, 4, "of 100 kB, which is stored three times");
    assert_eq!(refused.error, model::ErrorCode::LimitReached);
    assert!(refused.message.contains("queue_mib_per_hour"), "{refused:?}");
    assert!(refused.retry_after_seconds.is_some_and(|seconds| (1..3600).contains(&seconds)));
    create("other").await.unwrap();
}

#[tokio::test]
async fn a_full_queue_takes_builds_again_when_it_has_room() {
    let farm = queueing("5").start().await;
    let blocking = farm.submit("busy", request(&["sleep", "1000"])).await;
    farm.wait_until(&blocking, SOON, |record| record.state() == State::InProgress).await;
    let submit = async || {
        let request = BuildRequest { id: Some(model::BuildId::generate()), ..request(&["true"]) };
        farm.client().create(&"g".parse().unwrap(), &request, None).await.is_ok()
    };
    let began = Instant::now();
    while submit().await {
        assert!(began.elapsed() < SOON, "the queue is never full");
    }
    farm.client().cancel(&blocking, None).await.unwrap();
    let began = Instant::now();
    while !submit().await {
        assert!(began.elapsed() < SOON, "the queue is never empty again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
