//! What the live executors carry limits the builds that run actions, with and without quotas.

use std::time::Duration;

use farm::{Builder, Farm, SOON};
use index::Index;
use model::{
    BlobDigest, BuildKey, BuildRequest, Esu, ExecutorType, Governed, GovernorRecord, PoolName, Priority,
    RequirementsId, State, ThrottledBy, WhyReply,
};
use remote::Remote;

use crate::{
    acting,
    check::{script, why_when},
    jobs,
    quota::{decided, esu, follow, set_quota},
};

/// Time for builds of a second to use up what was started before a change.
const SETTLED: Duration = Duration::from_secs(90);

/// Number of jobs of a second that are queued before the pool shrinks.
const JOBS: u64 = 120;

/// Configures executors of two slots, each action of which holds 1 ESU.
fn builder() -> Builder {
    Farm::builder()
        .with_actions()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "500")
        .env("FOREBAY_SANDBOX", "none")
        .env("FOREBAY_EXECUTOR_SLOTS", "2")
        .env("FOREBAY_EXECUTOR_MEMORY_BYTES", "2000000000")
        .env("FOREBAY_CONGESTION_WINDOW", "false")
        .env("FOREBAY_ACTION_SIZING", "false")
        .workspaces(24)
}

fn throttled_by(why: &WhyReply) -> Option<&ThrottledBy> {
    why.waiting.as_ref()?.throttled_by.first()
}

/// A job of one action that no other job has.
fn sleeping(number: u64, seconds: f64) -> BuildRequest {
    jobs::request(jobs::job(&serde_json::json!([jobs::sh("one", &format!(": {number}; sleep {seconds}"))])))
}

/// The decision about all builds that run actions.
fn on_executors(record: &GovernorRecord) -> Governed {
    record.executors.get(&ExecutorType::x86()).copied().unwrap_or_default()
}

async fn carries(farm: &Farm, units: f64) -> GovernorRecord {
    decided(farm, |record| on_executors(record).quota == esu(units)).await
}

/// Builds in progress, and actions that wait for an executor.
struct Load {
    running: u64,
    waiting: u64,
}

async fn load(farm: &Farm, index: &Index) -> Load {
    let pool: PoolName = "default".parse().unwrap();
    let queue =
        index.actions().queue(&RequirementsId::none(), [&pool], None, farm.bus().now()).await.unwrap();
    Load { running: index.counts().await.unwrap().running, waiting: queue.waiting }
}

