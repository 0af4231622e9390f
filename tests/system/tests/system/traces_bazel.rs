//! The trace of a build with Bazel, of which a worker and an executor are killed.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use bus::{ActionSubject, Follower, Start, stream};
use farm::{Farm, SOON};
use model::{ExecutionPhase, ExecutionRecord, Outcome, Sequence};
use serde_json::json;

use crate::{
    check::{ended_within, until},
    collector::{Collector, Received, hex, named, orphans},
    marks::Marks,
    traces::assert_filled,
    warm::tools::{has_bazel, make_bazel_workspace},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PUBLISHER: &str = "b7ad6b7169203331";
/// Time limit of a build whose Bazel starts twice.
const BUILT: Duration = Duration::from_secs(150);
const CALL: &str = "build.bazel.remote.execution.v2.Execution/Execute";

#[tokio::test]
async fn a_bazel_build_with_lost_processes_is_one_trace_over_http() {
    if has_bazel() {
        one_trace(Collector::over_http().await).await;
    }
}

#[tokio::test]
async fn a_bazel_build_with_lost_processes_is_one_trace_over_grpc() {
    if has_bazel() {
        one_trace(Collector::over_grpc().await).await;
    }
}

async fn one_trace(collector: Collector) {
    let builder = Farm::builder().workspaces(1).lease_ttl(3).with("scheduler").with("cas");
    let builder = builder
        .env("FOREBAY_SANDBOX", "none")
        .env("FOREBAY_ACTION_HEDGES", "1")
        .env("FOREBAY_ACTION_HEDGE_DELAY_MS", "300")
        .env("FOREBAY_ACTION_WAITER_GRACE_MS", "120000");
    let farm = collector.receive(builder).start().await;
    let marks = Marks::of(&farm);
    let mut machines = vec![farm.machine("one", &[]).await, farm.machine("two", &[]).await];
    let source = farm.folder().join("source");
    write_project(&source, &marks);

    let key = submit(&farm, &source).await;
    // Its action hangs, so that a copy of it is started.
    marks.begun("it", 2).await;
    farm.take("worker").kill9();
    farm.wait_until(&key, SOON, |record| record.attempt.0 == 2).await;
    farm.keep(farm.spawn("worker").await);
    // The Bazel of the second attempt joins the action of the first one.
    let (mut log, mut joined) = (actions(&farm), false);
    let metrics = farm.metrics_urls().into_iter().find(|(name, _)| name.starts_with("gateway-")).unwrap().1;
    let deadline = std::time::Instant::now() + BUILT;
    while !joined {
        assert!(std::time::Instant::now() < deadline, "no call joined the action");
        let text = crate::http::client().get(&metrics).send().await.unwrap().text().await.unwrap();
        joined = text.contains("forebay_executions_merged_total 1");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lost = machines.remove(marks.holder("it", 0, &machines));
    lost.kill9();
    until_phase(&mut log, |phase| matches!(phase, ExecutionPhase::CopyEnded { .. })).await;
    marks.go("it");
    let record = ended_within(&farm, &key, BUILT).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");

    let spans = whole_trace(&collector).await;
    check_trace(&spans);
    let tree = tree(&spans);
    assert!(tree.lines().count() == spans.len() + 1 && tree.contains("merged"), "{tree}");
}

fn write_project(source: &Path, marks: &Marks) {
    std::fs::create_dir(source).unwrap();
    make_bazel_workspace(source);
    std::fs::write(source.join("it.sh"), marks.script("it")).unwrap();
    let rules = "genrule(name = \"it\", srcs = [\"it.sh\"], outs = [\"it.txt\"], cmd = \"sh $(SRCS) > $@\")\n\
                 genrule(name = \"all\", srcs = [\"it.txt\"], outs = [\"all.txt\"], cmd = \"cat $(SRCS) > $@\")\n";
    std::fs::write(source.join("BUILD"), rules).unwrap();
}

/// Submits the build by the command line, as a part of the trace of a publisher.
async fn submit(farm: &Farm, source: &Path) -> model::BuildKey {
    let dir = source.to_str().unwrap();
    let args = ["--json", "submit", "--dir", dir, "--", "bazel", "build", "//:all"];
    let mut command = farm.command(&args);
    command.env("TRACEPARENT", format!("00-{TRACE}-{PUBLISHER}-01"));
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let id = reply["id"].as_str().unwrap().parse().unwrap();
    model::BuildKey { group: "default".parse().unwrap(), id }
}

fn actions(farm: &Farm) -> Follower {
    Follower::new(farm.bus(), stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)))
}

