//! The record of what callers did to a farm, and what they were refused.

use std::time::{Duration, Instant};

use farm::{Farm, Locks, SOON};
use model::{AuditEntry, AuditKind, AuditProof, AuditRequest};
use serde_json::{Value, json};

use crate::{
    check::request,
    locked::{grpc, http, start},
};

/// The services that answer calls and keep what is recorded.
fn builder() -> farm::Builder {
    Farm::builder().only(&["enqueuer", "gateway", "archive"])
}

/// Waits until the archive has events that satisfy a condition, and returns all that match the request, newest first.
async fn recorded(
    farm: &Farm,
    request: AuditRequest,
    wanted: impl Fn(&[AuditEntry]) -> bool,
) -> Vec<AuditEntry> {
    let began = Instant::now();
    loop {
        let found = farm.client().audit(&request).await.unwrap().events;
        if wanted(&found) {
            return found;
        }
        assert!(began.elapsed() < SOON, "{found:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn of(kind: AuditKind) -> AuditRequest {
    AuditRequest { kind: Some(kind), ..AuditRequest::default() }
}

#[tokio::test]
async fn refusals_and_grants_say_who_called_what_from_where() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let get = |path: &str| client.get(format!("{url}{path}"));
    for _ in 0..5 {
        assert_eq!(get("/v1/builds/web").bearer_auth(locks.web.reveal()).send().await.unwrap().status(), 200);
    }
    let denied = get("/v1/builds/other").bearer_auth(locks.web.reveal()).send().await.unwrap();
    assert_eq!(denied.status(), 403);
    let stranger = callers::ApiKey::generate().unwrap();
    assert_eq!(get("/v1/workers").bearer_auth(stranger.reveal()).send().await.unwrap().status(), 401);
    let in_url = get(&format!("/v1/builds/web?key={}", locks.web.reveal())).send().await.unwrap();
    assert_eq!(in_url.status(), 400);
    let found = recorded(&farm, of(AuditKind::Refusal), |found| found.len() >= 3).await;
    let [url_key, unknown, denied] = found.as_slice() else { panic!("{found:#?}") };
    let event = &denied.event;
    assert_eq!((event.who.as_str(), event.proof), ("key:web", AuditProof::Key));
    assert_eq!(event.call.as_str(), "GET /v1/builds/{group}");
    assert_eq!(event.target.as_ref().unwrap().as_str(), "/v1/builds/other");
    assert_eq!(event.address.as_ref().unwrap().as_str(), "127.0.0.1");
    assert!(event.reason.as_ref().unwrap().as_str().contains("no right to group other"), "{event:?}");
    assert_eq!((unknown.event.who.as_str(), unknown.event.proof), ("", AuditProof::Nothing));
    assert!(unknown.event.reason.as_ref().unwrap().as_str().contains("not listed"), "{unknown:?}");
    assert!(url_key.event.reason.as_ref().unwrap().as_str().contains("API key in its URL"));
    // Let in six times within a minute, and recorded once.
    let granted = recorded(&farm, of(AuditKind::Grant), |found| !found.is_empty()).await;
    assert_eq!(granted.len(), 1, "{granted:#?}");
    assert_eq!(granted[0].event.who.as_str(), "key:web");
    let text = serde_json::to_string(&(found, granted)).unwrap();
    for secret in [locks.web.reveal(), stranger.reveal()] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn calls_over_grpc_are_recorded_too() {
    let locks = Locks::new();
    let farm = start(&locks, crate::acting::builder().with("archive")).await;
    let reader = grpc(&locks, &farm, Some(&locks.reader)).await;
    let update = reapi::execution::UpdateActionResultRequest::default();
    reader.action_cache().update_action_result(update).await.unwrap_err();
    let found = recorded(&farm, of(AuditKind::Refusal), |found| !found.is_empty()).await;
    let event = &found[0].event;
    assert_eq!(event.who.as_str(), "key:reader");
    assert_eq!(event.call.as_str(), "/build.bazel.remote.execution.v2.ActionCache/UpdateActionResult");
    assert!(event.reason.as_ref().unwrap().as_str().contains("cache-write"), "{event:?}");
}

#[tokio::test]
async fn a_cancel_is_recorded_by_the_gateway_and_by_the_enqueuer() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let create = client.post(format!("{url}/v1/builds/web")).bearer_auth(locks.web.reveal());
    let made: Value =
        create.json(&json!({ "command": ["true"] })).send().await.unwrap().json().await.unwrap();
    let path = format!("{url}/v1/builds/web/{}/cancel", made["id"].as_str().unwrap());
    for _ in 0..2 {
        let cancel = client.post(&path).bearer_auth(locks.web.reveal()).json(&json!({ "reason": "a\nb" }));
        assert_eq!(cancel.send().await.unwrap().status(), 200);
    }
    let target = Some(format!("web/{}", made["id"].as_str().unwrap()));
    let wanted = AuditRequest { target, ..of(AuditKind::Cancel) };
    let found = recorded(&farm, wanted, |found| found.len() >= 2).await;
    assert_eq!(found.len(), 2, "the second call changed nothing: {found:#?}");
    let by = |proof| found.iter().find(|entry| entry.event.proof == proof).unwrap();
    let (checked, stated) = (&by(AuditProof::Key).event, &by(AuditProof::Stated).event);
    assert!(checked.source.as_str().starts_with("gateway") && stated.source.as_str().starts_with("enqueuer"));
    assert_eq!((checked.who.as_str(), stated.who.as_str()), ("key:web", "key:web"));
    assert_eq!(stated.call.as_str(), "forebay.api.cancel.web");
    assert_eq!(checked.reason.as_ref().unwrap().as_str(), "a\u{fffd}b");
}

#[tokio::test]
async fn a_purge_of_the_action_cache_is_recorded_unless_it_only_asks() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let url = format!("{}/v1/action-cache/purge", farm.http_url());
    for dry_run in [true, false] {
        let purge = json!({ "executor": "executor-1", "dry_run": dry_run });
        let asked = http(&locks).post(&url).bearer_auth(locks.operator.reveal()).json(&purge);
        assert_eq!(asked.send().await.unwrap().status(), 200);
    }
    let found = recorded(&farm, of(AuditKind::Purge), |found| !found.is_empty()).await;
    let event = &found[0].event;
    assert_eq!((found.len(), event.who.as_str()), (1, "key:operator"));
    assert_eq!(event.target.as_ref().unwrap().as_str(), "executor executor-1");
    assert_eq!(event.reason.as_ref().unwrap().as_str(), "deleted 0");
    // The command line deletes from the store itself.
    for words in [
        &["cas", "purge", "--by-executor", "executor-2", "--dry-run"][..],
        &["cas", "purge", "--by-executor", "executor-2"],
    ] {
        let output = farm.cli(words).await;
        assert!(output.code == 0 && !output.stderr.contains("recorded"), "{output:?}");
    }
    let found = recorded(&farm, of(AuditKind::Purge), |found| found.len() >= 2).await;
    let stated: Vec<_> = found.iter().filter(|entry| entry.event.proof == AuditProof::Stated).collect();
    assert_eq!((found.len(), stated.len()), (2, 1));
    assert_eq!(stated[0].event.target.as_ref().unwrap().as_str(), "executor executor-2");
}

