//! Emergencies start at once, and actions have the priority of their build.

use std::{collections::BTreeMap, time::Duration};

use farm::{Builder, Farm, SOON};
use index::Index;
use model::{
    BuildKey, BuildRequest, ExecutionPhase, ExecutionRecord, Outcome, Priority, SendingBuild, State, Urgency,
};
use remote::Remote;
use serde_json::Value;
use tonic::metadata::MetadataMap;

use crate::{
    acting, check, jobs,
    marks::Marks,
    quota::{decide, set_quota, x86},
};

/// Configures a farm that runs builds and actions, without a sandbox: marks of actions are visible.
fn builder() -> Builder {
    Farm::builder().with_actions().env("FOREBAY_SANDBOX", "none")
}

/// Submits a job of group `g` whose tasks are scripts with these names.
async fn submit_job(farm: &Farm, marks: &Marks, priority: Priority, names: &[&str]) -> BuildKey {
    let tasks: Vec<Value> = names.iter().map(|name| jobs::sh(name, &marks.script(name))).collect();
    let request = jobs::request(jobs::job(&Value::Array(tasks)));
    farm.submit("g", BuildRequest { priority: Some(priority), ..request }).await
}

/// Submits a build of one ESU that continues after `marks.go(name)`.
async fn submit_build(farm: &Farm, marks: &Marks, group: &str, priority: Priority, name: &str) -> BuildKey {
    let request = check::script(&marks.script(name));
    farm.submit(group, BuildRequest { priority: Some(priority), occupancy: x86(1.0), ..request }).await
}

async fn is_running(farm: &Farm, key: &BuildKey) {
    farm.wait_until(key, SOON, |record| record.state() == State::InProgress).await;
}

async fn state(farm: &Farm, key: &BuildKey) -> State {
    farm.client().get(key).await.unwrap().state
}

/// Returns when this number of executions waits in the default pool.
pub(crate) async fn waiting_executions(farm: &Farm, count: u64) {
    let index = Index::connect(&farm.servers.redis_url(), true).await.unwrap();
    let looks = async {
        loop {
            let queue = index.actions().backlog().await.unwrap();
            let waiting: u64 = queue.iter().flat_map(|it| &it.groups).map(|(_, count)| count).sum();
            if waiting == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, looks).await.expect("the executions wait");
}

/// The first record of each execution, by the build that sent it.
async fn accepted_by(farm: &Farm, key: &BuildKey) -> Vec<ExecutionRecord> {
    let histories: BTreeMap<String, Vec<ExecutionRecord>> = acting::histories(farm).await;
    let first = histories.into_values().filter_map(|records| records.into_iter().next());
    first.filter(|it| it.execution.build.as_ref().is_some_and(|build| build.id == key.id)).collect()
}

/// A client that claims to be this run of a build of group `g`.
async fn client_of(farm: &Farm, sender: &SendingBuild) -> Remote {
    let mut headers = MetadataMap::new();
    headers.insert("x-forebay-group", "g".parse().unwrap());
    headers.insert("x-forebay-build", sender.to_string().parse().unwrap());
    acting::remote(farm).await.with_headers(headers)
}

#[tokio::test]
async fn the_actions_of_an_emergency_start_before_those_of_a_batch_job() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let marks = Marks::of(&farm);
    let batch = submit_job(&farm, &marks, Priority::Batch, &["b0", "b1", "b2", "b3"]).await;
    check::until("one of them runs", SOON, || marks.order().len() == 1).await;
    waiting_executions(&farm, 3).await;
    let urgent = submit_job(&farm, &marks, Priority::Emergency, &["e0", "e1"]).await;
    waiting_executions(&farm, 5).await;
    for name in ["b0", "b1", "b2", "b3", "e0", "e1"] {
        marks.go(name);
    }
    for key in [&urgent, &batch] {
        assert_eq!(jobs::ended(&farm, key).await.outcome(), Outcome::Succeeded);
    }
    let order = marks.order();
    let urgent_first: Vec<bool> = order.iter().map(|name| name.starts_with('e')).collect();
    assert_eq!(urgent_first, [false, true, true, false, false, false], "{order:?}");
    for (key, band, count) in [(&urgent, Priority::Emergency, 2), (&batch, Priority::Batch, 4)] {
        let bands: Vec<Priority> =
            accepted_by(&farm, key).await.iter().map(|record| record.execution.band).collect();
        assert_eq!(bands, vec![band; count]);
    }
}

