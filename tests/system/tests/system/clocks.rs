//! Services whose clocks are wrong by an hour or by seconds work like the others, and are reported.

use std::time::Duration;

use farm::{Farm, SOON, WrongClock};
use model::{BuildKey, BuildRecord, BuildRequest, Millis, Outcome, ScalePlan, State};

use crate::{
    acting,
    check::{ended_as, script},
    quota::{decided, set_quota},
};

/// Services in start order; every second one has the other clock.
const SERVICES: [&str; 11] = [
    "enqueuer",
    "dispatcher",
    "worker",
    "reaper",
    "gateway",
    "executor",
    "scheduler",
    "cas",
    "governor",
    "autoscaler",
    "trainer",
];

const SCALING: &str = r#"{"workers":{"min":1,"max":2}}"#;
/// Maximum difference from now of a time that was written just now.
const NEAR: Duration = Duration::from_secs(120);

/// Starts a farm with one workspace and these two clocks.
async fn farm_with(seconds: [i64; 2]) -> Farm {
    let farm = Farm::builder()
        .only(&[])
        .env("FOREBAY_SANDBOX", "none")
        .env("FOREBAY_WORKSPACES", "1")
        .env("FOREBAY_GOVERNOR_TICK_MS", "500")
        .env("FOREBAY_AUTOSCALE", SCALING)
        .env("FOREBAY_AUTOSCALE_TICK_MS", "500")
        .start()
        .await;
    let clocks = seconds.map(WrongClock::ahead_by);
    let starting: Vec<_> = SERVICES
        .iter()
        .zip(clocks.iter().cycle())
        .map(|(service, clock)| farm.start_unready(service, &clock.env()))
        .collect();
    for mut service in starting {
        service.ready(2 * SOON).await;
        farm.keep(service);
    }
    farm
}

fn assert_near(at: Millis, now: Millis, what: &str) {
    assert!(now.since(at) < NEAR && at.since(now) < NEAR, "{what}: {at:?}, and it is {now:?}");
}

/// Milliseconds from the build's first to its last record, according to their times.
async fn lasted(farm: &Farm, key: &BuildKey) -> Duration {
    let history: Vec<BuildRecord> = farm.history(key).await.into_iter().map(|(_, record)| record).collect();
    for record in &history {
        assert_near(record.at_ms, farm.bus().now(), "a record");
    }
    history.last().unwrap().at_ms.since(history[0].at_ms)
}

async fn builds_end_right_and_in_time(farm: &Farm) {
    // Longer than the grace period of the reaper for a run that exceeds its timeout.
    let wanted = BuildRequest { timeout_seconds: Some(60), ..script("sleep 4") };
    let slow = farm.submit("g", wanted).await;
    farm.wait_until(&slow, SOON, |record| record.state() == State::InProgress).await;
    let wanted = BuildRequest { queue_timeout_seconds: Some(2), ..script("true") };
    let late = farm.submit("g", wanted).await;
    ended_as(farm, &late, Outcome::Expired).await;
    assert!(lasted(farm, &late).await >= Duration::from_millis(1900));
    let record = ended_as(farm, &slow, Outcome::Succeeded).await;
    assert_eq!((record.attempt.0, farm.history(&slow).await.len()), (1, 3));
    assert!(lasted(farm, &slow).await >= Duration::from_millis(3900));
    let started = record.result().unwrap().command_started_at_us.unwrap() / 1000;
    assert_near(Millis(started), record.at_ms, "the start of the command");

    let wanted = BuildRequest { timeout_seconds: Some(1), ..script("sleep 1000") };
    let long = farm.submit("g", wanted).await;
    let record = ended_as(farm, &long, Outcome::TimedOut).await;
    // The timeout counts from the start of the invocation: the command may have less of it on a busy machine.
    let took = record.at_ms.since(record.invocation().unwrap().started_at_ms).as_secs_f64();
    assert!((0.9..30.0).contains(&took), "{took}");
}

