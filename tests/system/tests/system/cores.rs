//! Slots that own physical cores.

use std::collections::BTreeSet;

use farm::{Builder, Farm, SOON};
use model::BlobDigest;
use reapi::execution::{Action, Platform, platform::Property};
use remote::Remote;

use crate::acting::{self, ACTING, SHA256};

/// Says on which processors it may run, and stays for a while.
const SCRIPT: &str = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status; sleep 1";

fn builder(slots: usize) -> Builder {
    Farm::builder()
        .only(&ACTING)
        .env("FOREBAY_SLOT_CORES", "own_with_siblings")
        .env("FOREBAY_EXECUTOR_SLOTS", slots.to_string())
}

async fn asking(remote: &Remote, number: usize) -> BlobDigest {
    let property = Property { name: "cores".to_owned(), value: "own".to_owned() };
    let action = Action { platform: Some(Platform { properties: vec![property] }), ..Action::default() };
    acting::upload_as(remote, &acting::sh(&format!("{SCRIPT} # {number}")), action, &SHA256.empty()).await
}

/// The numbers in a list such as `0-2,7`.
fn numbers(list: &str) -> BTreeSet<u16> {
    let range = |text: &str| {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        from.parse::<u16>().unwrap()..=to.parse::<u16>().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

#[tokio::test]
async fn actions_at_the_same_time_share_no_processor() {
    let processors = std::thread::available_parallelism().unwrap().get();
    if processors < 2 {
        return; // There is nothing to share.
    }
    let farm = builder(2).start().await;
    let remote = acting::remote(&farm).await;
    let both =
        [asking(&remote, 1).await, asking(&remote, 2).await].map(|action| acting::execute(&remote, action));
    let mut owned = Vec::new();
    for running in both {
        let response = running.await.unwrap().unwrap().response;
        owned.push(numbers(&acting::stdout(&remote, &response).await));
    }
    assert!(owned[0].is_disjoint(&owned[1]), "{owned:?}");
    assert!(owned.iter().all(|own| !own.is_empty()) && owned[0].len() == owned[1].len(), "{owned:?}");
}

#[tokio::test]
async fn more_slots_than_cores_are_refused_with_the_settings_that_help() {
    let farm = builder(1000).without("executor").start().await;
    let mut executor = farm.start_unready("executor", &[]);
    executor.wait_exit(SOON).await;
    let log = executor.log_text();
    assert!(log.contains("1000 slots cannot own cores") && log.contains("executor_slots"), "{log}");
    // Where slots share the cores, the property is not offered.
    let plain = Farm::builder().only(&ACTING).start().await;
    let remote = acting::remote(&plain).await;
    let action = asking(&remote, 1).await;
    let refused = remote.execute(&action, false, 0, |_, _| {}).await.unwrap_err().to_string();
    assert!(refused.contains("cores"), "{refused}");
}

#[tokio::test]
async fn a_command_cannot_leave_its_cores_if_the_machine_can_prevent_it() {
    let processors = std::thread::available_parallelism().unwrap().get();
    if processors < 2 {
        return; // There are no other cores.
    }
    let farm = builder(2).start().await;
    let report = farm.cli(&["doctor", "--measure", "--json"]).await;
    let findings: Vec<serde_json::Value> = serde_json::from_str(&report.stdout).unwrap();
    let binding = findings.iter().find(|finding| finding["check"] == "binding").unwrap();
    let remote = acting::remote(&farm).await;
    let allowed = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status";
    let script = format!("{allowed}; taskset -pc 0-{} $$ >/dev/null 2>&1; {allowed}", processors - 1);
    let property = Property { name: "cores".to_owned(), value: "own".to_owned() };
    let action = Action { platform: Some(Platform { properties: vec![property] }), ..Action::default() };
    let action = acting::upload_as(&remote, &acting::sh(&script), action, &SHA256.empty()).await;
    let response = acting::executed(&remote, action).await;
    let printed = acting::stdout(&remote, &response).await;
    let [before, after] = <[&str; 2]>::try_from(printed.lines().collect::<Vec<_>>()).unwrap().map(numbers);
    assert_eq!(before == after, binding["status"] == "ok", "{before:?} {after:?} {binding}");
}