async fn until_phase(log: &mut Follower, wanted: impl Fn(&ExecutionPhase) -> bool) {
    let found = async {
        loop {
            for stored in log.next(100).await {
                let record: ExecutionRecord = serde_json::from_slice(&stored.payload).unwrap();
                if wanted(&record.phase) {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(SOON, found).await.expect("the phase was not reached");
}

/// The trace, once the spans are there that are exported last.
async fn whole_trace(collector: &Collector) -> Vec<Received> {
    let is_whole = || {
        let names = named(&collector.trace(TRACE));
        let count = |name: &str| names.iter().filter(|it| it.ends_with(name)).count();
        count(" BUILD") == 1
            && count(" invocation") == 2
            && count(" execution") == 2
            && count("/Execute") >= 3
    };
    until("the whole trace was received", SOON, is_whole).await;
    // The dispatcher exports what the build waited for at its next pass.
    until("the waits were received", SOON, || {
        named(&collector.trace(TRACE)).iter().any(|it| it.starts_with("forebay-dispatcher"))
    })
    .await;
    collector.trace(TRACE)
}

fn check_trace(spans: &[Received]) {
    let lost = orphans(spans, PUBLISHER);
    assert!(lost.is_empty(), "{lost:#?}");
    let mut services: Vec<&str> = spans.iter().map(|it| it.service.as_str()).collect();
    services.sort_unstable();
    services.dedup();
    assert!(services.len() >= 8, "{services:?}");
    let all = |name: &str| spans.iter().filter(|it| it.name() == name).collect::<Vec<_>>();
    let (build, attempts) = (all("BUILD")[0], all("invocation"));
    assert!(attempts.iter().all(|it| it.is_child_of(build)), "attempts are siblings");
    assert!(attempts.iter().any(|it| it.span.links.len() == 1), "the second one links to the first");
    for whole in &attempts {
        assert_filled(spans, whole);
    }
    let of_it = all("run");
    assert!(of_it.iter().any(|it| it.number("forebay.copy") == Some(1) && it.span.links.len() == 1));
    assert!(of_it.iter().any(|it| it.service == "forebay-scheduler" && it.error().is_some()), "{of_it:#?}");
    let calls = all(CALL);
    let merged = calls.iter().find(|it| it.text("forebay.answer").as_deref() == Some("merged"));
    let execution = &merged.unwrap().span.links[0].span_id;
    assert!(all("execution").iter().any(|it| it.span.span_id == *execution));
}

/// What `examples/tracing/tree.py` prints for these spans.
fn tree(spans: &[Received]) -> String {
    let script = farm::repository().join("examples/tracing/tree.py");
    let mut child =
        Command::new("python3").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for received in spans {
        writeln!(input, "{}", as_json(received)).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    text
}

fn as_json(received: &Received) -> serde_json::Value {
    let span = &received.span;
    let text =
        |name: &str| received.text(name).map(|value| json!({"key": name, "value": {"stringValue": value}}));
    let number = |name: &str| {
        received.number(name).map(|value| json!({"key": name, "value": {"intValue": value.to_string()}}))
    };
    let attributes: Vec<_> = ["forebay.answer", "forebay.target", "forebay.reason"]
        .into_iter()
        .filter_map(text)
        .chain(["forebay.attempt", "forebay.copy"].into_iter().filter_map(number))
        .collect();
    let links: Vec<_> = span.links.iter().map(|link| json!({"spanId": hex(&link.span_id)})).collect();
    let status = received.error().map_or(json!({}), |error| json!({"code": 2, "message": error}));
    json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": received.service}}]},
        "scopeSpans": [{"spans": [{
            "traceId": hex(&span.trace_id), "spanId": hex(&span.span_id), "parentSpanId": hex(&span.parent_span_id),
            "name": span.name, "startTimeUnixNano": span.start_time_unix_nano.to_string(),
            "endTimeUnixNano": span.end_time_unix_nano.to_string(),
            "attributes": attributes, "links": links, "status": status,
        }]}],
    }]})
}
