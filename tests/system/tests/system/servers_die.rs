//! Redis and nats-server may lose data or die at any moment: no build is lost and none ends twice.

use std::time::Duration;

use bus::{Bus, Patience};
use farm::{Farm, SOON, Servers};
use model::{BuildKey, Outcome, Priority};
use nix::sys::signal::Signal;

use crate::check::{ended_within, request, until};

const BOUND: Duration = Duration::from_secs(25);

/// Queues builds for two workspaces, so that some run and most wait; half of them by plain publish.
async fn queue(farm: &Farm, count: usize) -> Vec<BuildKey> {
    let mut keys = Vec::new();
    for number in 0..count {
        let request = request(&farm.effects().command("echo out; sleep 0.3; echo more"));
        let group = if number % 2 == 0 { "red" } else { "blue" };
        keys.push(if number % 4 < 2 {
            farm.submit(group, request).await
        } else {
            farm.publish(group, Priority::Batch, &request).await
        });
    }
    keys
}

async fn all_end(farm: &Farm, keys: &[BuildKey]) {
    for key in keys {
        let record = ended_within(farm, key, BOUND).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
    }
    farm.effects().assert_sound();
    for key in keys {
        let effects = farm.effects().of(key.id);
        assert_eq!(effects.iter().filter(|effect| effect.what == "end").count(), 1, "{effects:?}");
    }
}

/// Returns when `count` builds have started.
async fn started(farm: &Farm, count: usize) {
    let starts = || farm.effects().all().iter().filter(|effect| effect.what == "start").count();
    until("builds run", SOON, || starts() >= count).await;
}

#[tokio::test]
async fn builds_end_once_though_redis_forgets_everything() {
    let farm = Farm::builder().without("gateway").start().await;
    let keys = queue(&farm, 12).await;
    for round in 1..=4 {
        started(&farm, round * 2).await;
        farm.servers.flush_redis();
    }
    all_end(&farm, &keys).await;
}

#[tokio::test]
async fn builds_end_once_though_redis_is_killed() {
    let farm = Farm::builder().without("gateway").start().await;
    let keys = queue(&farm, 10).await;
    started(&farm, 1).await;
    farm.servers.kill_redis();
    // Builds that end now cannot be written to Redis.
    tokio::time::sleep(Duration::from_millis(500)).await;
    farm.servers.start_redis().await;
    started(&farm, 6).await;
    farm.servers.kill_redis();
    farm.servers.start_redis().await;
    all_end(&farm, &keys).await;
}

#[tokio::test]
async fn builds_end_once_though_nats_server_is_killed() {
    // A lease outlives a restart of the server, so nothing runs twice.
    let farm = Farm::builder().without("gateway").lease_ttl(10).start().await;
    let keys = queue(&farm, 10).await;
    for round in 0..3 {
        started(&farm, 2 + round * 3).await;
        farm.servers.kill_nats();
        farm.servers.start_nats().await;
    }
    all_end(&farm, &keys).await;
    for key in &keys {
        assert_eq!(farm.history(key).await.len(), 3);
    }
}

#[tokio::test]
async fn a_nats_server_that_is_away_for_longer_than_a_lease_loses_no_build() {
    let farm = Farm::builder().without("gateway").start().await;
    let body = r#"[ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#;
    let key = farm.submit("g", request(&farm.effects().command(body))).await;
    started(&farm, 1).await;
    farm.servers.kill_nats();
    let dead = || crate::check::processes_of(key.id).is_empty();
    // The lease expires 2 s after its last renewal.
    until("runs without a lease are dead", Duration::from_secs(3), dead).await;
    farm.servers.start_nats().await;
    let record = ended_within(&farm, &key, BOUND).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded);
    farm.effects().assert_sound();
}

#[tokio::test]
async fn requests_published_while_every_service_is_down_are_built() {
    let farm = Farm::builder().only(&[]).start().await;
    let mut keys = Vec::new();
    for priority in Priority::ALL {
        keys.push(farm.publish("g", priority, &request(&farm.effects().command("sleep 0.1"))).await);
    }
    farm.servers.kill_nats();
    farm.servers.start_nats().await;
    for service in ["worker", "dispatcher", "reaper", "enqueuer"] {
        farm.keep(farm.spawn(service).await);
    }
    all_end(&farm, &keys).await;
}

#[tokio::test]
async fn more_urgent_builds_of_a_group_start_first() {
    let farm = Farm::builder().without("gateway").without("worker").workspaces(1).start().await;
    let mut keys = Vec::new();
    for priority in [Priority::Batch, Priority::Automated, Priority::Interactive, Priority::Emergency] {
        for _ in 0..2 {
            keys.push((priority, farm.create("g", priority, &farm.effects().command("true")).await));
        }
    }
    let waiting = async || {
        let request =
            model::ListRequest { state: Some(model::State::Enqueued), ..model::ListRequest::default() };
        farm.client().list(&"g".parse().unwrap(), &request).await.unwrap().builds.len()
    };
    while waiting().await < keys.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    farm.keep(farm.spawn("worker").await);
    for (_, key) in &keys {
        ended_within(&farm, key, BOUND).await;
    }
    // Urgent builds first, and the earlier of equals.
    keys.sort_by_key(|(priority, _)| priority.rank());
    let wanted: Vec<String> = keys.iter().map(|(_, key)| key.id.to_string()).collect();
    let effects = farm.effects().all();
    let order: Vec<String> =
        effects.into_iter().filter(|effect| effect.what == "start").map(|effect| effect.build).collect();
    assert_eq!(order, wanted);
}

#[tokio::test]
async fn a_further_connection_waits_while_nats_server_is_away() {
    let servers = Servers::start().await;
    let bus = Bus::connect(&servers.nats_url(), "first", Patience::Wait).await.unwrap();
    servers.kill_nats();
    let mut connecting = std::pin::pin!(bus.connect_live("second", 8));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut connecting).await;
    assert!(early.is_err(), "{early:?}");
    servers.start_nats().await;
    tokio::time::timeout(SOON, connecting).await.expect("the server is back").unwrap();
}

#[tokio::test]
async fn a_worker_and_an_executor_start_although_nats_server_stands_still_for_longer_than_a_request_waits() {
    let farm = Farm::builder().with_actions().without("worker").without("executor").start().await;
    for service in ["worker", "executor"] {
        let mut process = farm.start_unready(service, &[]);
        until("it is connected", SOON, || process.log_text().contains("connected to nats-server")).await;
        farm.servers.signal_nats(Signal::SIGSTOP);
        // A request waits for 5 seconds.
        tokio::time::sleep(Duration::from_secs(7)).await;
        farm.servers.signal_nats(Signal::SIGCONT);
        process.ready(SOON).await;
    }
}
