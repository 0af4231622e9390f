//! Pools whose number of processes follows the work.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, EntryChanges};
use farm::{Farm, Guard, Output, SOON, Up, alive, bare_command};
use model::{BuildKey, BuildRequest, Millis, Outcome, ScaleObservation, ScalePlan, ScaledPool, State};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::check::{script, until};

/// Settings with short times, so that a test can observe a pool grow and shrink.
fn hasty(tick_ms: u64) -> String {
    // A pool with a longer tick could never shrink.
    let scale_in_after = (4 * tick_ms / 1000).max(2);
    format!(
        r#"{{"target_wait_seconds":1,"start_up_seconds":0.5,"scale_in_after_seconds":{scale_in_after},
        "cooldown_seconds":1,"rate_window_seconds":2,"scale_in_percent":100}}"#
    )
}

struct Place {
    guard: Guard,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        // Readable by the user that actions run as.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir().unwrap();
        Self { guard: Guard::start(folder.path()), folder }
    }

    /// Starts a farm on this machine with this autoscaler tick.
    async fn up(&self, tick_ms: u64, args: &[&str]) -> Up {
        let tick = tick_ms.to_string();
        let hasty = hasty(tick_ms);
        let pools = format!(r#"{{"workers":{hasty},"executors":{hasty}}}"#);
        // Only pools named by the flags are scaled.
        let named = |pool: &str| args.iter().any(|arg| arg.starts_with(pool));
        let pools = match (named("workers="), named("executors=")) {
            (true, false) => format!(r#"{{"workers":{hasty}}}"#),
            (false, true) => format!(r#"{{"executors":{hasty}}}"#),
            (true, true) | (false, false) => pools,
        };
        let env = [
            ("FOREBAY_AUTOSCALE", pools.as_str()),
            ("FOREBAY_AUTOSCALE_TICK_MS", &tick),
            ("FOREBAY_HEARTBEAT_SECONDS", "1"),
            ("FOREBAY_LOAD_MAX", "0"),
            ("FOREBAY_DRAIN_SECONDS", "2"),
        ];
        Up::start(self.folder.path(), &self.guard, args, &env).await
    }
}

/// Returns the names of a service's live processes.
fn living(up: &Up, service: &str) -> Vec<String> {
    let prefix = format!("{service}-");
    let ours = up.children().into_iter().filter(|(name, pid)| name.starts_with(&prefix) && alive(*pid));
    ours.map(|(name, _)| name).collect()
}

async fn bus_of(up: &mut Up) -> Bus {
    up.client().await.bus().clone()
}

/// Queues `count` builds and returns their keys.
async fn queue(up: &mut Up, count: usize, request: impl Fn() -> BuildRequest) -> Vec<BuildKey> {
    let client = up.client().await;
    let mut keys = Vec::new();
    for _ in 0..count {
        let made = client.create(&"g".parse().unwrap(), &request(), None).await.unwrap();
        keys.push(BuildKey { group: made.group, id: made.id });
    }
    keys
}

/// Waits until all builds have succeeded in their first attempt.
async fn all_succeed(bus: &Bus, keys: &[BuildKey], limit: Duration) {
    let deadline = Instant::now() + limit;
    loop {
        let records = bus.records().latest_many(keys).await.unwrap();
        for (_, record) in &records {
            assert_eq!(record.attempt.0, 1, "its worker was stopped under it: {record:#?}");
        }
        let ended: Vec<_> = records.iter().filter(|(_, record)| record.state() == State::Finished).collect();
        if ended.len() == keys.len() {
            assert!(ended.iter().all(|(_, record)| record.result().unwrap().outcome == Outcome::Succeeded));
            return;
        }
        assert!(Instant::now() < deadline, "{} of {} builds ended", ended.len(), keys.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Records all decisions, in order.
fn record(mut plans: EntryChanges<ScalePlan>) -> (tokio::task::JoinHandle<()>, Arc<Mutex<Vec<ScalePlan>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let into = kept.clone();
    let task = tokio::spawn(async move {
        while let Some(plan) = plans.next().await {
            into.lock().push(plan);
        }
    });
    (task, kept)
}

/// Counts the increases that follow a decrease, and the reverse.
fn turns(plans: &[ScalePlan]) -> usize {
    let mut directions: Vec<bool> = plans
        .windows(2)
        .filter(|pair| pair[0].desired != pair[1].desired)
        .map(|pair| pair[1].desired > pair[0].desired)
        .collect();
    directions.dedup();
    directions.len().saturating_sub(1)
}

#[tokio::test]
async fn workers_come_with_the_builds_and_go_with_them_and_no_build_is_ended() {
    let place = Place::new();
    let mut up = place.up(200, &["--autoscale", "workers=0..4", "--workspaces", "1"]).await;
    let bus = bus_of(&mut up).await;
    assert_eq!(living(&up, "worker"), Vec::<String>::new(), "nothing waits");
    let (follower, plans) = record(bus.buckets().changes::<ScalePlan>().await.unwrap());
    let keys = queue(&mut up, 40, || script("sleep 0.4")).await;
    until("four workers", SOON, || living(&up, "worker").len() == 4).await;
    // A restarted autoscaler continues from the stored decision.
    let scaler = up.children()["autoscaler"];
    kill(Pid::from_raw(i32::try_from(scaler).unwrap()), Signal::SIGKILL).unwrap();
    let mut most = 0;
    let done = all_succeed(&bus, &keys, Duration::from_secs(60));
    let mut done = std::pin::pin!(done);
    loop {
        tokio::select! {
            () = &mut done => break,
            () = tokio::time::sleep(Duration::from_millis(50)) => most = most.max(living(&up, "worker").len()),
        }
    }
    assert!(most <= 4, "{most} workers of 4");
    until("no workers again", Duration::from_secs(30), || living(&up, "worker").is_empty()).await;
    follower.abort();
    let plans = plans.lock().clone();
    let desired: Vec<u64> = plans.iter().map(|plan| plan.desired).collect();
    assert!(turns(&plans) <= 2, "{desired:?}");
    assert_eq!((desired.iter().max(), desired.last()), (Some(&4), Some(&0)), "{desired:?}");
    let ticks: Vec<u64> = plans.iter().map(|plan| plan.tick).collect();
    assert!(ticks.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ticks:?}");
    // Stopped processes are not listed either.
    let told = || {
        let told = up.read_endpoints().unwrap();
        told.processes.into_keys().chain(told.metrics.into_keys()).any(|name| name.starts_with("worker"))
    };
    until("no worker in the list", SOON, || !told()).await;
}

/// Writes a plan as an autoscaler would.
async fn decide(bus: &Bus, pool: &ScaledPool, desired: u64) {
    let (position, last) = bus.buckets().get::<ScalePlan>(pool).await.unwrap();
    let plan = ScalePlan {
        pool: pool.clone(),
        tick: last.as_ref().map_or(1, |last| last.tick + 1),
        at_ms: Millis::of_this_machine(),
        desired,
        needed: desired,
        reason: "backlog".to_owned(),
        why: "the test wants it".to_owned(),
        seen: ScaleObservation::default(),
        upto: last.map(|last| last.upto).unwrap_or_default(),
        memory: serde_json::Value::Null,
    };
    assert!(bus.buckets().compare_and_set(pool, &plan, position, SOON).await.unwrap());
}

const NEVER_MS: u64 = 3_600_000;

#[tokio::test]
async fn a_worker_that_is_to_go_ends_its_build_first() {
    let place = Place::new();
    // Its autoscaler decides once: the test writes all further plans.
    let mut up = place.up(NEVER_MS, &["--autoscale", "workers=2..4", "--workspaces", "1"]).await;
    let bus = bus_of(&mut up).await;
    assert_eq!(living(&up, "worker"), ["worker-1", "worker-2"]);
    let planned = async {
        while bus.buckets().get::<ScalePlan>(&ScaledPool::Workers).await.unwrap().1.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, planned).await.expect("the first plan");
    decide(&bus, &ScaledPool::Workers, 4).await;
    until("four workers", SOON, || living(&up, "worker").len() == 4).await;
    until("their metrics", SOON, || up.read_endpoints().unwrap().metrics.contains_key("worker-4")).await;
    let keys = queue(&mut up, 2, || script("sleep 5")).await;
    let client = up.client().await;
    let begun = Instant::now();
    let running = async {
        for key in &keys {
            while client.get(key).await.unwrap().state != State::InProgress {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(SOON, running).await.expect("both run");
    decide(&bus, &ScaledPool::Workers, 0).await;
    let idle = until("two workers", Duration::from_secs(4), || living(&up, "worker").len() == 2).await;
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "workers without a build end immediately, not after {idle:?}"
    );
    // Longer than a stopped worker lets its builds run.
    all_succeed(&bus, &keys, SOON).await;
    until("no worker", SOON, || living(&up, "worker").is_empty()).await;
    // The removed processes return.
    decide(&bus, &ScaledPool::Workers, 1).await;
    until("a worker", SOON, || living(&up, "worker").len() == 1).await;
}

#[tokio::test]
async fn a_worker_that_drains_is_taken_back_when_it_is_needed() {
    let place = Place::new();
    let mut up = place.up(NEVER_MS, &["--autoscale", "workers=1..4", "--workspaces", "2"]).await;
    let bus = bus_of(&mut up).await;
    let before = up.children()["worker-1"];
    let long = queue(&mut up, 1, || script("sleep 4")).await;
    let client = up.client().await;
    let runs = async {
        while client.get(&long[0]).await.unwrap().state != State::InProgress {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, runs).await.expect("it runs");
    decide(&bus, &ScaledPool::Workers, 0).await;
    let status = async |wanted: &str| {
        let wanted = format!("\"{wanted}\"");
        let looks = async {
            while !up.cli(&["workers", "--json"]).await.stdout.contains(&wanted) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, looks).await.expect("its status is reported");
    };
    status("draining").await;
    decide(&bus, &ScaledPool::Workers, 1).await;
    status("ready").await;
    let short = queue(&mut up, 1, || script("true")).await;
    all_succeed(&bus, &[long, short].concat(), SOON).await;
    assert_eq!(up.children()["worker-1"], before, "it is the same process");
}

#[tokio::test]
async fn executors_follow_their_actions() {
    let place = Place::new();
    let mut up = place.up(200, &["--autoscale", "executors=0..2", "--executor-slots", "1"]).await;
    let bus = bus_of(&mut up).await;
    let (follower, plans) = record(bus.buckets().changes::<ScalePlan>().await.unwrap());
    // Its pool is known even when none of its executors is alive.
    until("no executor", Duration::from_secs(30), || living(&up, "executor").is_empty()).await;
    let script = |number: usize| format!("sleep 1; echo {number}");
    let runs = (0..6).map(|number| {
        let (up, script) = (&up, script(number));
        async move { up.cli(&["exec", "--", "/bin/sh", "-c", &script]).await }
    });
    let outputs: Vec<Output> = futures::future::join_all(runs).await;
    assert!(outputs.iter().all(|output| output.code == 0), "{outputs:?}");
    let texts: BTreeSet<&str> = outputs.iter().map(|output| output.stdout.trim()).collect();
    assert_eq!(texts.len(), 6);
    until("no executor again", Duration::from_secs(30), || living(&up, "executor").is_empty()).await;
    follower.abort();
    let plans = plans.lock().clone();
    let desired: Vec<u64> = plans.iter().map(|plan| plan.desired).collect();
    assert_eq!(desired.iter().max(), Some(&2), "{desired:?}");
    assert!(plans.iter().all(|plan| plan.pool.to_string() == "executors.default"));
}

#[tokio::test]
async fn replicas_make_each_decision_once_and_keep_to_the_budget() {
    let scaling = r#"{"workers":{"min":0,"max":9,"budget_per_hour":6,"cost_per_process_hour":2,
        "target_wait_seconds":1,"rate_window_seconds":2}}"#;
    let farm = Farm::builder()
        .without("gateway")
        .without("worker")
        .env("FOREBAY_AUTOSCALE", scaling)
        .env("FOREBAY_AUTOSCALE_TICK_MS", "100")
        .with("autoscaler")
        .with("autoscaler")
        .start()
        .await;
    let (follower, plans) = record(farm.bus().buckets().changes::<ScalePlan>().await.unwrap());
    for _ in 0..40 {
        farm.submit("g", script("sleep 1")).await;
    }
    let so_far = || plans.lock().len();
    until("decisions", SOON, || so_far() >= 10).await;
    drop(farm.take("autoscaler"));
    let before = so_far();
    until("more decisions", SOON, || so_far() >= before + 10).await;
    follower.abort();
    let plans = plans.lock().clone();
    let ticks: Vec<u64> = plans.iter().map(|plan| plan.tick).collect();
    assert!(ticks.windows(2).all(|pair| pair[1] == pair[0] + 1), "each decision is made once: {ticks:?}");
    let last = plans.last().unwrap();
    assert_eq!((last.desired, last.reason.as_str(), last.seen.waiting), (3, "budget", 40), "{last:?}");
    assert!(plans.iter().all(|plan| plan.desired <= 3));
    let url = farm.metrics_urls().into_iter().find(|(name, _)| name.starts_with("autoscaler-")).unwrap().1;
    let text = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
    for line in ["forebay_pool_desired{pool=\"workers\"} 3", "forebay_pool_waiting{pool=\"workers\"} 40"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn a_pool_that_has_nothing_to_do_is_left_alone() {
    let farm = Farm::builder()
        .without("gateway")
        .without("worker")
        .env("FOREBAY_AUTOSCALE", r#"{"workers":{"min":0,"max":2}}"#)
        .env("FOREBAY_AUTOSCALE_TICK_MS", "100")
        .with("autoscaler")
        .start()
        .await;
    let first = async {
        loop {
            if let (_, Some(plan)) =
                farm.bus().buckets().get::<ScalePlan>(&ScaledPool::Workers).await.unwrap()
            {
                return plan;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let first = tokio::time::timeout(SOON, first).await.expect("a first plan");
    assert_eq!(first.desired, 0);
    let mut plans = farm.bus().buckets().changes::<ScalePlan>().await.unwrap();
    let quiet = tokio::time::timeout(Duration::from_secs(2), plans.next()).await;
    assert!(quiet.is_err(), "nothing is decided while nothing happens: {quiet:?}");
    farm.submit("g", script("true")).await;
    let next = tokio::time::timeout(Duration::from_secs(2), plans.next()).await.expect("a build wakes it");
    assert_eq!(next.map(|plan| (plan.desired, plan.seen.waiting)), Some((1, 1)));
}

#[tokio::test]
async fn bounds_that_make_no_sense_are_refused_before_anything_starts() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    for (bounds, told) in [
        ("workers=4..2", "setting autoscale is 4..2 of workers"),
        ("workers", "e.g. workers=0..4"),
        ("gateways=0..1", "expected `workers`, `executors` or `executors.POOL`"),
    ] {
        let output = Output::of(bare_command(&["up", "--data", data, "--autoscale", bounds])).await;
        assert_eq!(output.code, 2, "{bounds}: {output:?}");
        assert!(output.stderr.contains(told), "{bounds}: {output:?}");
    }
}
