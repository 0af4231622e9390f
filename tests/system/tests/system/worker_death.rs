//! A worker that dies, hangs or is stopped leaves nothing running and writes nothing more.

use std::time::{Duration, Instant};

use farm::{Farm, SOON};
use model::{BuildKey, BuildRequest, Heartbeat, Outcome, State, WorkspaceState};
use nix::sys::signal::Signal;

use crate::check::{BOUND, ended_as, processes_of, request, script, until};

/// A shell, a child, and a daemon in its own session, of the first attempt only.
const TREE: &str = r#"if [ "$FOREBAY_ATTEMPT" = 1 ]; then
  setsid sh -c 'setsid sleep 1000 & exec sleep 1000' > /dev/null 2>&1 < /dev/null &
  (trap '' TERM HUP; while :; do sleep 1000; done) &
  sleep 1000
fi"#;

async fn run_tree(farm: &Farm) -> BuildKey {
    let key = farm.submit("g", request(&farm.effects().command(TREE))).await;
    until("the tree runs", SOON, || processes_of(key.id).len() >= 6).await;
    key
}

async fn started_again_at(farm: &Farm, key: &BuildKey) -> u64 {
    let again = |record: &model::BuildRecord| record.attempt.0 == 2 && record.state() == State::InProgress;
    farm.wait_until(key, BOUND, again).await.1.at_ms.0
}

fn now_ms() -> u64 {
    model::Millis::of_this_machine().0
}

#[tokio::test]
async fn a_killed_workers_processes_are_dead_before_its_lease_ends() {
    let farm = Farm::builder().without("gateway").start().await;
    let key = run_tree(&farm).await;
    let mut worker = farm.take("worker");
    worker.kill9();
    let took = until("the tree is dead", SOON, || processes_of(key.id).is_empty()).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let dead_at = now_ms();
    worker.wait_exit(SOON).await;
    farm.keep(farm.spawn("worker").await);
    assert!(dead_at < started_again_at(&farm, &key).await);
    assert_eq!(ended_as(&farm, &key, Outcome::Succeeded).await.attempt.0, 2);
    farm.effects().assert_sound();
}

#[tokio::test]
async fn a_stopped_workers_processes_are_dead_before_its_lease_passes_on() {
    let farm = Farm::builder().without("gateway").start().await;
    let key = run_tree(&farm).await;
    let stopped = farm.take("worker");
    stopped.pause();
    let second = farm.spawn("worker").await;
    until("the tree is dead", SOON, || processes_of(key.id).is_empty()).await;
    let dead_at = now_ms();
    let again_at = started_again_at(&farm, &key).await;
    assert!(dead_at < again_at, "dead {} ms after the next start", dead_at - again_at);
    ended_as(&farm, &key, Outcome::Succeeded).await;
    farm.effects().assert_sound();
    let history = farm.history(&key).await;
    assert_eq!(history.len(), 5);

    // The resumed worker reports nothing about it, and continues to work.
    drop(second);
    stopped.resume();
    let next = farm.submit("g", script("true")).await;
    ended_as(&farm, &next, Outcome::Succeeded).await;
    assert_eq!(farm.history(&key).await, history);
}

/// Returns a process and all its descendants.
fn family(first: u32) -> Vec<u32> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        // Children of any of its threads.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = children
            .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect();
        found.extend(children);
        next += 1;
    }
    found
}

#[tokio::test]
async fn a_tree_that_is_stopped_as_a_whole_is_dead_before_its_lease_passes_on() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let key = run_tree(&farm).await;
    let worker = farm.take("worker");
    let all = family(worker.pid());
    assert!(processes_of(key.id).iter().all(|pid| all.contains(pid)), "{all:?}");
    for pid in &all {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
    }
    let _second = farm.spawn("worker").await;
    started_again_at(&farm, &key).await;
    // No process was continued: those that still run belong to the second attempt.
    let alive: Vec<&u32> = all.iter().skip(1).filter(|pid| farm::start_ticks(**pid).is_some()).collect();
    assert!(alive.is_empty(), "{alive:?} of {all:?} outlived their lease");
    assert!(farm::alive(worker.pid()), "the worker itself is only stopped");
    ended_as(&farm, &key, Outcome::Succeeded).await;
    farm.effects().assert_sound();
    worker.resume();
}

#[tokio::test]
async fn a_worker_resumed_during_the_next_attempt_writes_nothing_of_the_old_one() {
    let farm = Farm::builder().without("gateway").start().await;
    let body = "i=0; while [ $i -lt 40 ]; do echo line $FOREBAY_ATTEMPT; i=$((i+1)); sleep 0.05; done";
    let key = farm.submit("g", request(&farm.effects().command(body))).await;
    until("output is written", SOON, || farm.effects().of(key.id).len() == 1).await;
    let stopped = farm.take("worker");
    stopped.pause();
    let _second = farm.spawn("worker").await;
    started_again_at(&farm, &key).await;
    stopped.resume();
    // The function `ended_as` checks that each event is of the running attempt.
    assert_eq!(ended_as(&farm, &key, Outcome::Succeeded).await.attempt.0, 2);
    farm.effects().assert_sound();
}