#[tokio::test]
async fn an_action_has_the_priority_of_a_build_that_runs_and_of_no_other() {
    let farm = builder().workspaces(2).env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let marks = Marks::of(&farm);
    let (batch, urgent) = (
        submit_build(&farm, &marks, "g", Priority::Batch, "batch").await,
        submit_build(&farm, &marks, "g", Priority::Emergency, "urgent").await,
    );
    let mut senders = Vec::new();
    for key in [&batch, &urgent] {
        let (_, record) = farm.wait_until(key, SOON, |record| record.state() == State::InProgress).await;
        let worker = record.invocation().unwrap().worker.clone();
        senders.push(SendingBuild { worker, id: key.id, attempt: record.attempt });
    }
    let plain = acting::remote(&farm).await;
    let of_batch = client_of(&farm, &senders[0]).await;
    let of_urgent = client_of(&farm, &senders[1]).await;
    // The instance name does not grant the group: only the proof of a build of the group does.
    let first = acting::upload(&plain, &marks.script("first")).await;
    let shared = acting::upload(&plain, &marks.script("shared")).await;
    let running = acting::execute(&of_batch, first);
    marks.begun("first", 1).await;
    let joined = acting::execute(&of_batch, shared);
    waiting_executions(&farm, 1).await;
    let joins = acting::execute(&of_urgent, shared);
    // From outside of a build, and with the name of a build that runs elsewhere.
    let outside = acting::upload(&plain, &marks.script("outside")).await;
    let outside = acting::execute(&plain, outside);
    waiting_executions(&farm, 2).await;
    let stranger = SendingBuild { worker: "another".parse().unwrap(), ..senders[1].clone() };
    let refused = acting::upload(&plain, "true").await;
    let refused = acting::execute(&client_of(&farm, &stranger).await, refused).await.unwrap();
    assert!(refused.is_err(), "it proves nothing, so it may not use the group");
    let histories = || acting::histories(&farm);
    let raised = async {
        let is_raised = |record: &ExecutionRecord| record.phase == ExecutionPhase::Raised;
        while !histories().await.values().flatten().any(is_raised) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, raised).await.expect("the build that joins raises it");
    for name in ["first", "shared", "outside"] {
        marks.go(name);
    }
    for one in [running, joined, joins, outside] {
        let ended = tokio::time::timeout(SOON, one).await.expect("it ends").unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
    let of_action = |action| {
        move |records: &Vec<ExecutionRecord>| records.first().is_some_and(|it| it.execution.action == action)
    };
    let all = histories().await;
    let shared = all.into_values().find(of_action(shared)).unwrap();
    let urgencies: Vec<Urgency> = shared.iter().map(ExecutionRecord::urgency).collect();
    let of = |band| Urgency { band, priority: 0 };
    assert_eq!(urgencies.first(), Some(&of(Priority::Batch)));
    assert_eq!(urgencies.last(), Some(&of(Priority::Emergency)), "{shared:#?}");
    let outside = histories().await.into_values().flatten().find(|record| record.execution.build.is_none());
    assert_eq!(outside.unwrap().execution.band, Priority::Interactive);
    let started = |name: &str| {
        let runs = marks.path().join(format!("{name}.runs"));
        std::fs::metadata(runs).unwrap().modified().unwrap()
    };
    assert!(started("shared") < started("outside"), "there is one slot");
    for (name, key) in [("batch", &batch), ("urgent", &urgent)] {
        marks.go(name);
        check::ended_as(&farm, key, Outcome::Succeeded).await;
    }
}

#[tokio::test]
async fn an_emergency_passes_a_saturated_quota_and_its_group_pays_back() {
    let farm = Farm::builder().workspaces(5).without("gateway").without("dispatcher").start().await;
    set_quota(&farm, "g", 2.0).await;
    set_quota(&farm, "other", 1.0).await;
    decide(&farm, "g", 2.0).await;
    // Quotas are followed with a delay: this service knows them from the start.
    farm.keep(farm.spawn("dispatcher").await);
    let marks = Marks::of(&farm);
    let one = submit_build(&farm, &marks, "g", Priority::Batch, "one").await;
    let two = submit_build(&farm, &marks, "g", Priority::Batch, "two").await;
    is_running(&farm, &one).await;
    is_running(&farm, &two).await;
    let later = submit_build(&farm, &marks, "g", Priority::Interactive, "later").await;
    let urgent = submit_build(&farm, &marks, "g", Priority::Emergency, "urgent").await;
    is_running(&farm, &urgent).await;
    for key in [&one, &two] {
        assert_eq!(state(&farm, key).await, State::InProgress, "it did not wait for their end");
    }
    assert_eq!(state(&farm, &later).await, State::Enqueued, "considered with the emergency, and held");
    let over_target = "the target is 2, with 3 in progress";
    check::why_when(&farm, &later, |why| why.reason.contains(over_target)).await;
    // One more than its target is left: the group has not paid back yet.
    marks.go("one");
    check::ended_as(&farm, &one, Outcome::Succeeded).await;
    marks.go("probe");
    let probe = submit_build(&farm, &marks, "other", Priority::Batch, "probe").await;
    // Another group gets its own; by then the first was considered.
    check::ended_as(&farm, &probe, Outcome::Succeeded).await;
    assert_eq!(state(&farm, &later).await, State::Enqueued);
    marks.go("two");
    is_running(&farm, &later).await;
    assert_eq!(state(&farm, &urgent).await, State::InProgress, "both fit the target");
    for (name, key) in [("later", &later), ("urgent", &urgent), ("two", &two)] {
        marks.go(name);
        check::ended_as(&farm, key, Outcome::Succeeded).await;
    }
}

#[tokio::test]
async fn the_last_idle_workspaces_are_left_to_emergencies_by_every_dispatcher() {
    let farm = Farm::builder().workspaces(3).with("dispatcher").env("FOREBAY_EMERGENCY_WORKSPACES", "1");
    let farm = farm.without("gateway").start().await;
    let marks = Marks::of(&farm);
    let names = ["one", "two", "three"];
    let mut builds = Vec::new();
    for name in names {
        builds.push(submit_build(&farm, &marks, "g", Priority::Interactive, name).await);
    }
    is_running(&farm, &builds[0]).await;
    is_running(&farm, &builds[1]).await;
    let urgent = submit_build(&farm, &marks, "other", Priority::Emergency, "urgent").await;
    is_running(&farm, &urgent).await;
    assert_eq!(state(&farm, &builds[2]).await, State::Enqueued);
    // The workspace that it leaves is kept again.
    marks.go("urgent");
    check::ended_as(&farm, &urgent, Outcome::Succeeded).await;
    check::why_when(&farm, &builds[2], |why| why.reason.contains("kept for emergencies")).await;
    assert_eq!(state(&farm, &builds[2]).await, State::Enqueued);
    marks.go("one");
    is_running(&farm, &builds[2]).await;
    for (name, key) in names.into_iter().zip(&builds) {
        marks.go(name);
        check::ended_as(&farm, key, Outcome::Succeeded).await;
    }
}

#[tokio::test]
async fn the_last_slots_of_an_executor_are_left_to_emergencies() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "2").env("FOREBAY_EMERGENCY_SLOTS", "1").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let one = acting::upload(&remote, &marks.script("one")).await;
    let two = acting::upload(&remote, &marks.script("two")).await;
    let one = acting::execute(&remote, one);
    marks.begun("one", 1).await;
    let two = acting::execute(&remote, two);
    waiting_executions(&farm, 1).await;
    let urgent = submit_job(&farm, &marks, Priority::Emergency, &["urgent"]).await;
    marks.begun("urgent", 1).await;
    assert!(marks.runs("two").is_empty(), "one slot is kept");
    marks.go("urgent");
    assert_eq!(jobs::ended(&farm, &urgent).await.outcome(), Outcome::Succeeded);
    assert!(marks.runs("two").is_empty(), "it is kept again");
    marks.go("one");
    marks.go("two");
    for execution in [one, two] {
        let ended = tokio::time::timeout(SOON, execution).await.expect("it ends").unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
    assert_eq!(marks.order(), ["one", "urgent", "two"]);
}
