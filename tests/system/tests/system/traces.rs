//! Traces as collectors receive them.

use std::time::Duration;

use farm::{Farm, SOON};
use model::{BuildId, BuildKey, BuildRequest, Outcome, Priority, State};
use serde_json::json;

use crate::{
    check::{BOUND, ended, ended_as, request, script, until, why_when},
    collector::{Collector, Received, hex, named, orphans},
    jobs,
    quota::{decide, set_quota, x86},
};

/// A dispatcher looks again at least once in this time.
const LOOKED: Duration = Duration::from_millis(1500);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const OTHER: &str = "11111111111111111111111111111111";
const PUBLISHER: &str = "b7ad6b7169203331";

/// Publishes a build with a trace context.
async fn publish(farm: &Farm, request: BuildRequest, (trace, sampled): (&str, bool)) -> BuildKey {
    let id = BuildId::generate();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", id.to_string());
    let flags = u8::from(sampled);
    headers.insert("traceparent", format!("00-{trace}-{PUBLISHER}-{flags:02x}"));
    let payload = serde_json::to_vec(&BuildRequest { id: Some(id), ..request }).unwrap();
    let subject = "forebay.build.request.g.interactive";
    let sent = farm.bus().jetstream().publish_with_headers(subject, headers, payload.into()).await;
    sent.unwrap().await.unwrap();
    BuildKey { group: "g".parse().unwrap(), id }
}

/// Waits until spans with these names, as often as they are named, were received of the trace. Asserts that each has a
/// parent that was received.
async fn received(collector: &Collector, wanted: &[(&str, &str)]) -> Vec<Received> {
    let mut wanted: Vec<String> =
        wanted.iter().map(|(service, name)| format!("forebay-{service} {name}")).collect();
    wanted.sort();
    let sorted = || {
        let mut names = named(&collector.trace(TRACE));
        names.sort();
        names
    };
    let is_there = || {
        let mut left = sorted();
        wanted.iter().all(|name| {
            let place = left.iter().position(|it| it == name);
            place.map(|place| left.remove(place)).is_some()
        })
    };
    let began = std::time::Instant::now();
    while !is_there() {
        assert!(began.elapsed() < SOON, "wanted {wanted:#?}, received {:#?}", sorted());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let spans = collector.trace(TRACE);
    let lost = orphans(&spans, PUBLISHER);
    assert!(lost.is_empty(), "{lost:#?}");
    spans
}

fn the<'a>(spans: &'a [Received], name: &str) -> &'a Received {
    spans.iter().find(|it| it.name() == name).unwrap_or_else(|| panic!("no {name} in {:?}", named(spans)))
}

/// Asserts that the children of a span fill it, except for 5 % or 3 ms.
pub(crate) fn assert_filled(spans: &[Received], whole: &Received) {
    let parts: u64 = spans.iter().filter(|it| it.is_child_of(whole)).map(Received::nanos).sum();
    let gap = whole.nanos().abs_diff(parts);
    assert!(gap <= (whole.nanos() / 20).max(3_000_000), "{} of {} ns: {spans:#?}", parts, whole.nanos());
}

#[tokio::test]
async fn one_trace_goes_from_the_publish_to_the_end() {
    let collector = Collector::over_http().await;
    let farm = collector.receive(Farm::builder().without("gateway")).start().await;
    let key = publish(&farm, script("echo $TRACEPARENT; sleep 0.2"), (TRACE, true)).await;
    ended(&farm, &key).await;
    let wanted = [
        ("enqueuer", "enqueue"),
        ("worker", "queue"),
        ("worker", "offer"),
        ("worker", "invocation"),
        ("worker", "prepare"),
        ("worker", "command"),
        ("worker", "outputs"),
        ("worker", "BUILD"),
    ];
    let mut spans = received(&collector, &wanted).await;
    // On a busy machine it may have waited for the workspace.
    spans.retain(|it| !it.name().starts_with("wait for"));
    assert_eq!(spans.len(), wanted.len(), "{:?}", named(&spans));
    let (build, invocation, command) =
        (the(&spans, "BUILD"), the(&spans, "invocation"), the(&spans, "command"));
    assert_eq!(hex(&build.span.parent_span_id), PUBLISHER);
    assert_eq!(build.text("cicd.pipeline.result").unwrap(), "success");
    for name in ["enqueue", "queue", "offer", "invocation"] {
        assert!(the(&spans, name).is_child_of(build), "{name}");
    }
    assert!(command.is_child_of(invocation));
    assert_filled(&spans, invocation);
    assert!(command.nanos() >= 200_000_000, "{command:?}");
    // The command continues the trace.
    let console = farm.wait_event(&key, BOUND, &[bus::EventKind::Console], |_| true).await;
    let client::WatchBody::Console(chunk) = console.body else { panic!("{console:?}") };
    let text = String::from_utf8(chunk.data.to_vec()).unwrap();
    assert_eq!(text.trim(), format!("00-{TRACE}-{}-01", hex(&command.span.span_id)));
}

