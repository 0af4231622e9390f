//! Metrics as a scraper reads them.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use farm::{Farm, SOON};
use model::{BuildKey, BuildRequest, Context, ExecutorType, Outcome, Priority, State};

use crate::{
    acting,
    check::{BOUND, ended, ended_as, script},
    quota::{decided, set_quota},
};

/// Time for which a process shows values without reading them again.
const FRESH: Duration = Duration::from_secs(5);

/// The samples of one process, by name and labels.
struct Scraped {
    service: String,
    samples: HashMap<String, f64>,
}

impl Scraped {
    async fn of(farm: &Farm, service: &str) -> Self {
        let urls = farm.metrics_urls();
        let (_, url) = urls.iter().find(|(name, _)| name.starts_with(service)).expect(service);
        let text = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
        assert!(text.ends_with("# EOF\n"), "{service}: {text}");
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect();
        Self { service: service.to_owned(), samples }
    }

    /// Value of the series with these labels.
    fn get(&self, series: &str) -> f64 {
        let name = series.split('{').next().unwrap_or_default();
        let similar = || self.samples.keys().filter(|it| it.starts_with(name)).collect::<Vec<_>>();
        *self
            .samples
            .get(series)
            .unwrap_or_else(|| panic!("{}: no {series} in {:?}", self.service, similar()))
    }

    fn has(&self, series: &str) -> bool {
        self.samples.contains_key(series)
    }

    /// Asserts the values of series without their common prefix `forebay_`.
    fn assert(&self, wanted: &[(&str, f64)]) {
        for (series, value) in wanted {
            let found = self.get(&format!("forebay_{series}"));
            assert!(
                (found - value).abs() < f64::EPSILON,
                "{}: {series} is {found}, not {value}",
                self.service
            );
        }
    }

    /// Asserts that the values of series are at least 1.
    fn assert_some(&self, series: &[&str]) {
        for series in series {
            let found = self.get(&format!("forebay_{series}"));
            assert!(found >= 1.0, "{}: {series} is {found}", self.service);
        }
    }
}

