//! Estimates of build run times: learned from ended builds, kept between attempts, and used for the queue order.

use std::ops::Range;

use farm::{Farm, SOON, ServiceProcess};
use model::{
    Attempt, Build, BuildId, BuildKey, BuildRecord, BuildRequest, Esu, Millis, Occupancy, Outcome,
    RequestLimits, Sequence, State,
};

use crate::check::{BOUND, ended_as, request, script};

/// Creates a build with a label by which similar builds are found.
pub(crate) fn labelled(kind: &str, text: &str) -> BuildRequest {
    let labels = [("kind".to_owned(), kind.to_owned())].into();
    BuildRequest { id: Some(BuildId::generate()), labels, ..script(text) }
}

/// Runs builds like `request` until the estimate in milliseconds of one of them is in `wanted`.
pub(crate) async fn teach(farm: &Farm, group: &str, request: &BuildRequest, wanted: Range<u64>) {
    let mut expected = Vec::new();
    for _ in 0..20 {
        let build = BuildRequest { id: Some(BuildId::generate()), ..request.clone() };
        let key = farm.submit(group, build).await;
        expected.push(farm.wait_finished(&key, SOON).await.build.expected_ms);
        if expected.last().is_some_and(|last| last.is_some_and(|ms| wanted.contains(&ms))) {
            return;
        }
    }
    panic!("{expected:?} was expected of {request:?}");
}

#[tokio::test]
async fn what_ended_tells_how_long_the_next_one_will_take() {
    let farm = Farm::builder().without("gateway").start().await;
    let (short, long) = (labelled("short", "sleep 0.1"), labelled("long", "sleep 0.8"));
    let first = farm.submit("g", short.clone()).await;
    assert_eq!(ended_as(&farm, &first, Outcome::Succeeded).await.build.expected_ms, None, "nothing is known");
    teach(&farm, "g", &short, 100..700).await;
    teach(&farm, "g", &long, 800..2000).await;
    // A new enqueuer learns from the builds of both groups that ended before its start.
    farm.replace("enqueuer", &[]).await;
    teach(&farm, "g", &long, 800..2000).await;
    teach(&farm, "g", &short, 100..700).await;
    let text = metrics(&farm, "enqueuer").await;
    assert!(text.contains("forebay_estimate_permille{share=\"within_20\"}"), "{text}");
    assert!(text.contains("forebay_estimate_builds_total{within="), "{text}");
}

/// Returns the metrics of a service.
async fn metrics(farm: &Farm, service: &str) -> String {
    let urls = farm.metrics_urls();
    let (_, url) = urls.iter().find(|(name, _)| name.starts_with(service)).unwrap();
    crate::http::client().get(url).send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn what_was_expected_is_kept_when_a_worker_dies() {
    let farm = Farm::builder().without("gateway").start().await;
    let wanted = labelled("kept", "sleep 0.1");
    teach(&farm, "g", &wanted, 100..700).await;
    let key = farm.submit("g", labelled("kept", "sleep 1")).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    farm.replace("worker", &[]).await;
    let (_, again) = farm.wait_until(&key, BOUND, |record| record.attempt > Attempt::FIRST).await;
    let before = farm.history(&key).await.remove(0).1.build.expected_ms;
    assert!(before.is_some());
    assert_eq!(again.build.expected_ms, before);
}

/// Creates a queued build as an enqueuer writes it, with this arrival time after the first build and this estimate.
fn queued(group: &str, came_ms: u64, expected_ms: u64, types: &[&str]) -> BuildRecord {
    let limits = RequestLimits {
        attempts: 1,
        attempts_max: 1,
        request_bytes_max: 1 << 20,
        executor_types: types.iter().map(|kind| kind.parse().unwrap()).collect(),
        ..RequestLimits::default()
    };
    let an_hour_ago = Millis(Millis::of_this_machine().0 / 1_000_000 * 1_000_000 - 3_600_000);
    let at = Millis(an_hour_ago.0 + came_ms);
    let accepted = request(&["true"]).validate(&group.parse().unwrap(), None, None, &limits, at).unwrap();
    let build = Build {
        expected_ms: Some(expected_ms),
        timeout_seconds: 60,
        queue_timeout_seconds: 86_400,
        lease_ttl_seconds: 10,
        occupancy: Occupancy::of_each(types.iter().map(|kind| kind.parse().unwrap()), Esu::ONE),
        ..accepted.build
    };
    BuildRecord::enqueued(build)
}

/// Writes five builds; their names are their queue positions.
async fn write(farm: &Farm, group: &str) -> Vec<(char, BuildKey)> {
    let builds = [
        ('A', 0, 100_000, &["x86"][..]),
        ('B', 1000, 10_000, &["x86", "gpu"]),
        ('C', 2000, 1000, &["x86"]),
        ('D', 3000, 20_000, &["x86"]),
        ('E', 190_000, 500, &["x86"]),
    ];
    let mut keys = Vec::new();
    for (name, came_ms, expected_ms, types) in builds {
        let record = queued(group, came_ms, expected_ms, types);
        let written = farm.bus().transition(&record, Sequence(0), SOON).await.unwrap();
        assert!(matches!(written, bus::Written::Won(_)), "{written:?}");
        keys.push((name, record.build.key()));
    }
    keys
}

/// Returns the order in which the builds started.
async fn starts(farm: &Farm, builds: &[(char, BuildKey)]) -> String {
    let mut started = Vec::new();
    for (name, key) in builds {
        let record = farm.wait_finished(key, BOUND).await;
        started.push((record.invocation().unwrap().started_at_ms, *name));
    }
    started.sort_unstable();
    started.into_iter().map(|(_, name)| name).collect()
}

/// Starts a worker that runs one build after the other.
async fn one_by_one(farm: &Farm) -> ServiceProcess {
    farm.spawn_with_env("worker", &[("FOREBAY_WORKSPACES", "1")]).await
}

#[tokio::test]
async fn each_order_of_a_band_is_the_order_of_starts() {
    let farm = Farm::builder().only(&["dispatcher", "reaper"]).start().await;
    for (order, wanted) in [
        ("fcfs", "ABCDE"),
        ("spt", "ECBDA"),
        ("edf", "CBDEA"),
        ("oagm", "ECBDA"),
        ("least_flex", "BACDE"),
        ("spt-aged", "CEBDA"),
    ] {
        let builds = write(&farm, order).await;
        // The queues already exist, in the previous order.
        farm.replace("dispatcher", &[("FOREBAY_BAND_ORDER", order)]).await;
        let worker = one_by_one(&farm).await;
        assert_eq!(starts(&farm, &builds).await, wanted, "{order}");
        drop(worker);
    }
}

#[tokio::test]
async fn a_queue_keeps_its_order_when_redis_forgets() {
    let farm = Farm::builder()
        .only(&["dispatcher", "reaper"])
        .env("FOREBAY_BAND_ORDERS", r#"{"interactive":"edf"}"#)
        .start()
        .await;
    let builds = write(&farm, "g").await;
    farm.servers.flush_redis();
    let more = write(&farm, "h").await;
    let _worker = one_by_one(&farm).await;
    assert_eq!(starts(&farm, &builds).await, "CBDEA");
    assert_eq!(starts(&farm, &more).await, "CBDEA");
}
