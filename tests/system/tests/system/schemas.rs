//! The published JSON Schemas: real messages match them, wrong ones do not, and the committed files are current.

use std::{fs, path::Path, process::Stdio};

use bus::{ArchiveCall, EventKind, EventSubject, Subject, stream};
use farm::{Farm, Guard, Output, SOON, Up, bare_command, repository};
use futures::StreamExt as _;
use model::{BuildKey, BuildRequest, Context, Outcome, Priority};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::{
    acting,
    check::{ended_as, script},
    jobs,
    python::python,
};

fn texts(folder: &Path) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn the_committed_schemas_are_those_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::of(bare_command(&["schema", "--write", folder.path().to_str().unwrap()])).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(texts(folder.path()), texts(&repository().join("docs/schemas")), "run `make schemas`");
}

/// Messages, and the schemas that they must match, or must not match.
#[derive(Default)]
struct Cases(Vec<Value>);

impl Cases {
    fn good(&mut self, schema: &str, message: &Value) {
        self.0.push(json!({"schema": schema, "message": message, "good": true}));
    }

    fn bad(&mut self, schema: &str, message: &Value) {
        self.0.push(json!({"schema": schema, "message": message, "good": false}));
    }

    fn lines(&mut self, schema: &str, output: &Output) {
        assert!(!output.stdout.is_empty(), "{output:?}");
        for line in output.stdout.lines() {
            self.good(schema, &serde_json::from_str(line).unwrap());
        }
    }

