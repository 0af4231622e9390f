//! Invalid jobs are refused at submission, whichever way they arrive, with the path of the error.

use client::ClientError;
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{
    BuildId, BuildKey, BuildRequest, ErrorCode, Group, JobSource, Outcome, Priority, Rejection, State,
    StoredJob,
};
use serde_json::{Value, json};

use crate::check::ended_as;

/// Invalid jobs, and a part of the expected error.
fn bad_jobs() -> Vec<(Value, &'static str)> {
    let task = |id: &str, more: Value| {
        let mut task = json!({"id": id, "command": ["true"]});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let after = |id: &str, before: &str| task(id, json!({"dependencies": [before]}));
    let makes = |id: &str, output: &str| task(id, json!({"outputs": [output]}));
    vec![
        (json!([after("link", "lib")]), "job.tasks[0] (link).dependencies[0]: unknown task \"lib\""),
        (json!([after("a", "b"), after("b", "c"), after("c", "a")]), "a -> b -> c -> a"),
        (
            json!([task("a", json!({})), task("a", json!({}))]),
            "job.tasks[1].id: id \"a\" is already used by job.tasks[0]",
        ),
        (
            json!([makes("a", "x"), makes("b", "./x")]),
            "job.tasks[1] (b).outputs: \"x\" is already an output of job.tasks[0] (a)",
        ),
        (json!([makes("a", "../x")]), "job.tasks[0] (a).outputs[0]: \"../x\" leaves the workspace"),
        (
            json!([makes("a", ".forebay/tasks.jsonl")]),
            "job.tasks[0] (a).outputs[0]: \".forebay/tasks.jsonl\" is in the folder .forebay, which is reserved",
        ),
        (
            json!([task("a", json!({"interactor": {"command": ["j"], "inputs": ["../secret"]}}))]),
            "job.tasks[0] (a).interactor.inputs[0]: \"../secret\" leaves the workspace",
        ),
        (
            json!([task("a", json!({"judge": true, "interactor": {"command": ["j"]}}))]),
            "job.tasks[0] (a).judge: a task with an interactor prints no score",
        ),
        (json!([task("a", json!({"limits": {"cpu_ms": 0}}))]), "job.tasks[0] (a).limits.cpu_ms: it is 0"),
        (json!([{"id": "a"}]), "job.tasks[0] (a): it has no step"),
        (json!([after("a", "a")]), "dependency cycle: a -> a"),
        (json!((0..6).map(|id| task(&format!("t{id}"), json!({}))).collect::<Vec<_>>()), "6 tasks"),
        (json!([]), "job.tasks: the job has no tasks"),
    ]
}

fn job(tasks: &Value) -> JobSource {
    serde_json::from_value(json!({ "tasks": tasks })).unwrap()
}

fn request(job: JobSource) -> BuildRequest {
    BuildRequest { id: Some(BuildId::generate()), job: Some(job), ..BuildRequest::default() }
}

fn group() -> Group {
    "g".parse().unwrap()
}

/// Returns the error with which the API refuses it.
async fn refusal(farm: &Farm, request: &BuildRequest) -> (ErrorCode, String) {
    let error = farm.client().create(&group(), request, None).await.unwrap_err();
    let ClientError::Api(error) = error else { panic!("{error}") };
    (error.error, error.message)
}

#[tokio::test]
async fn c6_what_is_wrong_is_told_with_its_path_by_api_message_and_command_line() {
    let farm =
        Farm::builder().without("gateway").without("worker").env("FOREBAY_JOB_TASKS_MAX", "5").start().await;
    let mut told = farm.bus().client().subscribe("forebay.build.rejected.g").await.unwrap();
    farm.bus().jetstream().query_account().await.unwrap();
    let file = farm.folder().join("bad.json");
    for (tasks, says) in bad_jobs() {
        let (code, message) = refusal(&farm, &request(job(&tasks))).await;
        assert!(code == ErrorCode::InvalidRequest && message.contains(says), "{message} does not say {says}");

        let key = farm.publish("g", Priority::Batch, &request(job(&tasks))).await;
        let plain = tokio::time::timeout(SOON, told.next()).await.unwrap().unwrap();
        let rejection: Rejection = serde_json::from_slice(&plain.payload).unwrap();
        assert_eq!(
            (rejection.error, rejection.message.as_str()),
            (ErrorCode::InvalidRequest, message.as_str())
        );
        ended_as(&farm, &key, Outcome::Rejected).await;

        std::fs::write(&file, json!({ "tasks": tasks }).to_string()).unwrap();
        let output = farm.cli(&["submit", "--job", file.to_str().unwrap()]).await;
        assert!(output.code == 2 && output.stderr.contains(says), "{output:?}");
    }
    // A field of the wrong type has a path, too.
    std::fs::write(&file, "tasks:\n  - id: a\n    command: [x]\n    limits: {files: many}\n").unwrap();
    let output = farm.cli(&["submit", "--job", file.to_str().unwrap()]).await;
    assert!(output.code == 2 && output.stderr.contains("job.tasks[0].limits.files"), "{output:?}");
    let builds = farm.cli(&["ls", "--group", "g", "--json"]).await;
    assert!(!builds.stdout.contains("ENQUEUED"), "something was queued: {builds:?}");
}

#[tokio::test]
async fn what_no_executor_offers_is_refused_with_what_is_on_offer() {
    let properties = r#"{"hwgroup": ["group1", "group2"], "threads": ["4"]}"#;
    let farm = Farm::builder()
        .without("worker")
        .with_actions()
        .env("FOREBAY_POOL_PROPERTIES", properties)
        .start()
        .await;
    let asks = |platform: Value| {
        request(job(&json!([
            {"id": "ok", "command": ["true"]},
            {"id": "picky", "command": ["true"], "platform": platform},
        ])))
    };
    let (code, message) = refusal(&farm, &asks(json!({"hwgroup": "group9"}))).await;
    assert_eq!(code, ErrorCode::InvalidRequest);
    for part in ["job.tasks[1] (picky).platform: ", "hwgroup", "group9", "group1", "group2"] {
        assert!(message.contains(part), "{message} does not say {part}");
    }
    let (_, message) = refusal(&farm, &asks(json!({"threads": "5"}))).await;
    assert!(message.contains("threads") && message.contains('4'), "{message}");
    let (_, message) = refusal(&farm, &asks(json!({"colour": "red"}))).await;
    assert!(message.contains("colour"), "{message}");

    let good = asks(json!({"hwgroup": "group7|group2", "threads": "3"}));
    let reply = farm.client().create(&group(), &good, None).await.unwrap();
    assert!(!reply.duplicate);
    assert!(
        farm.client().create(&group(), &good, None).await.unwrap().duplicate,
        "the same job is the same build"
    );
    let key = BuildKey { group: group(), id: good.id.unwrap() };
    let record = farm.client().get(&key).await.unwrap().record;
    assert_eq!(record.build.job.as_ref().map(|job| job.tasks), Some(2));
    let other = BuildRequest { job: Some(job(&json!([{"id": "x", "make_folder": "x"}]))), ..good };
    assert_eq!(refusal(&farm, &other).await.0, ErrorCode::Conflict);
}

#[tokio::test]
async fn a_job_that_is_too_large_for_a_message_goes_through_the_store() {
    let farm = Farm::builder().without("worker").start().await;
    let tasks: Vec<Value> = (0..50_000)
        .map(|at: usize| {
            let before = at.checked_sub(1).map(|before| format!("t{before}"));
            json!({"id": format!("t{at}"), "make_folder": format!("f/{at}"), "dependencies": before.as_slice()})
        })
        .collect();
    let file = farm.folder().join("large.json");
    std::fs::write(&file, json!({ "tasks": tasks }).to_string()).unwrap();
    let id = BuildId::generate().to_string();
    let output = farm.cli(&["submit", "--group", "g", "--id", &id, "--job", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let key: BuildKey = format!("g/{id}").parse().unwrap();
    let record = farm.client().get(&key).await.unwrap().record;
    let kept = record.build.job.unwrap();
    assert_eq!(kept.tasks, 50_000);

    let stored = |digest, size_bytes| request(JobSource::Stored(StoredJob { digest, size_bytes }));
    for size in [None, kept.size_bytes] {
        let reply = farm.client().create(&group(), &stored(kept.digest.clone(), size), None).await.unwrap();
        assert!(!reply.duplicate, "another id is another build");
    }
    for size in [None, Some(7)] {
        let (code, message) = refusal(&farm, &stored(model::Digest::of(b"nothing"), size)).await;
        assert!(code == ErrorCode::InvalidRequest && message.contains("has no blob"), "{message}");
    }
}

#[tokio::test]
async fn before_any_executor_came_a_job_waits_to_be_taken() {
    let farm = Farm::builder().without("worker").start().await;
    let command = || request(job(&json!([{"id": "a", "command": ["true"]}])));
    let (code, message) = refusal(&farm, &command()).await;
    assert_eq!(code, ErrorCode::Unavailable);
    assert!(message.starts_with("job.tasks[0] (a): no executor has registered"), "{message}");
    let internal = request(job(&json!([{"id": "a", "make_folder": "x"}])));
    farm.client().create(&group(), &internal, None).await.unwrap();

    // Neither rejected nor lost: it is accepted as soon as an executor is available.
    let key = farm.publish("g", Priority::Batch, &command()).await;
    for service in ["cas", "scheduler", "executor"] {
        farm.keep(farm.spawn(service).await);
    }
    farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
}
