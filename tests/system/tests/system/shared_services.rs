//! Services that several tasks of a job share.

use std::{collections::BTreeSet, fs, path::PathBuf};

use client::ClientError;
use farm::{Builder, Farm, SOON};
use model::{BuildRequest, ErrorCode, Job, Outcome, TaskStatus};
use serde_json::{Value, json};

use crate::{
    acting::{own, processes_with},
    check::until,
    jobs::{self, Ended},
    services::{all_networks, networks_of},
};

/// A server on port 5432 that keeps the words it is sent and answers with all of them; it ends when it is sent `die`. Its argument
/// is for finding its process.
const STORE: &str = "import os, socketserver, sys
words = []
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        word = self.rfile.readline().decode().strip()
        if word == 'die':
            print('no room', file=sys.stderr, flush=True)
            os._exit(7)
        if word: words.append(word)
        self.wfile.write(','.join(words).encode())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
print('serves', flush=True)
Server(('', 5432), Handler).serve_forever()";

/// Sends a word, and prints all words of the store.
const SEND: &str = "import socket, sys
with socket.create_connection((sys.argv[1], 5432)) as store:
    store.sendall((sys.argv[2] + '\\n').encode())
    print(store.recv(1000).decode(), end='')";

fn builder() -> Builder {
    Farm::builder().with_actions().workspaces(2)
}

/// The services of a job: a store, whose process has `marker` on its command line.
fn store(marker: &str) -> Value {
    json!([{"name": "db", "command": ["/usr/bin/python3", "-c", STORE, marker], "ready": {"tcp": 5432}}])
}

/// A task that shares the services and runs a script, in which `send WORD` prints all words of the store.
fn task(id: &str, script: &str, dependencies: &[&str]) -> Value {
    let send = format!("send() {{ /usr/bin/python3 -c \"$SEND\" db \"$1\"; }}; {script}");
    json!({"id": id, "command": ["/bin/sh", "-ec", send], "env": {"SEND": SEND}, "shared_services": true,
        "dependencies": dependencies})
}

/// A script that fails unless the store has these words after `word` was sent.
fn expects(word: &str, words: &str) -> String {
    format!("found=$(send '{word}'); test \"$found\" = '{words}' || {{ echo \"found $found\" >&2; exit 1; }}")
}

fn job(services: &Value, tasks: &[Value]) -> Job {
    serde_json::from_value(json!({"services": services, "tasks": tasks})).unwrap()
}

async fn run(farm: &Farm, job: Job) -> Ended {
    jobs::run(farm, jobs::request(job)).await
}

fn succeeded(ended: &Ended) {
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
}

/// Waits until no process, network or file is left of services.
async fn nothing_is_left(farm: &Farm, marker: &str, networks: &BTreeSet<PathBuf>) {
    until("their processes are dead", SOON, || processes_with(marker).is_empty()).await;
    until("their network is gone", SOON, || all_networks().is_disjoint(networks)).await;
    let files = || {
        let executors = fs::read_dir(farm.data().join("executor")).unwrap().flatten();
        executors
            .flat_map(|executor| fs::read_dir(executor.path().join("services")).into_iter().flatten())
            .count()
    };
    until("their files are gone", SOON, || files() == 0).await;
}

#[tokio::test]
async fn tasks_share_the_state_of_a_service_and_other_tasks_do_not_reach_it() {
    let farm = builder().start().await;
    let other = "import socket, sys
for host in ('127.0.0.1', 'db'):
    try: socket.create_connection((host, 5432)); sys.exit('it reaches ' + host)
    except OSError: pass";
    let tasks = [
        task("write", &expects("one", "one"), &[]),
        task("read", &expects("two", "one,two"), &["write"]),
        json!({"id": "other", "command": ["/usr/bin/python3", "-c", other], "dependencies": ["write"],
            "cache": false}),
        // It starts after the services have stopped.
        json!({"id": "after", "command": ["/bin/true"], "dependencies": ["read"]}),
    ];
    // Each job has services of its own, and no result comes from the cache.
    for _ in 0..2 {
        let ended = run(&farm, job(&store(&own("share-1-")), &tasks)).await;
        succeeded(&ended);
        let of = |id: &str| ended.task(id);
        assert_eq!(of("write").executor, of("read").executor);
        assert!(!of("write").cached && !of("read").cached);
        let logs = &of("read").service_logs;
        assert_eq!(logs.keys().collect::<Vec<_>>(), ["db.stdout"], "{:#?}", ended.reports);
        let digest = model::Digest::from_sha256(logs["db.stdout"].hash);
        assert_eq!(jobs::content(&farm, &digest).await, "serves\n");
        assert!(of("after").service_logs.is_empty());
        nothing_is_left(&farm, &own("share-1-"), &BTreeSet::new()).await;
    }
}

