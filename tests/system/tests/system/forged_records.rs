//! Records written with the leaked key of a worker or an executor.

use std::path::Path;

use async_nats::{Client, HeaderMap, Message};
use futures::StreamExt as _;
use model::BuildId;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::secured::Secured;

fn event(id: &str, kind: &str) -> String {
    format!("forebay.build.event.default.{id}.{kind}")
}

fn action(id: &str) -> String {
    format!("forebay.action.event.default.{id}")
}

/// The request for the last message on a subject of a stream.
fn last(stream: &str, subject: &str) -> String {
    format!("$JS.API.DIRECT.GET.{stream}.{subject}")
}

fn json_of(message: &Message) -> Value {
    serde_json::from_slice(&message.payload).unwrap()
}

async fn record(user: &Client, stream: &str, subject: &str) -> Value {
    json_of(&user.request(last(stream, subject), "".into()).await.unwrap())
}

/// Stores a record as the first one of its subject, with the seal of another one.
async fn forge(user: &Client, subject: String, record: &Value, seal: &str) {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Last-Subject-Sequence", "0");
    headers.insert("Forebay-Seal", seal);
    let stored = user.request_with_headers(subject, headers, record.to_string().into()).await.unwrap();
    let stored = json_of(&stored);
    assert!(stored["seq"].is_u64(), "{stored}");
}

/// Submits a build and returns its id.
async fn submit(farm: &Secured, script: &str) -> String {
    let output = farm.up.cli(&["submit", "--json", "--", "sh", "-c", script]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let submitted: Value = serde_json::from_str(&output.stdout).unwrap();
    submitted["id"].as_str().unwrap().to_owned()
}

/// The record of a build that ended with success.
async fn succeeded(farm: &Secured, id: &str) -> Value {
    let watched = farm.up.cli(&["watch", id]).await;
    assert_eq!(watched.code, 0, "{watched:?}");
    let output = farm.up.cli(&["get", "--json", id]).await;
    serde_json::from_str(&output.stdout).unwrap()
}

/// The record of another build, in another phase, with a command that leaves a mark.
fn changed(record: &Value, id: &str, phase: &str, mark: &Path) -> Value {
    let mut record = record.clone();
    record["id"] = json!(id);
    record["command"] = json!(["touch", mark]);
    record["event"] = json!(phase);
    let fields = record.as_object_mut().unwrap();
    fields.remove("result");
    if phase == "BUILD_ENQUEUED" {
        fields.remove("invocation");
    }
    record
}

#[tokio::test]
async fn n16_the_key_of_a_worker_queues_no_build_and_reads_no_output() {
    let mut farm = Secured::start(&[]).await;
    let honest = submit(&farm, "echo private").await;
    succeeded(&farm, &honest).await;
    let worker = farm.connect("worker.worker-1").await;
    let whole = json!({ "last_by_subj": event(&honest, "console") }).to_string();
    for request in [
        last("FOREBAY_EVENTS", &event(&honest, "console")),
        last("FOREBAY_EVENTS", &event(&honest, "tool")),
        "$JS.API.DIRECT.GET.FOREBAY_EVENTS".to_owned(),
        "$JS.API.STREAM.MSG.GET.FOREBAY_EVENTS".to_owned(),
    ] {
        assert!(worker.request(request.clone(), whole.clone().into()).await.is_err(), "{request}");
    }
    let mark = farm.up.data().join("forged");
    let finished = worker.request(last("FOREBAY_EVENTS", &event(&honest, "lifecycle")), "".into()).await;
    let finished = json_of(&finished.unwrap());
    let first = farm.connect("enqueuer.enqueuer-1").await;
    let query = json!({ "seq": 1, "next_by_subj": event(&honest, "lifecycle") }).to_string();
    let first = first.request("$JS.API.DIRECT.GET.FOREBAY_EVENTS", query.into()).await.unwrap();
    let seal = first.headers.unwrap().get("Forebay-Seal").unwrap().to_string();
    // A run without a lease is lost: a process that is trusted requeues the build.
    for phase in ["BUILD_ENQUEUED", "INVOCATION_STARTED"] {
        let id = BuildId::generate().to_string();
        forge(&worker, event(&id, "lifecycle"), &changed(&finished, &id, phase, &mark), &seal).await;
        if phase == "BUILD_ENQUEUED" {
            let why = farm.up.cli(&["why", &id]).await.stdout;
            assert!(why.contains("seal_key_file"), "{why}");
        }
    }
    // The build that ended, again, with another command.
    let again = changed(&finished, &honest, "BUILD_ENQUEUED", &mark).to_string();
    let stored = worker.request(event(&honest, "lifecycle"), again.into()).await.unwrap();
    assert!(json_of(&stored)["seq"].is_u64(), "{stored:?}");
    // Later in the same queue.
    succeeded(&farm, &submit(&farm, "true").await).await;
    assert!(!mark.exists());
    let last = record(&worker, "FOREBAY_EVENTS", &event(&honest, "lifecycle")).await;
    assert_eq!(last["event"], "BUILD_ENQUEUED", "{last}");
}

#[tokio::test]
async fn n16_the_key_of_an_executor_queues_no_action() {
    let mut farm = Secured::start(&[]).await;
    let run = async |farm: &Secured| {
        let output = farm.up.cli(&["exec", "--no-cache", "--", "true"]).await;
        assert_eq!(output.code, 0, "{output:?}");
    };
    run(&farm).await;
    let executor = farm.connect("executor.executor-1").await;
    let query = json!({ "seq": 1, "next_by_subj": "forebay.action.event.*.*" }).to_string();
    let accepted = executor.request("$JS.API.DIRECT.GET.FOREBAY_ACTIONS", query.into()).await.unwrap();
    let seal = accepted.headers.as_ref().unwrap().get("Forebay-Seal").unwrap().to_string();
    let mut forged = json_of(&accepted);
    assert_eq!(forged["event"], "ACTION_ACCEPTED");
    let id = BuildId::generate().to_string();
    forged["execution"]["id"] = json!(id);
    forge(&executor, action(&id), &forged, &seal).await;
    run(&farm).await;
    assert_eq!(record(&executor, "FOREBAY_ACTIONS", &action(&id)).await, forged);
}

#[tokio::test]
async fn a_build_whose_worker_died_runs_again_in_a_farm_with_keys() {
    let mut farm = Secured::start(&[]).await;
    let observer = farm.connect("cas.cas-1").await;
    let mut events = observer.subscribe("forebay.build.live.default.*.lifecycle").await.unwrap();
    observer.flush().await.unwrap();
    let id = submit(&farm, "test $FOREBAY_ATTEMPT -gt 1 || sleep 1000").await;
    while json_of(&events.next().await.unwrap())["event"] != "INVOCATION_STARTED" {}
    let worker = farm.up.children()["worker"];
    kill(Pid::from_raw(worker.try_into().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(succeeded(&farm, &id).await["attempt"], 2);
}