#[tokio::test]
async fn commands_record_what_they_do_on_the_bus() {
    let farm = Farm::builder().only(&["enqueuer", "dispatcher", "worker"]).start().await;
    let began = Instant::now();
    let worker = loop {
        if let Some(found) = farm.client().workers().await.unwrap().first() {
            break found.heartbeat.worker.to_string();
        }
        assert!(began.elapsed() < SOON, "the worker has not reported");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    for args in [
        &["quota", "set", "ci", "x86=4"] as &[&str],
        &["drain", &worker],
        &["env", "add", "gcc", "--image", "docker://registry.example.com/gcc:1", "--approve"],
        &["env", "rm", "gcc"],
    ] {
        let output = farm.cli(args).await;
        assert_eq!(output.code, 0, "{output:?}");
    }
    let key = farm.submit("g", request(&["true"])).await;
    assert_eq!(farm.cli(&["cancel", &key.to_string()]).await.code, 0);
    // Without an archive, the bus answers.
    let shown = farm.cli(&["audit"]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    let lines: Vec<&str> = shown.stdout.lines().collect();
    let expected = [
        ("quota", "forebay quota  ci  from none to x86 4"),
        ("drain", "forebay drain  WORKER  drain"),
        ("environment", "forebay env add  gcc@1  proposed"),
        ("environment", "forebay env approve  gcc@1  approved"),
        ("environment", "forebay env rm  gcc  removed"),
    ];
    for (kind, text) in expected {
        let text = text.replace("WORKER", &worker);
        let found = lines.iter().find(|line| line.contains(&text));
        let line = found.unwrap_or_else(|| panic!("{text} is not in {shown:?}"));
        assert!(line.contains(kind) && line.contains("(stated)") && line.contains('@'), "{line}");
    }
    let json = farm.cli(&["audit", "--json", "--kind", "cancel", "--target", &format!("{key}*")]).await;
    let reply: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(reply["events"].as_array().unwrap().len(), 1, "{reply}");
    assert_eq!(reply["events"][0]["call"], "forebay.api.cancel.g");
    assert_eq!(farm.cli(&["audit", "--kind", "nothing"]).await.code, 2);
}

#[tokio::test]
async fn o4_hostile_text_stays_in_its_line_in_logs_and_in_the_record() {
    let locks = Locks::new();
    // A name of a caller and the path of a request are chosen by others.
    let farm = start(&locks, builder().env("FOREBAY_LOG_FORMAT", "json")).await;
    let (client, url) = (http(&locks), farm.http_url());
    let hostile = "a\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}\u{1b}[2J\u{202e}";
    let body = json!({ "reason": hostile });
    let key = farm.submit("web", request(&["true"])).await;
    let cancel = client.post(format!("{url}/v1/builds/{key}/cancel")).bearer_auth(locks.operator.reveal());
    assert_eq!(cancel.json(&body).send().await.unwrap().status(), 200);
    let encoded = percent_encoding::percent_encode(hostile.as_bytes(), percent_encoding::NON_ALPHANUMERIC);
    let path = format!("{url}/v1/builds/{encoded}");
    assert_eq!(client.get(path).bearer_auth(locks.web.reveal()).send().await.unwrap().status(), 403);
    farm.client()
        .cancel_as(&farm.submit("web", request(&["true"])).await, None, Some(hostile))
        .await
        .unwrap();
    let all = recorded(&farm, AuditRequest::default(), |found| {
        let of = |kind| found.iter().filter(|entry| entry.event.kind == kind).count();
        of(AuditKind::Cancel) >= 3 && of(AuditKind::Refusal) >= 1
    });
    for entry in all.await {
        let text = serde_json::to_string(&entry).unwrap();
        assert!(!text.contains("\\n") && !text.contains("\\u001b") && !text.contains('\u{202e}'), "{text}");
    }
    // In the command line and on the page it is text.
    let shown = farm.cli(&["audit"]).await;
    assert!(!shown.stdout.contains('\u{1b}') && shown.stdout.contains("forged"), "{shown:?}");
    assert!(shown.stdout.lines().all(|line| line.starts_with("20")), "{shown:?}");
    // Each line of the log is one message of the service.
    for service in ["gateway", "enqueuer"] {
        for line in farm.take(service).log_text().lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{service}: {line}"));
            assert_ne!(message["message"], "forged", "{line}");
        }
    }
}

#[tokio::test]
async fn o4_a_flood_of_refusals_fills_nothing_and_hides_nothing() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let flood = async {
        for _ in 0..300 {
            let refused = client.get(format!("{url}/v1/workers")).bearer_auth(locks.web.reveal());
            assert_eq!(refused.send().await.unwrap().status(), 403);
        }
    };
    flood.await;
    let other = client.get(format!("{url}/v1/workers")).bearer_auth(locks.reader.reveal());
    assert_eq!(other.send().await.unwrap().status(), 403);
    let of_web = AuditRequest { who: Some("key:web".to_owned()), ..of(AuditKind::Refusal) };
    let counted = |found: &[AuditEntry]| found.iter().map(|entry| 1 + entry.event.dropped).sum::<u64>();
    let found = recorded(&farm, of_web, |found| counted(found) == 300).await;
    assert!(found.len() < 100, "{} events", found.len());
    let of_reader = AuditRequest { who: Some("key:reader".to_owned()), ..of(AuditKind::Refusal) };
    assert_eq!(recorded(&farm, of_reader, |found| !found.is_empty()).await.len(), 1);
}