#[tokio::test]
async fn a_cancelled_build_is_killed_at_once_though_it_ignores_sigterm() {
    let farm = Farm::builder().without("gateway").lease_ttl(15).start().await;
    let key = farm.submit("g", script("trap '' TERM; while :; do sleep 1000; done")).await;
    until("it runs", SOON, || processes_of(key.id).len() >= 2).await;
    let began = Instant::now();
    let reply = farm.client().cancel(&key, Some("enough".into())).await.unwrap();
    assert!(reply.cancelled);
    until("it is dead", SOON, || processes_of(key.id).is_empty()).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let record = ended_as(&farm, &key, Outcome::Cancelled).await;
    assert_eq!(record.result().unwrap().reason.as_ref().unwrap().message, "enough");
    // Its workspace accepts the next build.
    let next = farm.submit("g", BuildRequest { queue_timeout_seconds: Some(5), ..script("true") }).await;
    ended_as(&farm, &next, Outcome::Succeeded).await;
}

#[tokio::test]
async fn a_cancelled_build_says_what_it_used() {
    let farm = Farm::builder().without("gateway").start().await;
    let flag = farm.folder().join("it-runs");
    let key = farm.submit("g", script(&format!("touch {}; while :; do :; done", flag.display()))).await;
    until("it runs", SOON, || flag.exists()).await;
    // It is measured each second; a busy machine does not answer the question at its end in time.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    farm.client().cancel(&key, None).await.unwrap();
    let result = ended_as(&farm, &key, Outcome::Cancelled).await.result().unwrap().clone();
    assert!(result.wall_seconds >= 1.0 && result.cpu_seconds > 0.0, "{result:?}");
    assert!(result.cpu_seconds <= result.wall_seconds * 1.5 && !result.usage.is_empty(), "{result:?}");
    // A worker that does not answer delays nothing.
    let key = farm.submit("g", script("sleep 1000")).await;
    until("it runs", SOON, || !processes_of(key.id).is_empty()).await;
    let worker = farm.take("worker");
    worker.pause();
    farm.client().cancel(&key, None).await.unwrap();
    let result = ended_as(&farm, &key, Outcome::Cancelled).await.result().unwrap().clone();
    assert!(result.wall_seconds > 0.0 && result.usage.is_empty(), "{result:?}");
    worker.resume();
}

#[tokio::test]
async fn a_build_whose_workers_all_die_is_lost_after_its_attempts() {
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let key = farm.submit("g", BuildRequest { max_attempts: Some(2), ..script("sleep 1000") }).await;
    for attempt in 1..=2 {
        let worker = farm.spawn("worker").await;
        let running =
            |record: &model::BuildRecord| record.attempt.0 == attempt && record.invocation().is_some();
        farm.wait_until(&key, BOUND, running).await;
        drop(worker);
    }
    let record = ended_as(&farm, &key, Outcome::Lost).await;
    assert_eq!(record.attempt.0, 2);
    assert_eq!(record.result().unwrap().reason.as_ref().unwrap().code, model::ReasonCode::LeaseExpired);
}

#[tokio::test]
async fn a_worker_told_to_stop_gives_its_build_back() {
    let farm = Farm::builder().without("gateway").env("FOREBAY_DRAIN_SECONDS", "1").start().await;
    let body = r#"[ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#;
    let request = BuildRequest { max_attempts: Some(1), ..request(&farm.effects().command(body)) };
    let key = farm.submit("g", request).await;
    until("it runs", SOON, || !processes_of(key.id).is_empty()).await;
    let mut first = farm.take("worker");
    let _second = farm.spawn("worker").await;
    first.term();
    assert!(first.wait_exit(Duration::from_secs(5)).await.success());
    // It is not a fault of the build and does not count.
    assert_eq!(ended_as(&farm, &key, Outcome::Succeeded).await.attempt.0, 2);
    farm.effects().assert_sound();
}

#[tokio::test]
async fn an_offer_without_an_answer_is_taken_back_on_a_busy_farm() {
    const OTHERS: usize = 250;
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let busy = farm.submit("g", script("sleep 2")).await;
    farm.wait_until(&busy, SOON, |record| record.state() == State::InProgress).await;
    // The only idle one, so that it gets the offer.
    let mut heartbeats = farm.bus().listen::<Heartbeat>(&()).await.unwrap();
    let frozen = farm.spawn("worker").await;
    let idle = |state: &WorkspaceState| matches!(state, WorkspaceState::Idle { .. });
    let offers = async { while !heartbeats.next().await.unwrap().content.workspaces.iter().any(idle) {} };
    tokio::time::timeout(SOON, offers).await.expect("the second worker has an idle workspace");
    frozen.pause();
    let offered = farm.submit("g", script("true")).await;
    let requests = (0..OTHERS).map(|_| farm.submit("h", script("sleep 0.02")));
    let others = futures::future::join_all(requests).await;
    let (started, _) = farm.wait_until(&offered, BOUND, |record| record.state() != State::Enqueued).await;
    frozen.resume();
    let ends =
        others.iter().map(|key| farm.wait_until(key, 4 * BOUND, |record| record.state() == State::Finished));
    let ends = futures::future::join_all(ends).await;
    let later = ends.iter().filter(|(ended, _)| *ended > started).count();
    assert!(
        later > OTHERS / 4,
        "it waited until {} of {OTHERS} builds of the other group had ended",
        OTHERS - later
    );
}