#[tokio::test]
async fn a_killed_worker_leaves_no_hole() {
    let collector = Collector::over_grpc().await;
    let farm = collector.receive(Farm::builder().without("gateway").lease_ttl(2)).start().await;
    let effects = farm.effects();
    let key = publish(
        &farm,
        request(&effects.command(r#"[ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#)),
        (TRACE, true),
    )
    .await;
    until("it runs", SOON, || !effects.of(key.id).is_empty()).await;
    farm.take("worker").kill9();
    let _second = farm.spawn("worker").await;
    assert_eq!(ended_as(&farm, &key, Outcome::Succeeded).await.attempt.0, 2);
    let wanted = [
        ("reaper", "queue"),
        ("reaper", "offer"),
        ("reaper", "invocation"),
        ("reaper", "run until the last sign of life"),
        ("reaper", "lease expiry"),
        ("worker", "queue"),
        ("worker", "offer"),
        ("worker", "invocation"),
        ("worker", "command"),
        ("worker", "BUILD"),
    ];
    let spans = received(&collector, &wanted).await;
    let attempt = |number| {
        let mut all = spans.iter().filter(|it| it.name() == "invocation");
        all.find(|it| it.number("forebay.attempt") == Some(number)).unwrap()
    };
    let (first, second) = (attempt(1), attempt(2));
    assert!(first.error().unwrap().contains("lease"), "{first:?}");
    assert_eq!(first.text("cicd.pipeline.task.run.result").unwrap(), "error");
    assert_eq!(second.span.links[0].span_id, first.span.span_id);
    assert_filled(&spans, first);
    assert_filled(&spans, second);
    assert_filled(
        &spans.iter().filter(|it| it.name() != "enqueue").cloned().collect::<Vec<_>>(),
        the(&spans, "BUILD"),
    );
}

#[tokio::test]
async fn the_trace_of_a_build_says_what_it_waited_for() {
    let collector = Collector::over_http().await;
    let builder = Farm::builder().workspaces(2).without("gateway").without("dispatcher");
    let farm = collector.receive(builder).start().await;
    set_quota(&farm, "g", 1.0).await;
    decide(&farm, "g", 1.0).await;
    farm.keep(farm.spawn("dispatcher").await);
    let of_one = || BuildRequest { occupancy: x86(1.0), ..script("sleep 60") };
    let running = publish(&farm, of_one(), (OTHER, true)).await;
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    let waiting = publish(&farm, BuildRequest { occupancy: x86(1.0), ..script("true") }, (TRACE, true)).await;
    why_when(&farm, &waiting, |why| why.waiting.is_some()).await;
    tokio::time::sleep(LOOKED).await;
    // An emergency takes the last workspace.
    let urgent = BuildRequest { priority: Some(Priority::Emergency), ..script("sleep 60") };
    let other = farm.submit("other", urgent).await;
    farm.wait_until(&other, SOON, |record| record.state() == State::InProgress).await;
    tokio::time::sleep(LOOKED).await;
    farm.client().cancel(&running, None).await.unwrap();
    ended_as(&farm, &waiting, Outcome::Succeeded).await;
    let wanted =
        [("worker", "queue"), ("dispatcher", "wait for quota"), ("dispatcher", "wait for workspace")];
    let spans = received(&collector, &wanted).await;
    let queue = the(&spans, "queue");
    // The second workspace may be known only after the first look: then it is waited for at first, too.
    let last = |name: &str| {
        let all = spans.iter().filter(|it| it.name() == name);
        all.max_by_key(|it| it.span.start_time_unix_nano).unwrap()
    };
    let waits = ["wait for quota", "wait for workspace"].map(last);
    assert!(waits.iter().all(|wait| wait.is_child_of(queue)), "{spans:#?}");
    // Without a gap; they overlap if the quota was short once more after it had been granted.
    assert!(waits[1].span.start_time_unix_nano <= waits[0].span.end_time_unix_nano, "{spans:#?}");
    assert!(waits[0].span.start_time_unix_nano < waits[1].span.start_time_unix_nano, "{spans:#?}");
    // The time of the claim has whole milliseconds and limits the end of the queue.
    let apart = waits[1].span.end_time_unix_nano.abs_diff(queue.span.end_time_unix_nano);
    assert!(apart < 1_000_000, "{apart} ns");
}

#[tokio::test]
async fn actions_of_a_build_are_in_its_trace() {
    let collector = Collector::over_grpc().await;
    let farm = collector.receive(jobs::builder()).start().await;
    let tasks = json!([jobs::sh("one", "sleep 0.2; echo one"), jobs::sh("two", "echo two; exit 3")]);
    let key = publish(&farm, jobs::request(jobs::job(&tasks)), (TRACE, true)).await;
    ended_as(&farm, &key, Outcome::Failed).await;
    let call = "build.bazel.remote.execution.v2.Execution/Execute";
    let of_one = [
        ("gateway", call),
        ("executor", "execution"),
        ("executor", "queue"),
        ("executor", "run"),
        ("executor", "inputs"),
        ("executor", "command"),
        ("executor", "outputs"),
    ];
    let wanted: Vec<_> = of_one.iter().chain(&of_one).copied().chain([("worker", "job")]).collect();
    let spans = received(&collector, &wanted).await;
    let job = the(&spans, "job");
    let executions: Vec<&Received> = spans.iter().filter(|it| it.name() == "execution").collect();
    for execution in &executions {
        assert!(execution.is_child_of(job));
        let calls: Vec<&Received> = spans
            .iter()
            .filter(|it| it.name() == call && it.span.links[0].span_id == execution.span.span_id)
            .collect();
        assert!(calls.len() == 1 && calls[0].is_child_of(job), "{calls:#?}");
        assert_filled(&spans, execution);
        let run = spans.iter().find(|it| it.name() == "run" && it.is_child_of(execution)).unwrap();
        assert_filled(&spans, run);
    }
    assert!(executions.iter().any(|it| it.error() == Some("exit code 3")));
}

#[tokio::test]
async fn traces_that_were_not_selected_are_kept_if_the_build_fails() {
    let collector = Collector::over_http().await;
    let farm = collector.receive(Farm::builder().without("gateway")).start().await;
    // The publisher decided that its trace is not sampled.
    let good = publish(&farm, script("true"), (OTHER, false)).await;
    ended_as(&farm, &good, Outcome::Succeeded).await;
    let bad = publish(&farm, script("exit 7"), (TRACE, false)).await;
    ended_as(&farm, &bad, Outcome::Failed).await;
    let wanted =
        [("enqueuer", "enqueue"), ("worker", "invocation"), ("worker", "command"), ("worker", "BUILD")];
    let spans = received(&collector, &wanted).await;
    let build = spans.iter().find(|it| it.name() == "BUILD" && it.error().is_some()).unwrap();
    assert_eq!(build.text("cicd.pipeline.result").unwrap(), "failure");
    assert!(collector.trace(OTHER).is_empty());
}

#[tokio::test]
async fn a_trace_with_enough_actions_links_to_those_of_further_ones() {
    let collector = Collector::over_http().await;
    let builder = jobs::builder().env("FOREBAY_TRACE_ACTIONS_MAX", "2");
    let farm = collector.receive(builder).start().await;
    let tasks: Vec<_> =
        (0..5).map(|number| jobs::sh(&format!("t{number}"), &format!("echo {number}"))).collect();
    let mut last = jobs::sh("last", "exit 3");
    last["dependencies"] = json!(["t0", "t1", "t2", "t3", "t4"]);
    let tasks = json!(tasks.into_iter().chain([last]).collect::<Vec<_>>());
    let key = publish(&farm, jobs::request(jobs::job(&tasks)), (TRACE, true)).await;
    ended_as(&farm, &key, Outcome::Failed).await;
    let call = "build.bazel.remote.execution.v2.Execution/Execute";
    let further = ("gateway", "further calls of Execute");
    let wanted = [("gateway", call), ("executor", "execution"), ("worker", "BUILD"), further];
    received(&collector, &wanted).await;
    let is_counted = || {
        let spans = collector.trace(TRACE);
        let further = spans.iter().filter(|it| it.name() == further.1);
        further.filter_map(|it| it.number("forebay.calls")).sum::<i64>() == 4
    };
    until("all further calls are counted", SOON, is_counted).await;
    let spans = collector.trace(TRACE);
    assert!(orphans(&spans, PUBLISHER).is_empty(), "{spans:#?}");
    for name in [call, "execution", "run"] {
        assert_eq!(spans.iter().filter(|it| it.name() == name).count(), 2, "{name}: {:?}", named(&spans));
    }
    let of_failed = collector.all().into_iter().find(|it| it.name() == "execution" && it.error().is_some());
    let of_failed = of_failed.unwrap();
    assert_eq!(of_failed.text("forebay.build").unwrap(), key.id.to_string());
    let links: Vec<_> =
        spans.iter().filter(|it| it.name() == further.1).flat_map(|it| &it.span.links).collect();
    assert!(
        links.len() == 4 && links.iter().any(|link| link.trace_id == of_failed.span.trace_id),
        "{links:?}"
    );
}