#[tokio::test]
async fn tasks_that_share_a_service_run_at_the_same_time() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "2").with("executor").start().await;
    // Each ends when the other has sent its word: with the services, both fit on an executor with two slots.
    let meets = |id: &str, other: &str| {
        let wait = format!("send {id} > /dev/null; until send '' | grep -q {other}; do sleep 0.05; done");
        task(id, &wait, &[])
    };
    let ended =
        run(&farm, job(&store(&own("share-2-")), &[meets("left", "right"), meets("right", "left")])).await;
    succeeded(&ended);
}

#[tokio::test]
async fn an_executor_with_one_slot_runs_the_services_of_two_jobs_and_what_uses_them() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let one = |marker: &str| {
        let tasks = [
            task("write", &expects("one", "one"), &[]),
            json!({"id": "between", "command": ["/bin/true"], "dependencies": ["write"], "cache": false}),
            task("read", &format!("sleep 1; {}", expects("two", "one,two")), &["between"]),
        ];
        jobs::request(job(&store(marker), &tasks))
    };
    let first = farm.submit("g", one(&own("share-3-"))).await;
    let second = farm.submit("g", one(&own("share-12-"))).await;
    for key in [first, second] {
        succeeded(&jobs::ended(&farm, &key).await);
    }
}

#[tokio::test]
async fn jobs_at_the_same_time_have_services_with_the_same_port() {
    let farm = builder().start().await;
    let one = |marker: &str, word: &str| {
        let tasks = [
            task("write", &expects(word, word), &[]),
            task("wait", &format!("sleep 3; {}", expects("two", &format!("{word},two"))), &["write"]),
        ];
        jobs::request(job(&store(marker), &tasks))
    };
    let (first, second) = (
        farm.submit("g", one(&own("share-4-"), "a")).await,
        farm.submit("g", one(&own("share-5-"), "b")).await,
    );
    let both =
        || !processes_with(&own("share-4-")).is_empty() && !processes_with(&own("share-5-")).is_empty();
    until("both services run", SOON, both).await;
    for key in [first, second] {
        succeeded(&jobs::ended(&farm, &key).await);
    }
}

#[tokio::test]
async fn after_the_loss_of_its_executor_a_job_starts_again_with_fresh_services() {
    let farm = builder().start().await;
    let seconds = own("3.4716");
    let slow = format!("{}; sleep {seconds}", expects("two", "one,two"));
    let tasks = [
        task("write", &expects("one", "one"), &[]),
        task("read", &slow, &["write"]),
        task("end", &expects("three", "one,two,three"), &["read"]),
    ];
    let key = farm.submit("g", jobs::request(job(&store(&own("share-6-")), &tasks))).await;
    until("the second task runs", SOON, || !processes_with(&format!("sleep\0{seconds}")).is_empty()).await;
    let mut executor = farm.take("executor");
    executor.kill9();
    executor.wait_exit(SOON).await;
    until("its processes are dead", SOON, || processes_with(&own("share-6-")).is_empty()).await;
    farm.keep(farm.spawn("executor").await);
    let ended = jobs::ended(&farm, &key).await;
    succeeded(&ended);
    assert_eq!(ended.record.attempt.0, 1, "{:#?}", ended.record);
    nothing_is_left(&farm, &own("share-6-"), &BTreeSet::new()).await;
}

#[tokio::test]
async fn an_executor_that_drains_passes_services_on() {
    let farm = builder().start().await;
    let seconds = own("3.4717");
    let tasks = [
        task("write", &expects("one", "one"), &[]),
        task("read", &format!("{}; sleep {seconds}", expects("two", "one,two")), &["write"]),
    ];
    let key = farm.submit("g", jobs::request(job(&store(&own("share-7-")), &tasks))).await;
    until("the second task runs", SOON, || !processes_with(&format!("sleep\0{seconds}")).is_empty()).await;
    let draining = farm.take("executor");
    farm.keep(farm.spawn("executor").await);
    draining.term();
    let ended = jobs::ended(&farm, &key).await;
    succeeded(&ended);
    assert_eq!(ended.task("write").status, TaskStatus::Succeeded);
}

