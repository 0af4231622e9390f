//! Requests for the same action join one execution, and every client that joined receives the result.

use std::{collections::BTreeSet, time::Duration};

use farm::{Builder, Farm, Machine, SOON};
use futures::future::join_all;
use model::BlobDigest;
use reapi::execution::Action;
use remote::Remote;

use crate::{
    acting::{self, SHA256, processes_with},
    marks::{Begun, Marks, history_of, only_history, phases, upload_asking},
};

const CROWD: usize = 1000;
const CONNECTIONS: usize = 10;
/// Time for a lease of 2 s to expire, or a copy to start after half a second, and a thousand clients to be notified,
/// with a wide margin.
const BOUND: Duration = Duration::from_secs(20);
/// The grace period of one second, and the time to notify all processes.
const CANCELLED_WITHIN: Duration = Duration::from_secs(5);

/// Starts a thousand clients that request the same action; returns when all of them are waiting.
async fn crowd(farm: &Farm, action: &BlobDigest) -> Vec<Begun> {
    let connections = join_all((0..CONNECTIONS).map(|_| acting::remote(farm))).await;
    let asking = (0..CROWD).map(|number| {
        let remote = &connections[number % CONNECTIONS];
        async move { Begun::new(remote, action).await }
    });
    join_all(asking).await
}

/// Asserts that all clients of the crowd receive `wanted` in time.
async fn all_get(crowd: Vec<Begun>, remote: &Remote, wanted: &str) {
    let all = join_all(crowd.into_iter().map(|begun| begun.stdout(remote)));
    let all = tokio::time::timeout(BOUND, all).await.expect("all get their result");
    assert_eq!((all.len(), all.iter().filter(|out| *out == wanted).count()), (CROWD, CROWD));
}

#[tokio::test]
async fn a_thousand_who_ask_for_the_same_have_it_run_once() {
    let farm = acting::builder().start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let action = acting::upload(&remote, &marks.script("one")).await;
    let crowd = crowd(&farm, &action).await;
    let names: BTreeSet<&str> = crowd.iter().map(|begun| begun.name.as_str()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    marks.begun("one", 1).await;
    marks.go("one");
    all_get(crowd, &remote, "one\n").await;
    assert_eq!(marks.runs("one").len(), 1);
    assert_eq!(phases(&only_history(&farm).await), ["accepted", "finished"]);
}

/// Starts a farm of two machines, and a thousand clients that wait for an action on one of them,
/// which is then stopped.
async fn standing_still(builder: Builder) -> (Farm, Marks, Vec<Machine>, usize, Vec<Begun>) {
    let farm = builder.without("executor").start().await;
    let machines = vec![farm.machine("one", &[]).await, farm.machine("two", &[]).await];
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let action = acting::upload(&remote, &marks.hanging_once("it")).await;
    let crowd = crowd(&farm, &action).await;
    marks.begun("it", 1).await;
    let holder = marks.holder("it", 0, &machines);
    machines[holder].pause();
    (farm, marks, machines, holder, crowd)
}

#[tokio::test]
async fn all_who_joined_get_the_result_of_a_copy_when_the_executor_stands_still() {
    // Only a copy can help: no lease expires.
    let builder = acting::builder().lease_ttl(600).env("FOREBAY_ACTION_HEDGES", "1");
    let builder = builder.env("FOREBAY_ACTION_HEDGE_DELAY_MS", "4000");
    let (farm, marks, machines, holder, crowd) = standing_still(builder).await;
    all_get(crowd, &acting::remote(&farm).await, "it\n").await;
    assert_ne!(marks.holder("it", 1, &machines), holder);
    machines[holder].resume();
    marks.all_dead(SOON).await;
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "finished"], "{records:#?}");
    assert_eq!((records[2].attempt.0, marks.runs("it").len()), (1, 2));
}

#[tokio::test]
async fn all_who_joined_get_the_result_of_another_attempt_when_the_executor_stands_still() {
    let (farm, marks, machines, holder, crowd) = standing_still(acting::builder().lease_ttl(2)).await;
    all_get(crowd, &acting::remote(&farm).await, "it\n").await;
    assert_ne!(marks.holder("it", 1, &machines), holder);
    // The replaced run is not needed any more.
    machines[holder].resume();
    marks.all_dead(SOON).await;
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "requeued", "finished"], "{records:#?}");
    assert_eq!((records[2].attempt.0, marks.runs("it").len()), (2, 2));
}