/// Scrapes a service until `wanted` holds.
async fn scraped_until(farm: &Farm, service: &str, wanted: impl Fn(&Scraped) -> bool) -> Scraped {
    let start = Instant::now();
    loop {
        let found = Scraped::of(farm, service).await;
        if wanted(&found) {
            return found;
        }
        let shown = &found.samples;
        assert!(start.elapsed() < FRESH + SOON, "{service} never shows what was expected: {shown:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn submit(farm: &Farm, priority: Priority, text: &str) -> BuildKey {
    farm.submit("g", BuildRequest { priority: Some(priority), ..script(text) }).await
}

/// A farm with all services of builds and actions, after a build, a watched build, a published build and an action,
/// with both workspaces in use and a build that waits.
async fn busy_farm() -> Farm {
    let builder = Farm::builder().with_actions().with("governor").env("FOREBAY_SANDBOX", "none");
    let farm = builder.env("FOREBAY_GOVERNOR_TICK_MS", "500").start().await;
    set_quota(&farm, "g", 100.0).await;
    decided(&farm, |record| record.groups.contains_key(&"g".parse().unwrap())).await;
    let source = farm.folder().join("source");
    std::fs::create_dir(&source).unwrap();
    let context = Context::Directory { path: source.to_str().unwrap().to_owned(), ignore_files: false };
    let key = farm.submit("g", BuildRequest { context, ..script("echo x") }).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let events = format!("{}/v1/builds/g/{}/events", farm.http_url(), key.id);
    let watched = crate::http::client().get(events).send().await.unwrap().text().await.unwrap();
    assert!(watched.contains("INVOCATION_FINISHED"), "{watched}");
    let published = farm.publish("g", Priority::Batch, &script("echo y")).await;
    ended(&farm, &published).await;
    let remote = acting::remote(&farm).await;
    let action = acting::upload(&remote, "echo z").await;
    assert_eq!(acting::stdout(&remote, &acting::executed(&remote, action).await).await, "z\n");
    for _ in 0..2 {
        let key = submit(&farm, Priority::Interactive, "exec sleep 1000").await;
        farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    }
    submit(&farm, Priority::Batch, "echo waits").await;
    farm
}

#[tokio::test]
async fn every_service_shows_its_part_of_a_busy_farm() {
    let farm = busy_farm().await;
    for service in farm.metrics_urls().into_keys() {
        let scraped = Scraped::of(&farm, &service).await;
        scraped.assert(&[("bus_connected", 1.0), ("bus_reconnects_total", 0.0)]);
        assert!(scraped.has("forebay_bus_publish_seconds_count"), "{service}");
    }
    builds(&farm).await;
    actions(&farm).await;
    bus(&farm).await;
    quotas(&farm).await;
}

async fn builds(farm: &Farm) {
    let waiting = "forebay_builds_waiting{priority=\"batch\"}";
    let wanted = |it: &Scraped| it.samples.get(waiting) == Some(&1.0);
    let dispatcher = scraped_until(farm, "dispatcher", wanted).await;
    dispatcher.assert(&[
        ("builds_running", 2.0),
        ("builds_waiting{priority=\"interactive\"}", 0.0),
        ("builds_oldest_wait_seconds{priority=\"interactive\"}", 0.0),
        ("workers{state=\"ready\"}", 1.0),
        ("workers{state=\"draining\"}", 0.0),
        ("workers{state=\"full\"}", 0.0),
        ("index_call_failures_total{call=\"commit_picks\"}", 0.0),
    ]);
    dispatcher.assert_some(&["index_call_seconds_count{call=\"commit_picks\"}"]);
    let aged = "forebay_builds_oldest_wait_seconds{priority=\"batch\"}";
    scraped_until(farm, "dispatcher", |it| it.samples.get(aged) >= Some(&1.0)).await;

    let enqueuer = Scraped::of(farm, "enqueuer").await;
    enqueuer.assert(&[
        ("builds_enqueued_total{priority=\"interactive\"}", 3.0),
        ("builds_enqueued_total{priority=\"batch\"}", 2.0),
        ("api_requests_total{endpoint=\"publish\",status=\"ok\"}", 1.0),
        ("api_requests_total{endpoint=\"create\",status=\"unavailable\"}", 0.0),
        ("api_seconds_count{endpoint=\"publish\"}", 1.0),
    ]);
    assert!(enqueuer.get("forebay_build_request_bytes_total{priority=\"interactive\"}") > 300.0);
    assert!(enqueuer.has("forebay_build_targets_total{priority=\"interactive\"}"));

    let worker = Scraped::of(farm, "worker").await;
    worker.assert(&[
        ("api_requests_total{endpoint=\"claim\",status=\"ok\"}", 4.0),
        ("api_requests_total{endpoint=\"finish\",status=\"ok\"}", 2.0),
        ("api_requests_total{endpoint=\"finish\",status=\"unavailable\"}", 0.0),
        ("build_preparation_seconds_count{priority=\"interactive\"}", 1.0),
        ("build_run_seconds_count{priority=\"batch\"}", 1.0),
        ("build_start_seconds_count{priority=\"interactive\"}", 3.0),
        ("builds_finished_total{outcome=\"succeeded\",priority=\"batch\"}", 1.0),
        ("workspaces{state=\"closed\"}", 0.0),
    ]);
    worker.assert_some(&["bus_publish_seconds_count", "disk_free_bytes{disk=\"workspaces\"}"]);
}

async fn actions(farm: &Farm) {
    let scheduler = Scraped::of(farm, "scheduler").await;
    scheduler.assert(&[
        ("executions_waiting", 0.0),
        ("executors{state=\"ready\"}", 1.0),
        ("executors{state=\"closed\"}", 0.0),
        ("executors{state=\"draining\"}", 0.0),
    ]);
    let executor = Scraped::of(farm, "executor").await;
    executor.assert(&[("action_run_seconds_count{priority=\"interactive\"}", 1.0)]);
    executor.assert_some(&["disk_bytes{disk=\"executor\"}"]);
    let full = |it: &Scraped| it.samples.get("forebay_cas_bytes_max") > Some(&0.0);
    let cas = scraped_until(farm, "cas", full).await;
    cas.assert_some(&["disk_bytes{disk=\"store\"}", "cas_used_bytes"]);
    assert!(cas.has("forebay_cas_evicted_bytes_total"));
    let gateway = Scraped::of(farm, "gateway").await;
    gateway.assert(&[
        (
            "api_requests_total{endpoint=\"build.bazel.remote.execution.v2.Execution/Execute\",status=\"OK\"}",
            1.0,
        ),
        ("api_requests_total{endpoint=\"watch\",status=\"ok\"}", 1.0),
        ("api_requests_total{endpoint=\"watch\",status=\"unavailable\"}", 0.0),
        ("execution_seconds_count{priority=\"interactive\"}", 1.0),
    ]);
}

async fn bus(farm: &Farm) {
    let reaper = Scraped::of(farm, "reaper").await;
    let enqueuers = ["enqueuer-emergency", "enqueuer-interactive", "enqueuer-automated", "enqueuer-batch"];
    for consumer in enqueuers.into_iter().chain(["reaper-leases", "scheduler-executors"]) {
        let value = |name: &str| reaper.get(&format!("forebay_consumer_{name}{{consumer=\"{consumer}\"}}"));
        assert!(value("pulls") >= 1.0, "{consumer}");
        assert!(value("ack_pending_max") >= 10_000.0, "{consumer}");
        let idle = [value("pending"), value("redelivered")];
        assert_eq!(idle.map(|it| it < 1.0), [true; 2], "{consumer}: {idle:?}");
        assert!(value("ack_pending") < 100.0 && value("oldest_seconds") < 60.0, "{consumer}");
    }
    let streams = reaper.samples.keys().filter(|name| name.starts_with("forebay_stream_messages{"));
    assert_eq!(streams.count(), 15);
    reaper.assert_some(&[
        "stream_bytes{stream=\"FOREBAY_EVENTS\"}",
        "stream_messages{stream=\"FOREBAY_EVENTS\"}",
        "stream_messages{stream=\"FOREBAY_ACTIONS\"}",
    ]);
    reaper.assert(&[
        ("stream_messages{stream=\"FOREBAY_REQUESTS\"}", 0.0),
        ("bus_advisories_total{kind=\"max_deliver\"}", 0.0),
        ("builds_finished_total{outcome=\"lost\",priority=\"batch\"}", 0.0),
        ("builds_requeued_total{reason=\"lease_expired\"}", 0.0),
    ]);
    assert!(reaper.has("forebay_stream_bytes_max{stream=\"FOREBAY_EVENTS\"}"));
}

async fn quotas(farm: &Farm) {
    let series = |name: &str| format!("forebay_quota_{name}milli_esu{{group=\"g\",type=\"x86\"}}");
    let in_progress = series("in_progress_");
    let governor = scraped_until(farm, "governor", |it| it.samples.get(&in_progress) > Some(&0.0)).await;
    let record = decided(farm, |record| record.tick > 0).await;
    let quota = record.groups[&"g".parse().unwrap()][&ExecutorType::x86()].quota;
    let shown = governor.get(&series(""));
    assert!(shown > 0.0 && (shown - quota.units() * 1000.0).abs() < 1.0, "{shown}, not {quota}");
    assert!(governor.get(&series("set_point_")) >= shown);
    for name in ["in_use_", "to_start_", "target_", "waiting_"] {
        governor.get(&series(name));
    }
    // A group without a quota shows only in the sum of all others.
    let key = farm.submit("h", script("echo x")).await;
    assert!(!governor.samples.keys().any(|name| name.contains(&format!("group=\"{}\"", key.group))));
}

#[tokio::test]
async fn a_lost_connection_shows_and_delays_a_scrape_by_two_seconds_at_most() {
    let farm = Farm::builder().only(&["reaper"]).start().await;
    let events = "forebay_stream_messages{stream=\"FOREBAY_EVENTS\"}";
    assert!(Scraped::of(&farm, "reaper").await.has(events));
    farm.servers.kill_nats();
    let lost =
        scraped_until(&farm, "reaper", |it| it.samples.get("forebay_bus_connected") == Some(&0.0)).await;
    assert!(lost.has(events), "the last values stay");
    tokio::time::sleep(FRESH).await;
    let start = Instant::now();
    assert!(Scraped::of(&farm, "reaper").await.has(events));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    farm.servers.start_nats().await;
    let again = |it: &Scraped| it.samples.get("forebay_bus_connected") == Some(&1.0);
    let found = tokio::time::timeout(BOUND, scraped_until(&farm, "reaper", again)).await.unwrap();
    assert!(found.get("forebay_bus_reconnects_total") >= 1.0);
}

#[tokio::test]
async fn every_service_has_metrics_of_what_it_did() {
    let farm = Farm::all().await;
    let key = farm.submit("g", script("echo x")).await;
    ended(&farm, &key).await;
    farm.publish("g", model::Priority::Batch, &model::BuildRequest { command: vec![], ..script("") }).await;
    let http = crate::http::client();
    let mut all = String::new();
    for (service, url) in farm.metrics_urls() {
        let text = http.get(&url).send().await.unwrap().text().await.unwrap();
        assert!(text.ends_with("# EOF\n"), "{service}: {text}");
        let health = http.get(url.replace("/metrics", "/healthz")).send().await.unwrap();
        assert!(health.status().is_success(), "{service}: {}", health.status());
        all += &text;
    }
    assert_eq!(farm.metrics_urls().len(), 5);
    for (name, least) in [
        ("forebay_builds_enqueued_total", 1.0),
        ("forebay_invocations_started_total", 1.0),
        ("forebay_builds_finished_total", 1.0),
        ("forebay_console_bytes_total", 2.0),
        ("forebay_index_applied_total", 3.0),
    ] {
        let values = all.lines().filter(|line| line.starts_with(name));
        let sum: f64 = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        assert!(sum >= least, "{name} is {sum}");
    }
}