#[tokio::test]
async fn builds_in_progress_settle_to_what_a_smaller_pool_carries() {
    let farm = builder().with("executor").with("executor").with("executor").start().await;
    carries(&farm, 8.0).await;
    let index = Index::connect(&farm.servers.redis_url(), true).await.unwrap();
    for number in 0..JOBS {
        farm.submit("g", sleeping(number, 1.0)).await;
    }
    let mut finished = 0;
    follow(&farm, SETTLED, |_, record| {
        finished += usize::from(record.state() == State::Finished);
        finished == 16
    })
    .await;
    let before = load(&farm, &index).await;
    assert!(before.running < 20, "{} of 24 workspaces have a build for 8 slots", before.running);
    for _ in 0..3 {
        farm.take("executor").kill9();
    }
    carries(&farm, 2.0).await;
    let settles = async {
        while load(&farm, &index).await.running > 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SETTLED, settles).await.expect("builds that end are not replaced");
    // It stays so while builds still wait: ten more ends.
    let at_rest = index.counts().await.unwrap();
    let more = JOBS - at_rest.waiting - at_rest.running + 10;
    let (mut most, mut ended) = (0, 0);
    let counts = async {
        loop {
            let now = load(&farm, &index).await;
            most = most.max(now.waiting);
            assert!(now.running <= 8, "{} builds for 2 slots", now.running);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ends = follow(&farm, SETTLED, |_, record| {
        ended += u64::from(record.state() == State::Finished);
        ended == more
    });
    tokio::select! {
        () = ends => {}
        () = counts => {}
    }
    assert!(most <= 6, "{most} actions wait for 2 slots");
    let left = index.counts().await.unwrap();
    assert!(left.waiting > 0, "builds wait in the queue of builds");
}

#[tokio::test]
async fn executors_limit_the_builds_that_use_them_and_no_others() {
    let farm = builder().without("dispatcher").start().await;
    let farm_carries = carries(&farm, 2.0).await;
    assert!(on_executors(&farm_carries).target >= esu(2.0), "{farm_carries:?}");
    // It reads the decision before it starts a build.
    farm.keep(farm.spawn("dispatcher").await);
    let mut keys: Vec<BuildKey> = Vec::new();
    for number in 0..2 {
        let key = farm.submit("g", sleeping(number, 600.0)).await;
        farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
        keys.push(key);
    }
    // Until their use is reported, the executors seem idle, and the limit grows.
    let is_full = |governed: Governed| governed.pv >= esu(2.0) && governed.target < esu(3.0);
    decided(&farm, |record| is_full(on_executors(record))).await;
    for number in 2..4 {
        keys.push(farm.submit("g", sleeping(number, 600.0)).await);
    }
    // Builds without actions start behind them, in the same group.
    for _ in 0..6 {
        let plain = farm.submit("g", script("sleep 600")).await;
        farm.wait_until(&plain, SOON, |record| record.state() == State::InProgress).await;
    }
    for key in &keys[2..] {
        assert_eq!(farm.client().get(key).await.unwrap().state, State::Enqueued);
    }
    why_when(&farm, &keys[3], |why| {
        throttled_by(why).is_some_and(|by| {
            by.of_executors && (by.needed, by.in_progress, by.reserved) == (Esu::ONE, esu(2.0), Esu::ONE)
        })
    })
    .await;
    let shown = farm.cli(&["quota"]).await;
    assert!(shown.stdout.contains("executors") && shown.stdout.contains("no quota is set"), "{shown:?}");
    // Another executor: both start at the next decisions.
    farm.keep(farm.spawn("executor").await);
    for key in &keys[2..] {
        farm.wait_until(key, SOON, |record| record.state() == State::InProgress).await;
    }
}

#[tokio::test]
async fn an_emergency_starts_although_the_executors_are_full_and_is_counted() {
    let farm = builder().without("dispatcher").start().await;
    carries(&farm, 2.0).await;
    // It reads the decision before it starts a build.
    farm.keep(farm.spawn("dispatcher").await);
    for number in 0..2 {
        let key = farm.submit("g", sleeping(number, 600.0)).await;
        farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    }
    // Until their actions use the executors, the governor may start more.
    decided(&farm, |record| {
        let governed = on_executors(record);
        governed.pv >= esu(1.9) && governed.target < esu(3.0)
    })
    .await;
    let later = farm.submit("g", sleeping(2, 600.0)).await;
    for number in 3..5 {
        let request = BuildRequest { priority: Some(Priority::Emergency), ..sleeping(number, 600.0) };
        let urgent = farm.submit("g", request).await;
        farm.wait_until(&urgent, SOON, |record| record.state() == State::InProgress).await;
    }
    let governor = farm.client().bus().buckets().get::<GovernorRecord>(&()).await.unwrap().1;
    assert_eq!(farm.client().get(&later).await.unwrap().state, State::Enqueued, "{governor:#?}");
    why_when(&farm, &later, |why| {
        throttled_by(why)
            .is_some_and(|by| by.of_executors && (by.needed, by.in_progress) == (Esu::ONE, esu(4.0)))
    })
    .await;
}

#[tokio::test]
async fn without_executors_nothing_is_limited() {
    let farm = builder().workspaces(4).start().await;
    carries(&farm, 2.0).await;
    farm.take("executor").kill9();
    decided(&farm, |record| record.executors.is_empty()).await;
    for number in 0..4 {
        let key = farm.submit("g", sleeping(number, 600.0)).await;
        farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    }
}

#[tokio::test]
async fn direct_actions_are_shown_and_held_to_the_quota_of_their_group() {
    const QUOTA: f64 = 8.0;
    let farm = builder()
        .env("FOREBAY_INSTANCES", "red=red blue=blue *=default")
        .env("FOREBAY_EXECUTOR_SLOTS", "24")
        .env("FOREBAY_EXECUTOR_MEMORY_BYTES", "24000000000")
        .start()
        .await;
    set_quota(&farm, "red", QUOTA).await;
    set_quota(&farm, "blue", 16.0).await;
    decided(&farm, |record| record.groups.len() == 2).await;
    let remote = acting::remote(&farm).await;
    let upload = async |group: &str, count: usize| {
        let client = remote.with_instance(group);
        let mut actions = Vec::new();
        for number in 0..count {
            actions.push(acting::upload(&client, &format!(": {group} {number}; sleep 3")).await);
        }
        (client, actions)
    };
    let (red, blue) = (upload("red", 300).await, upload("blue", 300).await);
    let start = |(client, actions): (Remote, Vec<BlobDigest>)| -> Vec<_> {
        actions.into_iter().map(|action| acting::execute(&client, action)).collect()
    };
    let pv = |record: &GovernorRecord, group: &str| {
        let types = record.groups.get(&group.parse().unwrap());
        let governed = types.and_then(|types| types.get(&ExecutorType::x86()));
        governed.map_or(0.0, |governed| governed.pv.units())
    };
    let ticks = async |from: u64, count: u64| {
        let mut seen = Vec::new();
        for tick in from..from + count {
            seen.push(decided(&farm, |record| record.tick > tick).await);
        }
        seen
    };
    // `red` alone uses all executors for a while: by past use alone, `blue` would then have them for as long.
    let mut sent = start(red);
    let full = decided(&farm, |record| pv(record, "red") > 20.0).await.tick;
    let last = ticks(full, 12).await.pop().unwrap().tick;
    sent.extend(start(blue));
    let shared = decided(&farm, |record| record.tick > last && pv(record, "blue") > 12.0).await.tick;
    // The first reports include the time before.
    let later = ticks(shared, 8).await.pop().unwrap().tick;
    let used = |record: &GovernorRecord| (pv(record, "red"), pv(record, "blue"));
    let seen: Vec<(f64, f64)> = ticks(later, 16).await.iter().map(used).collect();
    let shown = farm.cli(&["quota"]).await;
    assert!(shown.stdout.contains("red"), "{shown:?}");
    let (red, blue) = seen.iter().fold((0.0, 0.0), |sum, seen| (sum.0 + seen.0, sum.1 + seen.1));
    let mean = red / seen.len() as f64;
    // A slot of a busy machine is idle between two actions: both groups then use less than they may. Without quotas, each
    // would have 12.
    let of_all_slots = red / (red + blue) * 24.0;
    assert!(
        mean <= 1.1 * QUOTA && (0.6 * QUOTA..=1.1 * QUOTA).contains(&of_all_slots),
        "{mean}, {of_all_slots}: {seen:?}"
    );
    for execution in sent {
        execution.abort();
    }
}
