//! Leases that nats-server forgot to expire: version 2.15 forgets times to live when it is killed and rebuilds a
//! stream. They count as expired.

use std::time::Duration;

use bus::{ExecutorLeaseSubject, LeaseHolder, LeaseSubject, Message};
use farm::{Farm, SOON};
use model::{
    BuildId, BuildKey, ExecutorHeartbeat, ExecutorId, Invocation, InvocationId, Millis, Outcome, Sequence,
    State,
};

use crate::{
    acting,
    check::{BOUND, ended_as, script, until},
    marks::{Begun, Marks, only_history, phases},
};

/// Writes a lease that the server will not expire.
async fn keep_for_ever(farm: &Farm, subject: String, holder: &impl Message) {
    let payload = holder.to_json();
    farm.bus().jetstream().publish(subject, payload).await.unwrap().await.unwrap();
}

async fn lease_of_the_dead(farm: &Farm, key: &BuildKey) {
    let holder = LeaseHolder { worker: "dead".parse().unwrap(), ttl_seconds: 1, stored_at_ms: None };
    keep_for_ever(farm, LeaseSubject(key.clone()).to_string(), &holder).await;
}

async fn is_purged(farm: &Farm, subject: String, stream: &str) {
    let gone = async {
        loop {
            match farm.bus().stream(stream).last(&subject).await.unwrap() {
                Some(stored) if !stored.payload.is_empty() => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Some(_) | None => return,
            }
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("the stale lease is purged");
}

#[tokio::test]
async fn a_run_whose_lease_should_have_ended_is_lost() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let key = farm.submit("g", script("true")).await;
    let (sequence, record) = farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
    lease_of_the_dead(&farm, &key).await;
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker: "dead".parse().unwrap(),
        workspace: 0,
        lease_revision: 1,
        started_at_ms: farm.bus().now(),
        dispatched_at_us: 0,
        dispatched_at_sequence: Sequence(0),
        workspace_kind: None,
    };
    let started = record.started(invocation, sequence);
    farm.bus().transition(&started, sequence, SOON).await.unwrap();
    for service in ["dispatcher", "reaper", "worker"] {
        farm.keep(farm.spawn(service).await);
    }
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.attempt.0, 2, "{record:#?}");
}

#[tokio::test]
async fn a_lease_that_should_have_ended_is_taken_over() {
    let farm = Farm::builder().only(&["enqueuer", "dispatcher", "worker"]).start().await;
    let id = BuildId::generate();
    let key = BuildKey { group: "g".parse().unwrap(), id };
    lease_of_the_dead(&farm, &key).await;
    farm.submit("g", model::BuildRequest { id: Some(id), ..script("true") }).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.attempt.0, 1, "{record:#?}");
}

#[tokio::test]
async fn what_lies_there_is_purged_when_a_reaper_or_scheduler_comes() {
    let farm = Farm::builder().only(&[]).start().await;
    let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
    lease_of_the_dead(&farm, &key).await;
    let dead: ExecutorId = "executor-dead".parse().unwrap();
    keep_for_ever(&farm, ExecutorLeaseSubject(dead.clone()).to_string(), &heartbeat(&dead)).await;
    assert_eq!(farm.bus().leases().executors().await.unwrap().len(), 1);
    let forgotten = async {
        while !farm.bus().leases().executors().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, forgotten).await.expect("a dead executor is not listed");
    for service in ["reaper", "scheduler"] {
        farm.keep(farm.spawn(service).await);
    }
    is_purged(&farm, LeaseSubject(key).to_string(), bus::stream::LEASES).await;
    is_purged(&farm, ExecutorLeaseSubject(dead).to_string(), bus::stream::EXECUTORS).await;
}

fn heartbeat(executor: &ExecutorId) -> ExecutorHeartbeat {
    serde_json::from_value(serde_json::json!({
        "executor": executor, "pool": "default", "host": "h", "home": "home", "pid": 1, "started_at_ms": Millis(1),
        "status": "ready", "slots": 2, "running": [], "ttl_ms": 1000,
    }))
    .unwrap()
}

#[tokio::test]
async fn what_an_executor_had_whose_lease_should_have_ended_is_run_elsewhere() {
    let farm = acting::builder().without("executor").lease_ttl(2).start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let one = farm.machine("one", &[]).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let mut heartbeats = farm.bus().listen::<ExecutorHeartbeat>(&()).await.unwrap();
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    // A grant that its executor has not confirmed comes back without a loss.
    let confirms = async { while heartbeats.next().await.unwrap().content.running.is_empty() {} };
    tokio::time::timeout(SOON, confirms).await.expect("it confirms the grant");
    let heartbeat = farm.bus().leases().executors().await.unwrap().remove(0);
    one.kill9();
    let dead = heartbeat.executor.clone();
    keep_for_ever(&farm, ExecutorLeaseSubject(dead.clone()).to_string(), &heartbeat).await;
    let _two = farm.machine("two", &[]).await;
    until("it runs elsewhere", BOUND, || marks.runs("it").len() == 2).await;
    let live = farm.bus().leases().executors().await.unwrap();
    assert!(live.len() == 1 && live[0].executor != dead, "{live:#?}");
    is_purged(&farm, ExecutorLeaseSubject(dead).to_string(), bus::stream::EXECUTORS).await;
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
    assert_eq!(phases(&only_history(&farm).await), ["accepted", "requeued", "finished"]);
    let shown = farm.cli(&["doctor"]).await;
    assert!(shown.stdout.contains("1 live, 1 ready"), "{}", shown.stdout);
}

/// The real sequence: nats-server saves the state of its streams every two minutes, and forgets messages
/// that expire after that. Takes three minutes, with `FOREBAY_LONG=1`; otherwise the server is killed before
/// it has saved anything.
#[tokio::test]
async fn an_executor_that_died_before_nats_server_did_stays_dead() {
    let pause = if std::env::var_os("FOREBAY_LONG").is_some() { 45 } else { 3 };
    let farm = acting::builder().without("executor").lease_ttl(2).start().await;
    let mut dead = Vec::new();
    for name in ["one", "two", "three"] {
        let mut machine = farm.machine(name, &[]).await;
        dead.extend(farm.bus().leases().executors().await.unwrap().into_iter().map(|it| it.executor));
        machine.kill9();
        machine.wait_exit(SOON).await;
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
    assert_eq!(farm.bus().leases().executors().await.unwrap().len(), 0);
    farm.servers.kill_nats();
    farm.servers.start_nats().await;
    let live = async {
        loop {
            if let Ok(live) = farm.bus().leases().executors().await {
                return live;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(tokio::time::timeout(SOON, live).await.unwrap(), []);
    for executor in dead {
        is_purged(&farm, ExecutorLeaseSubject(executor).to_string(), bus::stream::EXECUTORS).await;
    }
}
