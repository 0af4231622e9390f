//! Identical concurrent requests share one execution.

use std::time::Duration;

use crate::support::{Executor, Farm, Operations, SOON, begun, code, command, key, request};
use bus::Written;
use index::{
    Index,
    actions::{Joined, MergeKey},
};
use model::{BlobDigest, Execution, ExecutionId, ExecutionPhase, ExecutionRecord, Millis, Sequence};
use reapi::execution::{Action, ExecuteRequest, ExecutionPolicy};
use tonic::{Code, Request};

fn skipping(action: &BlobDigest) -> ExecuteRequest {
    ExecuteRequest { skip_cache_lookup: true, ..request(action) }
}

fn urgent(action: &BlobDigest, priority: i32) -> ExecuteRequest {
    ExecuteRequest { execution_policy: Some(ExecutionPolicy { priority }), ..request(action) }
}

/// Asserts that the executor receives nothing more.
fn nothing_more(executor: &mut Executor) {
    if let Ok((_, record)) = executor.offered.try_recv() {
        panic!("{record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_are_one_execution() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let requests = (0..1000).map(|_| begun(&gateway, request(&action)));
    let all: Vec<(String, Operations)> = futures::future::join_all(requests).await;
    assert!(all.iter().all(|(name, _)| *name == all[0].0));
    executor.run_one("hello").await;
    for (_, stream) in all {
        assert_eq!(code(stream).await, Code::Ok);
    }
    nothing_more(&mut executor);
    let stats = farm.redis_info("commandstats").await;
    let calls = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
    let scripts: u64 = stats.lines().filter(|line| line.contains("_eval")).filter_map(calls).sum();
    assert!(scripts < 100, "{scripts} scripts for 1000 requests:\n{stats}");
}

#[tokio::test]
async fn gateways_share_what_runs() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let (name, first) = begun(&one, request(&action)).await;
    let (same, second) = begun(&two, request(&action)).await;
    assert_eq!(name, same);
    // A client that skips the cache gets a fresh result: that of an execution that ends after its request.
    let (same, third) = begun(&two, skipping(&action)).await;
    assert_eq!(name, same);
    // All at the same moment, with no known execution.
    let other = farm.action("2").await;
    let requests = [&one, &two, &one, &two, &one, &two].map(|gateway| begun(gateway, request(&other)));
    let names: Vec<_> = futures::future::join_all(requests).await;
    assert!(names.iter().all(|(name, _)| *name == names[0].0));
    executor.run_one("x").await;
    for stream in [first, second, third] {
        assert_eq!(code(stream).await, Code::Ok);
    }
    executor.run_one("y").await;
    for (_, stream) in names {
        assert_eq!(code(stream).await, Code::Ok);
    }
    nothing_more(&mut executor);
}

#[tokio::test]
async fn some_never_share() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let alone = Action { do_not_cache: true, ..Action::default() };
    let alone = farm.action_of(alone, command(), "1").await;
    let five = futures::future::join_all((0..5).map(|_| begun(&gateway, request(&alone)))).await;
    for (at, (name, _)) in five.iter().enumerate() {
        assert!(five.iter().skip(at + 1).all(|(other, _)| other != name), "{name}");
        executor.offer().await;
    }
    // Another group, another instance name.
    let action = farm.action("2").await;
    let mut grouped = Request::new(request(&action));
    grouped.metadata_mut().insert("x-forebay-group", "other".parse().unwrap());
    let instance = ExecuteRequest { instance_name: "ro".into(), ..request(&action) };
    let here = begun(&gateway, request(&action)).await;
    let there = begun(&gateway, grouped).await;
    let elsewhere = begun(&gateway, instance).await;
    let keys = [&here, &there, &elsewhere].map(|(name, _)| key(name).id);
    assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2], "{keys:?}");
    for _ in 0..3 {
        executor.offer().await;
    }
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let mut farm = Farm::start().await;
    farm.settings.action_merging = false;
    farm.pool().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let (one, two) = (begun(&gateway, request(&action)).await, begun(&gateway, request(&action)).await);
    assert_ne!(one.0, two.0);
}

