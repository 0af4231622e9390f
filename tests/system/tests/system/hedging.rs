//! Copies of long-running actions: the first success is the result, and the others are killed.

use std::{collections::BTreeSet, time::Duration};

use farm::{Builder, Farm, Machine, SOON};
use model::ExecutionPhase;
use reapi::execution::Action;
use remote::Remote;

use crate::{
    acting::{self, SHA256},
    marks::{Begun, Marks, only_history, phases, upload_asking},
};

/// Long enough to detect a copy that must not start.
const NOTHING_MORE: Duration = Duration::from_millis(1500);

/// Configures a farm that starts copies after this delay, and whose leases do not expire.
fn hedging(most: &str, delay_ms: &str) -> Builder {
    let builder = acting::builder().without("executor").lease_ttl(600);
    builder.env("FOREBAY_ACTION_HEDGES", most).env("FOREBAY_ACTION_HEDGE_DELAY_MS", delay_ms)
}

async fn with_machines(builder: Builder, names: &[&str]) -> (Farm, Remote, Marks, Vec<Machine>) {
    let farm = builder.start().await;
    let mut machines = Vec::new();
    for name in names {
        machines.push(farm.machine(name, &[]).await);
    }
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    (farm, remote, marks, machines)
}

#[tokio::test]
async fn the_first_success_is_the_result_and_the_others_are_killed() {
    let (farm, remote, marks, machines) = with_machines(hedging("1", "300"), &["one", "two"]).await;
    let action = acting::upload(&remote, &marks.hanging_once("it")).await;
    let begun = Begun::new(&remote, &action).await;
    assert_eq!(begun.stdout(&remote).await, "it\n");
    marks.all_dead(SOON).await;
    assert_ne!(marks.holder("it", 0, &machines), marks.holder("it", 1, &machines));
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "finished"], "{records:#?}");
    // The killed copy does not count as an attempt, and its slot is free.
    assert_eq!(records[2].attempt.0, 1);
    let next = acting::upload(&remote, "echo next").await;
    assert_eq!(acting::stdout(&remote, &acting::executed(&remote, next).await).await, "next\n");
}

#[tokio::test]
async fn there_are_no_more_copies_than_allowed_and_each_is_elsewhere() {
    let names = ["one", "two", "three", "four"];
    let (farm, remote, marks, machines) = with_machines(hedging("2", "200"), &names).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 3).await;
    tokio::time::sleep(NOTHING_MORE).await;
    let places: BTreeSet<usize> = (0..3).map(|run| marks.holder("it", run, &machines)).collect();
    assert_eq!((marks.runs("it").len(), places.len()), (3, 3), "{places:?}");
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "hedged", "finished"], "{records:#?}");
    // Linear backoff: the second waits twice as long as the first.
    let waited = |at: usize| records[at].at_ms.since(records[at - 1].at_ms);
    assert!(waited(2) >= 2 * Duration::from_millis(200), "{:?}", waited(2));
}

#[tokio::test]
async fn a_copy_waits_for_another_executor_than_the_one_that_has_it() {
    let (farm, remote, marks, machines) = with_machines(hedging("1", "200"), &["one"]).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    // It has a second slot, and must not use it.
    tokio::time::sleep(NOTHING_MORE).await;
    assert_eq!(marks.runs("it").len(), 1);
    let other = farm.machine("two", &[]).await;
    marks.begun("it", 2).await;
    assert!(machines[0].has(&marks.runs("it")[0]) && other.has(&marks.runs("it")[1]));
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
}

#[tokio::test]
async fn a_copy_that_fails_lets_the_others_go_on() {
    let (farm, remote, marks, _machines) = with_machines(hedging("1", "200"), &["one", "two"]).await;
    // The first run fails as soon as there is a second one, which then continues.
    let folder = marks.path().display();
    let fails = format!("until [ $(wc -l < {folder}/it.runs) = 2 ]; do sleep 0.02; done; exit 7");
    let script = format!("echo $PWD >> {folder}/it.runs; {}; ", marks.first(&fails, "it"));
    let script = format!("{script} until [ -e {folder}/it.go ]; do sleep 0.02; done; echo out");
    let action = acting::upload(&remote, &script).await;
    let begun = Begun::new(&remote, &action).await;
    // The end must be recorded first: otherwise the success of the other copy could precede it.
    copy_ended(&farm).await;
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "out\n");
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "copy ended", "finished"], "{records:#?}");
    let ExecutionPhase::CopyEnded { reason, .. } = &records[2].phase else { panic!("{records:#?}") };
    assert!(reason.contains('7'), "{reason}");
}

#[tokio::test]
async fn what_fails_in_every_copy_ends_with_its_failure_and_is_not_tried_again() {
    let (farm, remote, marks, _machines) = with_machines(hedging("1", "200"), &["one", "two", "three"]).await;
    let folder = marks.path().display();
    let script = format!(
        "echo $PWD >> {folder}/it.runs; until [ $(wc -l < {folder}/it.runs) = 2 ]; do sleep 0.02; done; exit 7"
    );
    let action = acting::upload(&remote, &script).await;
    let response = Begun::new(&remote, &action).await.ended().await;
    assert_eq!(response.result.unwrap().exit_code, 7);
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "copy ended", "finished"], "{records:#?}");
    assert_eq!((records[3].attempt.0, marks.runs("it").len()), (1, 2));
}