async fn actions_end_right(farm: &Farm) {
    let remote = acting::remote(farm).await;
    let action = acting::upload(&remote, "echo out").await;
    let response = acting::executed(&remote, action).await;
    assert_eq!(acting::stdout(&remote, &response).await, "out\n");
    let times = response.result.unwrap().execution_metadata.unwrap();
    for at in [times.queued_timestamp, times.execution_start_timestamp, times.worker_completed_timestamp] {
        let at = Millis(u64::try_from(at.unwrap().seconds).unwrap() * 1000);
        assert_near(at, farm.bus().now(), "a time of an action");
    }
}

async fn decisions_are_dated_right(farm: &Farm) {
    set_quota(farm, "g", 10.0).await;
    let record = decided(farm, |record| !record.groups.is_empty()).await;
    assert_near(record.at_ms, farm.bus().now(), "the governor's record");
    let plans = async {
        loop {
            if let Some(plan) = farm.bus().buckets().all::<ScalePlan>().await.unwrap().into_values().next() {
                return plan;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let plan = tokio::time::timeout(SOON, plans).await.expect("the autoscaler decides");
    assert_near(plan.at_ms, farm.bus().now(), "the autoscaler's plan");
}

/// Asserts that wrong clocks are reported; `seconds` are those of the worker and of the executor.
async fn clocks_are_named(farm: &Farm, seconds: [i64; 2]) {
    let side = |seconds: i64| if seconds < 0 { "behind" } else { "ahead" };
    for (list, seconds) in ["workers", "executors"].into_iter().zip(seconds) {
        let shown = farm.cli(&[list]).await;
        let line = shown
            .stdout
            .lines()
            .find(|line| line.contains(", clock "))
            .unwrap_or_else(|| panic!("{shown:?}"));
        assert!(line.contains(side(seconds)), "{line}");
    }
    let shown = farm.cli(&["doctor"]).await;
    let line =
        shown.stdout.lines().find(|line| line.contains(" clocks ")).unwrap_or_else(|| panic!("{shown:?}"));
    assert!(line.starts_with("warn") && line.contains("worker-") && line.contains("executor-"), "{line}");
    let http = crate::http::client();
    for (service, url) in farm.metrics_urls() {
        let text = http.get(&url).send().await.unwrap().text().await.unwrap();
        let skew = text.lines().find_map(|line| line.strip_prefix("forebay_clock_skew_milliseconds "));
        let skew: i64 = skew.unwrap_or_else(|| panic!("{service}: {text}")).parse().unwrap();
        assert!(skew.abs() > 3000, "{service}: {skew} ms");
    }
}

async fn all_goes_well_with(seconds: [i64; 2]) {
    let farm = farm_with(seconds).await;
    builds_end_right_and_in_time(&farm).await;
    actions_end_right(&farm).await;
    decisions_are_dated_right(&farm).await;
    clocks_are_named(&farm, seconds).await;
}

#[tokio::test]
async fn an_hour_ahead_and_an_hour_behind_are_as_good_as_the_right_time() {
    all_goes_well_with([3600, -3600]).await;
}

#[tokio::test]
async fn an_hour_behind_and_an_hour_ahead_are_as_good_as_the_right_time() {
    all_goes_well_with([-3600, 3600]).await;
}

#[tokio::test]
async fn five_seconds_are_as_good_as_the_right_time() {
    all_goes_well_with([5, -5]).await;
}

#[tokio::test]
async fn clocks_that_are_right_are_not_spoken_of() {
    let farm = Farm::builder().without("gateway").start().await;
    let shown = farm.cli(&["workers"]).await;
    assert!(!shown.stdout.contains("clock"), "{}", shown.stdout);
    let shown = farm.cli(&["doctor"]).await;
    assert!(shown.stdout.lines().any(|line| line.starts_with("ok    clocks ")), "{}", shown.stdout);
}