#[tokio::test]
async fn what_has_ended_is_not_joined() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let mut names = Vec::new();
    // The log is not projected in this test, so the index considers each execution unfinished; and the second gateway
    // saw none of them.
    for gateway in [&one, &one, &two] {
        let (name, stream) = begun(gateway, skipping(&action)).await;
        executor.run_one("fresh").await;
        let response = stream.response().await;
        assert!(!response.cached_result);
        names.push(name);
    }
    assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
    // A result that is cached by then is returned, unless the request skips the cache.
    let result = executor.result("stored").await;
    farm.cas.put_action("main", &action, &result).await.unwrap();
    assert_eq!(two.run(&action).await.response().await.result, Some(result));
}

#[tokio::test]
async fn it_is_as_urgent_as_to_the_most_urgent() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let (name, _first) = begun(&one, urgent(&action, 5)).await;
    let key = key(&name);
    let (accepted, record) = executor.offer().await;
    assert_eq!(record.urgency().priority, 5);
    let (_, _second) = begun(&two, urgent(&action, -3)).await;
    let (raised, record) = executor.offer().await;
    assert_eq!((record.urgency().priority, &record.phase), (-3, &ExecutionPhase::Raised));
    assert_eq!(record.place, accepted, "it keeps its age");
    // The same holds at one gateway; a less urgent request changes nothing.
    let (_, _third) = begun(&one, urgent(&action, 0)).await;
    assert_eq!(farm.bus.records().latest(&key).await.unwrap().unwrap().0, raised);
    let (_, _fourth) = begun(&one, urgent(&action, -7)).await;
    assert_eq!(farm.last(&key).await.urgency().priority, -7);
}

#[tokio::test]
async fn without_redis_all_are_answered() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let pid = i32::try_from(farm.servers.redis_pid().unwrap()).unwrap();
    let signal = |name: &str| {
        let done = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
        assert!(done.expect("kill can be run").success());
    };
    // Redis hangs first, then it is killed.
    signal("-STOP");
    for _ in 0..2 {
        let all = futures::future::join_all(
            [&one, &one, &two, &two].map(|gateway| begun(gateway, request(&action))),
        );
        let all =
            tokio::time::timeout(Duration::from_secs(5), all).await.expect("no request waits for Redis");
        let names: Vec<&String> = all.iter().map(|(name, _)| name).collect();
        assert_eq!((names[0], names[2]), (names[1], names[3]), "a gateway knows its own executions");
        assert_ne!(names[0], names[2]);
        executor.run_one("x").await;
        executor.run_one("x").await;
        for (_, stream) in all {
            assert_eq!(code(stream).await, Code::Ok);
        }
        farm.servers.kill_redis();
    }
    farm.servers.start_redis().await;
    let merged = async {
        for number in 2.. {
            let action = farm.action(&number.to_string()).await;
            let (here, there) = (begun(&one, request(&action)).await, begun(&two, request(&action)).await);
            if here.0 == there.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(SOON, merged).await.expect("Redis is queried again after its return");
}

#[tokio::test]
async fn what_was_to_be_joined_and_never_written_is_written() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let (_, first) = begun(&gateway, request(&action)).await;
    let pattern = executor.offer().await.1.execution;
    drop(first);
    // A gateway that dies between its writes to the index and to the log.
    let dead = Execution { id: ExecutionId::generate(), action: farm.action("2").await, ..pattern };
    let index = Index::connect(&farm.servers.redis_url(), true).await.unwrap().actions();
    let what = MergeKey::of(&dead).unwrap();
    assert_eq!(index.join(&what, &dead.key(), &[], SOON).await.unwrap(), Joined::First);
    assert!(farm.bus.records().latest(&dead.key()).await.unwrap().is_none());

    let (name, stream) = begun(&gateway, request(&dead.action)).await;
    assert_eq!(key(&name), dead.key());
    executor.run_one("x").await;
    assert_eq!(code(stream).await, Code::Ok);
    // If the gateway is alive after all, it finds the record written.
    let late = Execution { accepted_at_ms: Millis::of_this_machine(), ..dead };
    let late = ExecutionRecord::accepted(late);
    let written = farm.bus.transition(&late, Sequence(0), SOON).await.unwrap();
    assert!(matches!(written, Written::Lost(Some(_))), "{written:?}");
}