#[tokio::test]
async fn a_bus_that_is_away_slows_no_refusal_and_loses_no_event() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let refused = async || {
        let began = Instant::now();
        let request = client.get(format!("{url}/v1/workers")).bearer_auth(locks.web.reveal());
        assert_eq!(request.send().await.unwrap().status(), 403);
        began.elapsed()
    };
    refused().await;
    farm.servers.kill_nats();
    let slowest = {
        let mut slowest = Duration::ZERO;
        for _ in 0..10 {
            slowest = slowest.max(refused().await);
        }
        slowest
    };
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    farm.servers.start_nats().await;
    let wanted = AuditRequest { who: Some("key:web".to_owned()), ..of(AuditKind::Refusal) };
    recorded(&farm, wanted, |found| found.len() == 11).await;
}

#[tokio::test]
async fn nothing_of_the_record_can_be_deleted() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    assert_eq!(farm.cli(&["quota", "set", "ci", "x86=4"]).await.code, 0);
    let stream = farm.bus().jetstream().get_stream(bus::stream::AUDIT).await.unwrap();
    assert!(stream.delete_message(1).await.is_err());
    assert!(stream.purge().await.is_err());
    assert_eq!(farm.client().audit(&AuditRequest::default()).await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn operators_read_the_record_over_http_and_on_its_page() {
    let locks = Locks::new();
    let farm = start(&locks, builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let get = async |path: &str, key: &callers::ApiKey| {
        let answer = client.get(format!("{url}{path}")).bearer_auth(key.reveal()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for path in ["/v1/audit", "/audit"] {
        assert_eq!(get(path, &locks.web).await.0, 403);
    }
    recorded(&farm, of(AuditKind::Refusal), |found| found.len() >= 2).await;
    let (status, text) = get("/v1/audit?who=key:web&kind=refusal&limit=1", &locks.operator).await;
    let first: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, first["events"].as_array().unwrap().len()), (200, 1), "{text}");
    let next = first["next"].as_str().unwrap();
    let (_, text) =
        get(&format!("/v1/audit?who=key:*&kind=refusal&limit=1&cursor={next}"), &locks.operator).await;
    let second: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(second["events"][0]["target"], "/v1/audit", "{text}");
    assert_eq!(get("/v1/audit?kind=nothing", &locks.operator).await.0, 400);
    let (status, page) = get("/audit?kind=refusal&who=key:web", &locks.operator).await;
    assert!(status == 200 && page.contains("GET /audit") && page.contains("the right operate"), "{page}");
    // Linked for those who may see it.
    let (_, builds) = get("/builds?group=web", &locks.operator).await;
    assert!(builds.contains("href=\"/audit\""), "{builds}");
    let (_, builds) = get("/builds?group=web", &locks.web).await;
    assert!(!builds.contains("href=\"/audit\""), "{builds}");
}