#[tokio::test]
async fn what_nobody_may_share_runs_for_each() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "8");
    let farm = farm.env("FOREBAY_INSTANCES", "red=red blue=blue *=default").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let uncached = Action { do_not_cache: true, ..Action::default() };
    let (command, root) = (acting::sh(&marks.script("own")), SHA256.empty());
    let own = acting::upload_as(&remote, &command, uncached, &root).await;
    let shared = acting::upload(&remote, &marks.script("shared")).await;
    let (red, blue) = (remote.with_instance("red"), remote.with_instance("blue"));
    let mut begun = Vec::new();
    for (client, action) in [(&red, &own), (&red, &own), (&red, &shared), (&red, &shared), (&blue, &shared)] {
        begun.push(Begun::new(client, action).await);
    }
    marks.begun("own", 2).await;
    marks.begun("shared", 2).await;
    marks.go("own");
    marks.go("shared");
    for one in begun {
        one.ended().await;
    }
    // Twice without caching; and once for each of two groups that cannot share the result.
    assert_eq!((marks.runs("own").len(), marks.runs("shared").len()), (2, 2));
    assert_eq!(acting::histories(&farm).await.len(), 4);
}

#[tokio::test]
async fn without_merging_each_request_runs() {
    let farm = acting::builder().env("FOREBAY_ACTION_MERGING", "false").env("FOREBAY_EXECUTOR_SLOTS", "8");
    let farm = farm.start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = join_all((0..3).map(|_| Begun::new(&remote, &action))).await;
    marks.begun("it", 3).await;
    marks.go("it");
    for one in begun {
        assert_eq!(one.stdout(&remote).await, "it\n");
    }
    assert_eq!(acting::histories(&farm).await.len(), 3);
}

#[tokio::test]
async fn it_is_killed_when_the_last_who_joined_has_gone_and_not_before() {
    let farm = acting::builder().with("gateway").start().await;
    let marks = Marks::of(&farm);
    let mut remotes = Vec::new();
    for url in farm.grpc_urls() {
        remotes.push(Remote::connect(&url, "", SHA256).await.unwrap());
    }
    let [one, two] = remotes.as_slice() else { panic!("two gateways") };
    let action = acting::upload(one, &marks.script("it")).await;
    // Each client uses a different gateway.
    let (first, second) = (Begun::new(one, &action).await, Begun::new(two, &action).await);
    assert_eq!(first.name, second.name);
    marks.begun("it", 1).await;
    drop(first);
    // Longer than the grace period of an execution without clients.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let script = marks.path().display().to_string();
    assert!(!processes_with(&script).is_empty(), "it was killed although a client waited");
    drop(second);
    marks.all_dead(CANCELLED_WITHIN).await;
    assert_eq!(marks.runs("it").len(), 1);
}

#[tokio::test]
async fn a_gateway_that_dies_takes_no_result_from_who_joined_at_another() {
    let farm = acting::builder().with("gateway").start().await;
    let marks = Marks::of(&farm);
    let [dies, lives] = farm.grpc_urls().try_into().unwrap();
    let dies: Remote = Remote::connect(&dies, "", SHA256).await.unwrap();
    let lives: Remote = Remote::connect(&lives, "", SHA256).await.unwrap();
    let action = acting::upload(&dies, &marks.script("it")).await;
    let canonical = Begun::new(&dies, &action).await;
    let joined = Begun::new(&lives, &action).await;
    assert_eq!(canonical.name, joined.name);
    marks.begun("it", 1).await;
    drop(farm.take("gateway"));
    // Longer than the grace period of an execution without clients.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    marks.go("it");
    assert_eq!(joined.stdout(&lives).await, "it\n");
    assert_eq!(phases(&only_history(&farm).await), ["accepted", "finished"]);
}

#[tokio::test]
async fn to_whom_it_is_more_urgent_raises_its_priority() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let asking = async |name: &str| acting::upload(&remote, &marks.script(name)).await;
    let (before, patient, other) = (asking("before").await, asking("patient").await, asking("other").await);
    let running = Begun::new(&remote, &before).await;
    marks.begun("before", 1).await;
    let late = Begun::with_priority(&remote, &patient, 5).await;
    let early = Begun::with_priority(&remote, &other, 3).await;
    let urgent = Begun::with_priority(&remote, &patient, 1).await;
    assert_eq!(late.name, urgent.name);
    for name in ["patient", "other", "before"] {
        marks.go(name);
    }
    let name = late.name.clone();
    for one in [running, late, early, urgent] {
        one.ended().await;
    }
    assert_eq!(marks.order(), ["before", "patient", "other"]);
    let records = history_of(&farm, &name).await;
    assert_eq!(phases(&records), ["accepted", "raised", "finished"], "{records:#?}");
    assert_eq!((records[0].urgency().priority, records[1].urgency().priority), (5, 1));
}

#[tokio::test]
async fn a_request_that_joins_after_redis_forgot_everything_gets_its_result() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "4").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let action = acting::upload(&remote, &marks.script("it")).await;
    let first = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    farm.servers.flush_redis();
    let second = Begun::new(&remote, &action).await;
    // The index is rebuilt, as another action shows.
    let next = upload_asking(&remote, "echo next", &[]).await;
    assert_eq!(Begun::new(&remote, &next).await.stdout(&remote).await, "next\n");
    marks.go("it");
    assert_eq!(first.stdout(&remote).await, "it\n");
    assert_eq!(second.stdout(&remote).await, "it\n");
}