#[tokio::test]
async fn a_copy_whose_executor_dies_lets_the_others_go_on() {
    let (farm, remote, marks, mut machines) =
        with_machines(hedging("1", "200").lease_ttl(2), &["one", "two"]).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 2).await;
    let dead = marks.holder("it", 0, &machines);
    drop(machines.remove(dead));
    // Its lease expires, which is not a reason to run the action again.
    copy_ended(&farm).await;
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "copy ended", "finished"], "{records:#?}");
    assert_eq!((records[3].attempt.0, marks.runs("it").len()), (1, 2));
}

#[tokio::test]
async fn what_fails_while_its_copy_waits_is_not_run_again() {
    let (farm, remote, marks, _machines) = with_machines(hedging("1", "200"), &["one"]).await;
    let action = acting::upload(&remote, &format!("{}; exit 7", marks.script("it"))).await;
    let begun = Begun::new(&remote, &action).await;
    wanted(&farm).await;
    marks.go("it");
    let response = begun.ended().await;
    assert_eq!(response.result.unwrap().exit_code, 7);
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "copy ended", "finished"], "{records:#?}");
    assert_eq!((records[3].attempt.0, marks.runs("it").len()), (1, 1));
}

/// Returns when the end of a copy of the only execution is recorded.
async fn copy_ended(farm: &Farm) {
    let told = async {
        while !phases(&only_history(farm).await).contains(&"copy ended") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, told).await.expect("its end is recorded");
}

/// Returns when an additional copy of the only execution is recorded.
async fn wanted(farm: &Farm) {
    let hedged = async {
        while phases(&only_history(farm).await) != ["accepted", "hedged"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, hedged).await.expect("a copy is wanted");
}

#[tokio::test]
async fn what_runs_gets_its_copy_though_redis_forgot_that_it_is_due() {
    let (farm, remote, marks, _machines) = with_machines(hedging("1", "3000"), &["one", "two"]).await;
    let action = acting::upload(&remote, &marks.hanging_once("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    farm.servers.flush_redis();
    assert_eq!(begun.stdout(&remote).await, "it\n");
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "finished"], "{records:#?}");
    assert_eq!((records[2].attempt.0, marks.runs("it").len()), (1, 2));
}

#[tokio::test]
async fn a_copy_that_waits_is_started_though_redis_forgot_it() {
    let (farm, remote, marks, machines) = with_machines(hedging("1", "200"), &["one"]).await;
    let action = acting::upload(&remote, &marks.hanging_once("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    wanted(&farm).await;
    farm.servers.flush_redis();
    // Only on another executor, even if the first one has free slots.
    tokio::time::sleep(NOTHING_MORE).await;
    assert_eq!(marks.runs("it").len(), 1);
    let other = farm.machine("two", &[]).await;
    assert_eq!(begun.stdout(&remote).await, "it\n");
    assert!(machines[0].has(&marks.runs("it")[0]) && other.has(&marks.runs("it")[1]));
}

#[tokio::test]
async fn what_takes_longer_than_its_kind_gets_a_copy() {
    let builder = acting::builder().without("executor").lease_ttl(600);
    let builder = builder.env("FOREBAY_ACTION_HEDGE_BY_HISTORY", "true");
    let (farm, remote, marks, _machines) = with_machines(builder, &["one", "two"]).await;
    let folder = marks.path().display();
    // The command is the same each time: the folder outside controls its behaviour.
    let script = format!(
        "if [ -e {folder}/now ]; then echo $PWD >> {folder}/it.runs; {}; fi; echo out",
        marks.first("while :; do sleep 0.05; done", "it")
    );
    let command = acting::sh(&script);
    let run = async |salt: u8| {
        let action = Action { salt: vec![salt], ..Action::default() };
        acting::upload_as(&remote, &command, action, &SHA256.empty()).await
    };
    for salt in 0..40 {
        let response = acting::executed(&remote, run(salt).await).await;
        assert_eq!(acting::stdout(&remote, &response).await, "out\n");
    }
    let before = acting::histories(&farm).await.len();
    std::fs::write(marks.path().join("now"), "").unwrap();
    let begun = Begun::new(&remote, &run(100).await).await;
    let name = begun.name.clone();
    assert_eq!(begun.stdout(&remote).await, "out\n");
    marks.all_dead(SOON).await;
    let records = crate::marks::history_of(&farm, &name).await;
    assert_eq!(phases(&records), ["accepted", "hedged", "finished"], "{records:#?}");
    assert_eq!((before, marks.runs("it").len()), (40, 2));
}

#[tokio::test]
async fn an_action_that_is_measured_has_no_copies_and_no_cached_result() {
    let (farm, remote, marks, _machines) = with_machines(hedging("2", "200"), &["one", "two"]).await;
    let action = upload_asking(&remote, &marks.script("it"), &[("measured", "true")]).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    tokio::time::sleep(NOTHING_MORE).await;
    assert_eq!(marks.runs("it").len(), 1, "a copy would disturb it");
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "finished"], "{records:#?}");
    assert_eq!(acting::stdout(&remote, &acting::executed(&remote, action).await).await, "it\n");
    assert_eq!(marks.runs("it").len(), 2, "it ran again");
}
