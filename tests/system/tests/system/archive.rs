//! The archive: content after kills, and answers about expired builds.

use std::time::Duration;

use archive_store::Store;
use farm::{Farm, SOON, ServiceProcess};
use model::{
    ArchivedBuildsRequest, Attempt, BuildKey, ConsoleOf, ConsoleOfBuild, ConsoleRequest, ErrorCode,
    InvocationReply, ListRequest, Outcome, Priority, Sequence, State,
};

/// The database of an archive of the farm, for reading.
fn database(farm: &Farm, name: &str) -> Store {
    Store::new(name, &farm.data()).unwrap()
}

/// Waits until something holds.
pub(crate) async fn until_async(what: &str, limit: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + limit;
    while !holds().await {
        assert!(std::time::Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn start(farm: &Farm, name: &str) -> ServiceProcess {
    farm.spawn_with_env("archive", &[("FOREBAY_ARCHIVE_URL", name)]).await
}

/// The last position of the events.
async fn last(farm: &Farm) -> Sequence {
    farm.bus().stream(bus::stream::EVENTS).positions().await.unwrap().1
}

/// Waits until the archive has all events.
pub(crate) async fn caught_up(farm: &Farm, store: &Store) {
    let last = last(farm).await;
    until_async("the archive has all events", SOON, async || {
        let status = store.status().await.ok();
        status
            .and_then(|status| status.streams.get(bus::stream::EVENTS).copied())
            .is_some_and(|it| it.position >= last)
    })
    .await;
}

pub(crate) async fn purge(farm: &Farm) {
    let stream = farm.bus().jetstream().get_stream(bus::stream::EVENTS).await.unwrap();
    stream.purge().await.unwrap();
}

#[tokio::test]
async fn an_archive_that_is_killed_twenty_times_has_the_content_of_an_undisturbed_one() {
    let farm = Farm::all().await;
    let calm = start(&farm, "archive/calm.db").await;
    let mut killed = start(&farm, "archive/killed.db").await;
    let mut builds: Vec<BuildKey> = Vec::new();
    for round in 0..20 {
        for number in 0..4 {
            let code = i32::from(number == 3);
            let command =
                ["sh".to_owned(), "-c".to_owned(), format!("echo {round}; sleep 0.0{number}; exit {code}")];
            builds.push(farm.create("core", Priority::Interactive, &command).await);
        }
        if round == 10 {
            // An attempt is lost, and the build runs again on another worker.
            let long = farm.create("core", Priority::Interactive, &["sleep", "1"]).await;
            farm.wait_until(&long, SOON, |record| record.state() == State::InProgress).await;
            farm.take("worker").kill9();
            farm.keep(farm.spawn("worker").await);
            builds.push(long);
        }
        killed.kill9();
        killed.wait_exit(SOON).await;
        killed = start(&farm, "archive/killed.db").await;
    }
    for key in &builds {
        farm.wait_finished(key, Duration::from_secs(60)).await;
    }
    let (one, other) = (database(&farm, "archive/calm.db"), database(&farm, "archive/killed.db"));
    until_async("both have all events", Duration::from_secs(30), async || {
        caught_up(&farm, &one).await;
        caught_up(&farm, &other).await;
        one.content_hashes().await.unwrap() == other.content_hashes().await.unwrap()
    })
    .await;
    let list = ListRequest { limit: Some(1000), ..ListRequest::default() };
    let listed = other.builds(&ArchivedBuildsRequest { group: None, list }).await.unwrap();
    assert_eq!(listed.builds.len(), builds.len());
    let mut lost_attempts = 0;
    for view in &listed.builds {
        let runs = other.invocations(&view.record.build.key()).await.unwrap();
        assert_eq!(runs.len(), view.record.attempt.0 as usize, "every attempt is archived");
        lost_attempts +=
            runs.iter().filter(|run| run.end.as_ref().is_some_and(|end| end.outcome.is_none())).count();
    }
    assert!(lost_attempts > 0, "no attempt was lost");
    let of = ConsoleOf::Build(ConsoleOfBuild {
        group: builds[0].group.clone(),
        id: builds[0].id,
        attempt: Some(Attempt(1)),
    });
    let console = other.console(&ConsoleRequest { of, after: None }).await.unwrap().unwrap();
    assert!(!console.pieces.is_empty(), "the output of builds is archived");
    assert!(other.status().await.unwrap().set_aside.is_empty());
    drop((calm, killed));
}

#[tokio::test]
async fn a_purge_of_archived_events_changes_no_answer() {
    let farm = Farm::builder().with("archive").start().await;
    let key = farm.create("core", Priority::Batch, &["echo", "hello archive"]).await;
    let failed = farm.create("core", Priority::Interactive, &["false"]).await;
    farm.wait_finished(&key, SOON).await;
    farm.wait_finished(&failed, SOON).await;
    let store = database(&farm, "archive/archive.db");
    caught_up(&farm, &store).await;
    let (before, id) = (farm.client().get(&key).await.unwrap(), key.id.to_string());
    let invocation = before.record.invocation_id().unwrap();
    let list = ListRequest::default();
    let listed = farm.client().list(&key.group, &list).await.unwrap().builds;
    assert_eq!(listed.len(), 2);
    purge(&farm).await;
    assert_eq!(farm.client().get(&key).await.unwrap(), before);
    assert_eq!(farm.client().find(key.id).await.unwrap(), key);
    assert_eq!(farm.client().list(&key.group, &list).await.unwrap().builds, listed);
    let cancelled = farm.client().cancel(&key, None).await.unwrap();
    assert_eq!((cancelled.cancelled, &cancelled.build), (false, &before));
    for name in [id.as_str(), invocation.to_string().as_str()] {
        let shown = farm.cli(&["get", name, "--json"]).await;
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        let view: model::BuildView = serde_json::from_str(&shown.stdout).unwrap();
        assert_eq!(view, before);
    }
    let watched = farm.cli(&["watch", &invocation.to_string(), "--json"]).await;
    assert!(watched.code == 0 && watched.stdout.contains("INVOCATION_FINISHED"), "{}", watched.stderr);
    let url = format!("{}/v1/builds/{}/{id}/events", farm.http_url(), key.group);
    let streamed = http_get(&url);
    assert!(
        streamed.contains("INVOCATION_FINISHED") && streamed.contains(&format!("id: {}", before.sequence))
    );
    let found = farm.cli(&["ls", "--text", "Hello ARCHIVE", "--priority", "batch", "--json"]).await;
    let found: model::ListReply = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(found.builds, std::slice::from_ref(&before));
    let url = format!("{}/v1/invocations/{invocation}", farm.http_url());
    let reply: InvocationReply = serde_json::from_str(&http_get(&url)).unwrap();
    assert_eq!((reply.build, reply.invocation.attempt.0), (before, 1));
    assert_eq!(reply.invocation.end.unwrap().outcome, Some(Outcome::Succeeded));
}

/// What `forebay logs` and HTTP show of a build's output, whole and in windows.
async fn logs(farm: &Farm, key: &BuildKey) -> [String; 7] {
    let id = key.id.to_string();
    let plain = farm.cli(&["logs", &id]).await;
    let json = farm.cli(&["logs", &id, "--json"]).await;
    assert_eq!((plain.code, json.code), (0, 0), "{} {}", plain.stderr, json.stderr);
    let tail = farm.cli(&["logs", &id, "--tail", "7"]).await;
    let url = format!("{}/v1/builds/{}/{}/log", farm.http_url(), key.group, key.id);
    let start = http_get(&format!("{url}?line=9&lines=20"));
    let middle = http_get(&format!("{url}?line=30000&lines=1000&attempt=1"));
    [plain.stdout, plain.stderr, json.stdout, http_get(&url), tail.stdout, start, middle]
}

#[tokio::test]
async fn a_purge_of_archived_output_changes_no_log() {
    let farm = Farm::builder().with("archive").env("FOREBAY_CONSOLE_BYTES_MAX", "100000").start().await;
    let talk = "echo begin; seq 20000; echo error >&2; seq 20001 60000";
    let key = farm.create("core", Priority::Batch, &["sh", "-c", talk]).await;
    let silent = farm.create("core", Priority::Batch, &["true"]).await;
    farm.wait_finished(&key, SOON).await;
    farm.wait_finished(&silent, SOON).await;
    caught_up(&farm, &database(&farm, "archive/archive.db")).await;
    let before = logs(&farm, &key).await;
    let [stdout, stderr, json, http, tail, start, middle] = &before;
    assert!(stdout.ends_with("60000\n") && stderr == "error\n", "{} bytes", stdout.len());
    assert_eq!(http.len(), stdout.len() + stderr.len());
    assert_eq!(
        tail.lines().collect::<Vec<_>>(),
        ["59994", "59995", "59996", "59997", "59998", "59999", "60000"]
    );
    assert!(start.contains(r#""text":"10""#) && middle.contains(r#""text":"30500""#), "{start} {middle}");
    assert!(json.contains(r#""kind":"frame""#) && json.contains(r#""kind":"console""#));
    let events = farm.stored(&key).await;
    let last = events.iter().rfind(|stored| stored.subject.ends_with("console")).unwrap().sequence;
    let stream = farm.bus().jetstream().get_stream(bus::stream::EVENTS).await.unwrap();
    stream.purge().sequence(last.0).await.unwrap();
    assert!(logs(&farm, &key).await == before, "what was purged in part");
    purge(&farm).await;
    assert!(logs(&farm, &key).await == before, "what was purged");
    let [stdout, stderr, json, http, tail, start, _] = logs(&farm, &silent).await;
    assert_eq!([stdout, stderr, json, http, tail], [""; 5]);
    assert!(start.contains(r#""total_lines":0"#), "{start}");
}

#[tokio::test]
async fn without_an_archive_the_answer_says_so() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let key: BuildKey = format!("core/{}", model::BuildId::generate()).parse().unwrap();
    let missing = farm.client().get(&key).await.unwrap_err();
    assert!(missing.to_string().contains("no archive is running"), "{missing}");
    let list = ListRequest { text: Some("make".into()), ..ListRequest::default() };
    let client::ClientError::Api(refused) = farm.client().list(&key.group, &list).await.unwrap_err() else {
        panic!("expected an answer")
    };
    assert_eq!(refused.error, ErrorCode::Unavailable);
    assert!(refused.message.contains("forebay serve archive"), "{refused}");
}

fn http_get(url: &str) -> String {
    let got = std::process::Command::new("curl").args(["-sS", "--fail-with-body", url]).output().unwrap();
    let text = String::from_utf8(got.stdout).unwrap();
    assert!(got.status.success(), "{text}");
    text
}
