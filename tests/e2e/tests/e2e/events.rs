//! The build events of Bazel, on the farm and outside.

use std::{
    fs,
    time::{Duration, Instant},
};

use client::Client;
use e2e_tests::{Bazel, Place, Rig, Version};
use model::{
    BuildId, HistoryOf, HistoryRequest, Millis, TargetsRequest, TestsRequest, ToolInvocation,
    ToolInvocationView, ToolInvocationsRequest,
};

use crate::scenarios::SOON;

const CALL: &str = "11111111-2222-4333-8444-555555555555";
/// Pause between two questions whether a call is archived.
const TICK: Duration = Duration::from_millis(100);

/// The call that matches, once its events are complete in the archive.
async fn archived(client: &Client, wanted: &ToolInvocationsRequest) -> ToolInvocationView {
    let begun = Instant::now();
    loop {
        let found = client.tool_invocations(wanted).await.map(|reply| reply.tool_invocations);
        match found.as_deref() {
            Ok([call]) if call.complete => return call.clone(),
            Ok(_) | Err(_) => assert!(begun.elapsed() < SOON, "{wanted:?}: {found:?}"),
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Bazel did not wait for its events after the time in `BuildFinished`: what it waits for takes minutes.
fn ended_at_once(call: &ToolInvocationView, ended: Millis) {
    let waited = ended.0 - call.finished_at_ms.unwrap().0;
    println!("{waited} ms from the end of the build to the end of Bazel");
    assert!(waited <= 5000, "{waited} ms: {call:?}");
}

/// Its targets and tests are those of the build.
async fn has_targets_and_tests(client: &Client, call: &ToolInvocationView) {
    assert_eq!(call.command.as_deref(), Some("test"), "{call:?}");
    assert_eq!((call.exit_name.as_deref(), call.exit_code), (Some("SUCCESS"), Some(0)), "{call:?}");
    assert_eq!(call.patterns.as_deref(), Some("//:c1_test //cases:tree_sum"), "{call:?}");
    let (group, id) = (call.group.clone(), call.id.clone());
    let request =
        TargetsRequest { group: group.clone(), id: id.clone(), status: None, cursor: None, limit: None };
    let targets = client.targets(&request).await.unwrap().targets;
    let status = |label: &str| targets.iter().find(|it| it.label == label).and_then(|it| it.status.clone());
    assert_eq!(status("//:c1_test").as_deref(), Some("built"), "{targets:?}");
    let request = TestsRequest { group, id, status: None, cursor: None, limit: None };
    let tests = client.tests(&request).await.unwrap().tests;
    let passed: Vec<_> = tests.iter().map(|test| (test.label.as_str(), test.status.as_str())).collect();
    assert_eq!(passed, [("//:c1_test", "passed")], "{tests:?}");
}

/// A Bazel outside of the farm that only publishes its events, and one in a build, which does so by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_and_tests_of_bazel_are_archived() {
    let place = Place::new();
    let mut rig = Rig::start(&place, &[]).await;
    let client = rig.client().await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    let backend = format!("--bes_backend={}", rig.grpc());
    let options = [&backend, "--invocation_id", CALL, "--remote_header=x-key=hidden"];
    let run = bazel.start("test", &options, &["//:c1_test", "//cases:tree_sum"]).finish().await.ok();
    assert!(!run.text.contains("Build Event Protocol"), "{run}");
    let id = Some(ToolInvocation::of(CALL));
    let outside =
        archived(&client, &ToolInvocationsRequest { id, ..ToolInvocationsRequest::default() }).await;
    assert_eq!((outside.build, outside.group.as_str()), (None, "default"));
    ended_at_once(&outside, Millis::from(run.ended));
    has_targets_and_tests(&client, &outside).await;
    bazel.end_server();

    let folder = bazel.workspace().display().to_string();
    let build = BuildId::generate();
    let id = build.to_string();
    let submitted = ["submit", "--dir", &folder, "--id", &id, "--"];
    let script = "bazel test //:c1_test //cases:tree_sum && date +ended:%s%3N";
    let command = ["sh", "-c", script];
    let output = rig.up().cli(&[&submitted[..], &command[..]].concat()).await;
    assert_eq!(output.code, 0, "{output:?}");
    let output = rig.up().cli(&["watch", &id, "--kind", "bazel", "--kind", "lifecycle"]).await;
    assert!(output.code == 0 && output.stderr.contains("bazel: //:c1_test passed"), "{output:?}");
    let wanted = ToolInvocationsRequest { build: Some(build), ..ToolInvocationsRequest::default() };
    let inside = archived(&client, &wanted).await;
    has_targets_and_tests(&client, &inside).await;
    let log = rig.up().cli(&["logs", &id]).await;
    let ended = log.stdout.lines().find_map(|line| line.strip_prefix("ended:")?.parse().ok());
    ended_at_once(&inside, Millis(ended.unwrap_or_else(|| panic!("{log:?}"))));
    // The first call of Bazel has the id of the invocation of the build.
    let key = client.find(build).await.unwrap();
    let invocations = client.invocations(&key).await.unwrap().invocations;
    let ids: Vec<_> = invocations.iter().filter_map(|run| run.id).map(|id| id.to_string()).collect();
    assert_eq!(ids, [inside.id.to_string()]);
    let of = HistoryOf::Test("//:c1_test".to_owned());
    let history = client.history(&HistoryRequest { group: None, of, days: None }).await.unwrap();
    assert_eq!((history.total.runs, history.total.passed), (2, 2), "{history:?}");
}

/// What publishes, stores and archives events dies while Bazel runs: Bazel does not notice, and nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_survive_the_death_of_every_service_on_their_way() {
    let place = Place::new();
    let mut rig = Rig::start(&place, &[]).await;
    let client = rig.client().await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    let slow = bazel.workspace().join("slow");
    fs::create_dir_all(&slow).unwrap();
    let rule = r#"genrule(name = "slow", outs = ["slow.txt"], cmd = "sleep 6; echo > $@")"#;
    fs::write(slow.join("BUILD.bazel"), rule).unwrap();
    let backend = format!("--bes_backend={}", rig.grpc());
    let options = [&backend, "--invocation_id", CALL];
    let id = Some(ToolInvocation::of(CALL));
    let wanted = ToolInvocationsRequest { id, ..ToolInvocationsRequest::default() };
    let running = bazel.start("test", &options, &["//:c1_test", "//slow"]);
    for service in ["gateway", "archive", "nats-server"] {
        rig.kill9(service).await;
    }
    let run = running.finish().await.ok();
    assert!(!run.text.contains("Build Event Protocol"), "{run}");
    let call = archived(&client, &wanted).await;
    ended_at_once(&call, Millis::from(run.ended));
    let request = |status: &str| TargetsRequest {
        group: call.group.clone(),
        id: call.id.clone(),
        status: Some(status.to_owned()),
        cursor: None,
        limit: None,
    };
    let built = client.targets(&request("built")).await.unwrap().targets;
    let labels: Vec<_> = built.iter().map(|target| target.label.as_str()).collect();
    assert_eq!(labels, ["//:c1_test", "//slow:slow"], "{call:?}");
    assert_eq!(call.exit_name.as_deref(), Some("SUCCESS"));
}