#[tokio::test]
async fn a_killed_worker_or_a_cancelled_job_leaves_nothing_of_its_services() {
    let farm = builder().start().await;
    for (marker, is_killed) in [(own("share-8-"), true), (own("share-9-"), false)] {
        let seconds = own("1000.");
        let tasks = [task("wait", &format!("send a; sleep {seconds}"), &[])];
        let key = farm.submit("g", jobs::request(job(&store(&marker), &tasks))).await;
        let sleeps = format!("sleep\0{seconds}");
        let runs = || !processes_with(&marker).is_empty() && !processes_with(&sleeps).is_empty();
        until("the task runs", SOON, runs).await;
        let networks = networks_of(&marker);
        assert_eq!(networks.len(), 1);
        if is_killed {
            let mut worker = farm.take("worker");
            worker.kill9();
            worker.wait_exit(SOON).await;
        } else {
            farm.client().cancel(&key, Some("test".into())).await.unwrap();
        }
        nothing_is_left(&farm, &marker, &networks).await;
        if is_killed {
            farm.client().cancel(&key, Some("test".into())).await.unwrap();
            farm.keep(farm.spawn("worker").await);
        }
    }
}

#[tokio::test]
async fn a_service_that_dies_fails_the_tasks_that_use_it_with_its_name_and_output() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "4").start().await;
    let mut late = task("late", "true", &[]);
    late["dependencies"] = json!([{"failed": "wait"}]);
    let tasks = [
        task("wait", "send a; sleep 1000", &[]),
        task("kill", "until send '' | grep -q a; do sleep 0.05; done; send die || true; send again", &[]),
        late,
        json!({"id": "other", "command": ["/bin/true"]}),
    ];
    let ended = run(&farm, job(&store(&own("share-10-")), &tasks)).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    for id in ["wait", "late"] {
        assert_eq!(ended.status(id), TaskStatus::Failed, "{:#?}", ended.reports);
        let reason = ended.reason(id);
        let expected = "the service db ended with exit code 7; it wrote: ";
        assert!(reason.contains(expected) && reason.contains("no room"), "{reason}");
        assert!(ended.task(id).service_logs.contains_key("db.stderr"), "{:#?}", ended.task(id));
    }
    // It noticed the end itself, perhaps before that of the service was known.
    assert_eq!(ended.status("kill"), TaskStatus::Failed);
    assert!(
        ended.reason("kill").contains("the service db ended with exit code 7"),
        "{}",
        ended.reason("kill")
    );
    assert_eq!(ended.status("other"), TaskStatus::Succeeded);
}

#[tokio::test]
async fn a_service_that_cannot_start_fails_only_the_tasks_that_use_it() {
    let farm = builder().start().await;
    let broken = json!([{"name": "db", "command": ["/bin/sh", "-c", "echo cannot bind >&2; exit 1"],
        "ready": {"tcp": 5432}}]);
    let tasks = [task("uses", "true", &[]), json!({"id": "other", "command": ["/bin/true"]})];
    let ended = run(&farm, job(&broken, &tasks)).await;
    assert_eq!((ended.status("uses"), ended.status("other")), (TaskStatus::Failed, TaskStatus::Succeeded));
    let reason = ended.reason("uses");
    assert!(reason.contains("the service db ended with exit code 1; it wrote: cannot bind"), "{reason}");
}

#[tokio::test]
async fn services_end_with_a_job_that_exceeds_its_time() {
    let farm = builder().start().await;
    let tasks = [task("wait", "send a; sleep 1000", &[])];
    let request =
        BuildRequest { timeout_seconds: Some(4), ..jobs::request(job(&store(&own("share-11-")), &tasks)) };
    let ended = jobs::run(&farm, request).await;
    assert_eq!(ended.outcome(), Outcome::TimedOut);
    nothing_is_left(&farm, &own("share-11-"), &BTreeSet::new()).await;
}

#[tokio::test]
async fn jobs_whose_services_cannot_be_shared_are_refused() {
    let farm = builder().start().await;
    let uses = || task("t", "true", &[]);
    let mut own = uses();
    own["services"] = store("x");
    let many: Vec<Value> =
        (0..9).map(|at| json!({"name": format!("s{at}"), "command": ["/bin/true"]})).collect();
    let mut elsewhere = uses();
    elsewhere["platform"] = json!({"Pool": "elsewhere"});
    elsewhere["id"] = json!("u");
    for (services, tasks, expected) in [
        (json!([]), vec![uses()], "job.tasks[0] (t).shared_services: the job has no services"),
        (
            store("x"),
            vec![json!({"id": "t", "command": ["/bin/true"]})],
            "job.services: no task uses the services of the job",
        ),
        (json!(many), vec![uses()], "job.services: there are 9 services, at most 8"),
        (store("x"), vec![own], "job.tasks[0] (t).shared_services: a task cannot use the services"),
        (store("x"), vec![uses(), elsewhere], "no pool offers Pool = \"elsewhere\""),
    ] {
        let request = jobs::request(job(&services, &tasks));
        match farm.client().create(&"g".parse().unwrap(), &request, None).await {
            Err(ClientError::Api(error)) => {
                assert_eq!(error.error, ErrorCode::InvalidRequest, "{error:?}");
                assert!(error.message.contains(expected), "{expected}: {error:?}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}