    async fn validate(self) {
        let mut command = python("tests/system/python/validate.py");
        command.arg(repository().join("docs/schemas"));
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for case in &self.0 {
            stdin.write_all(format!("{case}\n").as_bytes()).await.unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn real_messages_fit_their_schemas() {
    let farm = Farm::all().await;
    let mut cases = Cases::default();
    let whole = BuildRequest {
        context: Context::Directory {
            path: farm.folder().join("logs").to_str().unwrap().to_owned(),
            ignore_files: false,
        },
        env: [("A".to_owned(), "b".to_owned())].into(),
        labels: [("pr".to_owned(), "17".to_owned())].into(),
        outputs: vec!["*.txt".into()],
        timeout_seconds: Some(60),
        queue_timeout_seconds: Some(60),
        max_attempts: Some(2),
        priority: Some(Priority::Batch),
        ..script("echo x > a.txt; printf '\\377'; echo text")
    };
    let git = BuildRequest {
        context: Context::Git { url: "/nowhere".into(), revision: "x".into(), patch: Some("y".into()) },
        ..script("true")
    };
    let archive = BuildRequest {
        context: Context::Archive { location: "/nowhere".into(), digest: Some(model::Digest::of(b"")) },
        ..script("true")
    };
    let mut keys = vec![];
    for (request, outcome) in [
        (whole, Outcome::Succeeded),
        (git, Outcome::Failed),
        (archive, Outcome::Failed),
        (script("kill -9 $$"), Outcome::Failed),
        (BuildRequest { command: vec![], ..script("") }, Outcome::Rejected),
    ] {
        let message = serde_json::to_value(&request).unwrap();
        if outcome != Outcome::Rejected {
            cases.good("BuildRequest", &message);
        }
        let key = farm.publish("g", request.priority.unwrap_or_default(), &request).await;
        ended_as(&farm, &key, outcome).await;
        keys.push(key);
    }
    bad_requests(&mut cases);
    for key in &keys {
        for stored in farm.stored(key).await {
            let subject: EventSubject = stored.subject.parse().unwrap();
            let schema = match subject.kind {
                EventKind::Lifecycle => "BuildRecord",
                EventKind::Tool => "ToolEvent",
                EventKind::Console | EventKind::Bazel => continue,
            };
            cases.good(schema, &serde_json::from_slice(&stored.payload).unwrap());
        }
    }
    let rejected =
        farm.bus().stream(stream::REJECTED).last("forebay.build.rejected.g").await.unwrap().unwrap();
    cases.good("Rejection", &serde_json::from_slice(&rejected.payload).unwrap());
    scheduled(&farm, keys.first().unwrap(), &mut cases).await;
    printed(&farm, keys.first().unwrap(), &mut cases).await;
    executed(&mut cases).await;
    of_a_job(&mut cases).await;
    archived(&farm, keys.first().unwrap(), &mut cases).await;
    let guard: &Guard = farm.servers.guard();
    let mut up = Up::start(farm.folder(), guard, &["--no-services"], &[]).await;
    up.endpoints().await;
    cases.good(
        "Endpoints",
        &serde_json::from_slice(&fs::read(up.data().join("endpoints.json")).unwrap()).unwrap(),
    );
    cases.validate().await;
}

/// Collects messages about actions on their live subjects; progress is reported only for long actions.
async fn executed(cases: &mut Cases) {
    let farm = acting::builder().start().await;
    let mut live = farm.bus().client().subscribe("forebay.action.live.>").await.unwrap();
    farm.bus().client().flush().await.unwrap();
    let remote = acting::remote(&farm).await;
    for script in ["echo x > kept; echo text; sleep 0.3", "exit 3"] {
        let action = acting::upload(&remote, script).await;
        acting::executed(&remote, action).await;
    }
    let mut ended = 0;
    while ended < 2 {
        let message = tokio::time::timeout(SOON, live.next()).await.expect("both end").unwrap();
        let value: Value = serde_json::from_slice(&message.payload).unwrap();
        let progress = message.headers.is_some_and(|headers| headers.get("Forebay-Progress").is_some());
        ended += usize::from(value.get("event").is_some_and(|event| event == "ACTION_FINISHED"));
        cases.good(if progress { "ExecutionProgress" } else { "ExecutionRecord" }, &value);
    }
}

/// Collects questions to the archive and its answers.
async fn archived(farm: &Farm, key: &BuildKey, cases: &mut Cases) {
    assert_eq!(farm.cli(&["quota", "set", "audited", "x86=4"]).await.code, 0);
    let event = farm.bus().stream(stream::AUDIT).last("forebay.audit.quota").await.unwrap().unwrap();
    cases.good("AuditEvent", &serde_json::from_slice(&event.payload).unwrap());
    farm.keep(farm.spawn("archive").await);
    let named = json!({"group": key.group, "id": key.id});
    // It reads events from the first one on.
    let found = until_archived(farm, &named).await;
    let invocation = found["invocation"]["id"].clone();
    let calls = [
        (ArchiveCall::Get, "ArchivedBuildRequest", named.clone(), "BuildView"),
        (ArchiveCall::Audit, "AuditRequest", json!({"kind": "quota", "limit": 1}), "AuditReply"),
        (ArchiveCall::Find, "FindRequest", json!({"id": key.id}), "FindReply"),
        (
            ArchiveCall::List,
            "ArchivedBuildsRequest",
            json!({"group": "g", "list": {"limit": 1}}),
            "ListReply",
        ),
        (ArchiveCall::Invocation, "InvocationRequest", json!({"id": invocation}), "InvocationReply"),
        (ArchiveCall::Invocations, "ArchivedBuildRequest", named, "InvocationsReply"),
        (
            ArchiveCall::Console,
            "ConsoleRequest",
            json!({"of": {"build": {"group": key.group, "id": key.id, "attempt": 1}}, "after": 0}),
            "ConsoleReply",
        ),
        (ArchiveCall::Actions, "ActionsRequest", json!({"build": key.id}), "ActionsReply"),
        (ArchiveCall::History, "HistoryRequest", json!({"of": {"label": "pr=17"}}), "HistoryReply"),
        (
            ArchiveCall::ToolInvocations,
            "ToolInvocationsRequest",
            json!({"group": "g"}),
            "ToolInvocationsReply",
        ),
        (ArchiveCall::Targets, "TargetsRequest", json!({"group": "g", "id": "a"}), "TargetsReply"),
        (ArchiveCall::Tests, "TestsRequest", json!({"group": "g", "id": "a"}), "TestsReply"),
        (ArchiveCall::TestGrid, "TestGridRequest", json!({"group": "g", "calls": 7}), "TestGridReply"),
        (ArchiveCall::Report, "ReportRequest", json!({"since_ms": 0}), "ReportReply"),
    ];
    for (call, asked, question, answered) in calls {
        cases.good(asked, &question);
        cases.good(answered, &ask(farm, call, &question).await.unwrap());
    }
    cases.good("ArchiveStatus", &ask(farm, ArchiveCall::Status, &json!({})).await.unwrap());
    cases.good("EventsRequest", &json!({"id": key.id, "from": 7, "kinds": ["console"], "limit": 1}));
    cases.bad("EventsRequest", &json!({"id": key.id, "kinds": ["stderr"]}));
    cases.bad("HistoryRequest", &json!({"of": {"colour": "red"}}));
}

async fn until_archived(farm: &Farm, named: &Value) -> Value {
    let deadline = std::time::Instant::now() + SOON;
    loop {
        match ask(farm, ArchiveCall::Get, named).await {
            Some(view) if view["state"] == "FINISHED" => return view,
            Some(_) | None => assert!(std::time::Instant::now() < deadline, "the build is not archived"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The answer of the archive; none for an error.
async fn ask(farm: &Farm, call: ArchiveCall, question: &Value) -> Option<Value> {
    let answer = farm.bus().ask(&Subject::Archive(call), None, question.to_string().into()).await.ok()?;
    Some(serde_json::from_slice(&answer).unwrap())
}

/// Collects a job and the messages about it.
async fn of_a_job(cases: &mut Cases) {
    let farm = jobs::start(jobs::builder()).await;
    let job = jobs::job(&json!([
        {"id": "folder", "make_folder": "made"},
        {"id": "judge", "command": ["/bin/sh", "-c", "echo 0.5"], "judge": true, "weight": 2, "limits": {"cpu_ms": 60000}},
        {"id": "fails", "command": ["/bin/false"], "retries": 0, "platform": {"OSFamily": "linux"}},
        {"id": "behind", "copy": {"from": "made", "to": "more"}, "dependencies": ["fails", "folder"]},
    ]));
    cases.good("Job", &serde_json::to_value(&job).unwrap());
    let request = jobs::request(job);
    cases.good("BuildRequest", &serde_json::to_value(&request).unwrap());
    let key = farm.submit("g", request).await;
    let ended = jobs::ended(&farm, &key).await;
    assert_eq!(ended.reports.len(), 4, "{:#?}", ended.record);
    for report in &ended.reports {
        cases.good("TaskReport", &serde_json::to_value(report).unwrap());
    }
    for stored in farm.stored(&key).await {
        let subject: EventSubject = stored.subject.parse().unwrap();
        let schema = match subject.kind {
            EventKind::Lifecycle => "BuildRecord",
            EventKind::Tool => "ToolEvent",
            EventKind::Console | EventKind::Bazel => continue,
        };
        cases.good(schema, &serde_json::from_slice(&stored.payload).unwrap());
    }
}

/// Collects messages about environments.
async fn environments(farm: &Farm, cases: &mut Cases) {
    let url = |path: &str| format!("{}/v1/environments{path}", farm.http_url());
    let propose = serde_json::json!({"name": "sh", "definition": {"image": "docker://a.b/c:1"}, "by": "Ada"});
    cases.good("ProposeEnvironmentRequest", &propose);
    let approve = serde_json::json!({"name": "sh", "version": 1});
    cases.good("ChangeEnvironmentRequest", &approve);
    for (path, body) in [("", propose), ("/approve", approve)] {
        let answer = crate::http::client().post(url(path)).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
        cases.good("Environment", &answer.json().await.unwrap());
    }
    let (_, all) = crate::http::get(&url("")).await;
    cases.good("EnvironmentsReply", &serde_json::from_str(&all).unwrap());
}

/// Collects messages about quotas, usage, models and pools.
async fn scheduled(farm: &Farm, key: &BuildKey, cases: &mut Cases) {
    let mut live = farm.bus().client().subscribe("forebay.>").await.unwrap();
    farm.bus().client().flush().await.unwrap();
    farm.keep(farm.spawn_with_env("governor", &[("FOREBAY_GOVERNOR_TICK_MS", "200")]).await);
    farm.keep(farm.spawn_with_env("autoscaler", &[("FOREBAY_AUTOSCALE", r#"{"workers":{}}"#)]).await);
    let set = farm.cli(&["quota", "set", "g", "x86=2"]).await;
    assert_eq!(set.code, 0, "{set:?}");
    let busy = "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done";
    farm.submit("g", script(busy)).await;
    let wanted = [
        ("forebay.quota.live.group.g", "Quota"),
        ("forebay.quota.live.governor", "GovernorRecord"),
        ("forebay.scale.workers", "ScalePlan"),
        ("forebay.usage", "UsageReport"),
    ];
    let mut missing: Vec<(&str, &str)> = wanted.to_vec();
    while !missing.is_empty() {
        let message = tokio::time::timeout(SOON, live.next()).await.expect("all are published").unwrap();
        let subject = message.subject.as_str().replace("$KV.FOREBAY_QUOTA", "forebay.quota.live");
        if let Some(at) = missing.iter().position(|(wanted, _)| *wanted == subject) {
            cases.good(missing.remove(at).1, &serde_json::from_slice(&message.payload).unwrap());
        }
    }
    environments(farm, cases).await;
    let (_, record) = farm.bus().buckets().get::<model::FarmRecord>(&()).await.unwrap();
    cases.good("FarmRecord", &serde_json::to_value(record.unwrap()).unwrap());
    for gateway in farm.bus().gateways().all("").await.unwrap() {
        cases.good("GatewayAddress", &serde_json::to_value(gateway).unwrap());
    }
    cases.lines("QuotaReply", &farm.cli(&["quota", "--json"]).await);
    cases.lines("WhyReply", &farm.cli(&["why", &key.id.to_string(), "--json"]).await);
    let kind = model::ExecutorType::x86();
    let notice = model::ModelNotice {
        version: 1,
        digest: model::Digest::of(b"model"),
        size_bytes: Some(5),
        trained_at_ms: model::Millis::of_this_machine(),
        builds: 1000,
        test_error: [(kind.clone(), 0.5)].into(),
        default_error: [(kind.clone(), 2.0)].into(),
        types_by_rule: [("cc_binary".to_owned(), [kind].into())].into(),
    };
    assert!(farm.bus().buckets().compare_and_set(&(), &notice, model::Sequence(0), SOON).await.unwrap());
    let stored = farm.bus().stream(stream::MODELS).last("$KV.FOREBAY_MODELS.current").await.unwrap().unwrap();
    cases.good("ModelNotice", &serde_json::from_slice(&stored.payload).unwrap());
    cases.bad("Quota", &json!({"esu": {"x86": "many"}}));
    let unset = farm.cli(&["quota", "unset", "g"]).await;
    assert_eq!(unset.code, 0, "{unset:?}");
}

/// Collects the output of the command line and of HTTP.
async fn printed(farm: &Farm, key: &BuildKey, cases: &mut Cases) {
    let id = key.id.to_string();
    cases.lines("BuildView", &farm.cli(&["get", &id, "--json"]).await);
    cases.lines("WatchLine", &farm.cli(&["watch", &id, "--json"]).await);
    cases.lines("ListReply", &farm.cli(&["ls", "--json"]).await);
    cases.lines("CancelReply", &farm.cli(&["cancel", &id, "--json"]).await);
    cases.lines("CreateReply", &farm.cli(&["submit", "--json", "--", "true"]).await);
    cases.lines("WatchLine", &farm.cli(&["submit", "--json", "--follow", "--", "echo", "x"]).await);
    let workers = farm.cli(&["workers", "--json"]).await;
    for worker in serde_json::from_str::<Vec<Value>>(&workers.stdout).unwrap() {
        cases.good("WorkerView", &worker);
    }
    let http = crate::http::client();
    let window = format!("builds/{}/{}/log?tail=10", key.group, key.id);
    for (path, schema) in [
        (window.as_str(), "LogWindow"),
        ("groups", "GroupsReply"),
        ("builds/g", "ListReply"),
        ("builds/g/nonsense", "ApiError"),
        ("x", "ApiError"),
    ] {
        let got = http.get(format!("{}/v1/{path}", farm.http_url())).send().await.unwrap();
        cases.good(schema, &serde_json::from_slice(&got.bytes().await.unwrap()).unwrap());
    }
}

fn bad_requests(cases: &mut Cases) {
    for message in [
        json!({"command": "true"}),
        json!({"job": {"tasks": [{"id": "a b", "command": ["true"]}]}}),
        json!({"job": {"tasks": [{"id": "a", "comand": ["true"]}]}}),
        json!({"command": ["true"], "timeout": 3}),
        json!({"command": ["true"], "priority": "urgent"}),
        json!({"command": ["true"], "group": "a b"}),
        json!({"command": ["true"], "context": {"kind": "svn"}}),
        json!({"command": ["true"], "context": {"kind": "directory"}}),
        json!({"command": ["true"], "timeout_seconds": -1}),
    ] {
        cases.bad("BuildRequest", &message);
    }
}
