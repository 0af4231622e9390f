//! Images that an executor has, or has to fetch first.

use std::{collections::BTreeSet, time::Duration};

use farm::{Builder, Farm, SOON};
use model::{ExecutorHeartbeat, ImageReference};
use reapi::execution::ExecuteResponse;
use remote::{Executed, RemoteError};
use tokio::task::JoinHandle;

use crate::{
    acting,
    check::until,
    images::{
        PROGRAMS, asking, asking_with, builder, config,
        registry::{Fault, Registry, files, programs},
        said,
    },
};

/// A farm that reads from both registries, with an executor of few slots.
fn of_both(one: &Registry, other: &Registry, slots: &str) -> Builder {
    let all = serde_json::json!({ one.host(): { "plain_http": true }, other.host(): { "plain_http": true } });
    builder(one).env("FOREBAY_REGISTRIES", all.to_string()).env("FOREBAY_EXECUTOR_SLOTS", slots)
}

async fn executors(farm: &Farm) -> Vec<ExecutorHeartbeat> {
    farm.bus().leases().executors().await.unwrap()
}

/// Waits until it is so of the leases of the executors.
async fn until_executors(farm: &Farm, what: &str, is_so: impl Fn(&[ExecutorHeartbeat]) -> bool) {
    let begun = tokio::time::Instant::now();
    while !is_so(&executors(farm).await) {
        assert!(begun.elapsed() < SOON, "{what}: {:#?}", executors(farm).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn finished(running: JoinHandle<Result<Executed, RemoteError>>) -> ExecuteResponse {
    tokio::time::timeout(2 * SOON, running).await.expect("it ends").unwrap().unwrap().response
}

#[tokio::test]
async fn a_registry_that_hangs_holds_no_slot_and_its_actions_run_when_it_answers() {
    let (hangs, answers) = (Registry::start().await, Registry::start().await);
    let base = programs(&PROGRAMS);
    hangs.push("tools:1", &[base.clone(), files(&[("etc/version", "late")])], &config());
    answers.push("tools:1", &[base, files(&[("etc/version", "soon")])], &config());
    let farm = of_both(&hangs, &answers, "2").start().await;
    let remote = acting::remote(&farm).await;
    hangs.fail("/blobs/", Fault::HeldUntilMended);
    let mut waiting = Vec::new();
    for number in 0..7 {
        let script = format!("cat /etc/version; echo {number}");
        let action = asking(&remote, &hangs.image("tools:1"), &script).await;
        waiting.push((number, acting::execute(&remote, action)));
    }
    until("it fetches", SOON, || hangs.blobs_read() > 0).await;
    // More wait than the executor has slots: those that need nothing of that registry run at once.
    for number in 0..3 {
        let plain = acting::upload(&remote, &format!("echo plain {number}")).await;
        let ended = tokio::time::timeout(SOON, acting::executed(&remote, plain)).await;
        assert_eq!(acting::stdout(&remote, &ended.expect("it runs")).await, format!("plain {number}\n"));
    }
    assert_eq!(said(&remote, &answers.image("tools:1"), "cat /etc/version").await, "soon");
    assert!(waiting.iter().all(|(_, running)| !running.is_finished()));
    hangs.mend();
    for (number, running) in waiting {
        let response = finished(running).await;
        assert_eq!(acting::stdout(&remote, &response).await, format!("late{number}\n"));
    }
}

#[tokio::test]
async fn an_executor_that_stops_returns_what_waits_for_a_registry() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS)], &config());
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    registry.fail("/blobs/", Fault::HeldUntilMended);
    let action = asking(&remote, &registry.image("tools:1"), "echo fine").await;
    let running = acting::execute(&remote, action);
    until("it is fetched", SOON, || registry.blobs_read() > 0).await;
    let mut executor = farm.take("executor");
    executor.term();
    executor.wait_exit(SOON).await;
    registry.mend();
    farm.keep(farm.spawn("executor").await);
    let response = finished(running).await;
    assert_eq!(acting::stdout(&remote, &response).await, "fine\n");
}

#[tokio::test]
async fn executors_say_which_images_they_have_and_get_the_actions_in_them() {
    let registry = Registry::start().await;
    let base = programs(&PROGRAMS);
    let mut environments = serde_json::Map::new();
    for number in 0..6 {
        let name = format!("tools{number}");
        registry.push(&format!("{name}:1"), &[base.clone(), files(&[("a", &name)])], &config());
        environments.insert(name.clone(), registry.image(&format!("{name}:1")).into());
    }
    let environments = serde_json::Value::Object(environments).to_string();
    let farm = builder(&registry).env("FOREBAY_ENVIRONMENTS", &environments).start().await;
    let ahead = [("FOREBAY_PREFETCH_IMAGES", "true")];
    let has_all = farm.spawn_with_env("executor", &ahead).await;
    let pid = has_all.pid();
    farm.keep(has_all);
    until_executors(&farm, "it says that it has all of them", |all| {
        all.iter().any(|it| it.pid == pid && it.images.len() == 6 && it.image_names.len() == 6)
    })
    .await;
    let all = executors(&farm).await;
    let that = all.iter().find(|it| it.pid == pid).unwrap();
    assert!(all.iter().any(|it| it.pid != pid && it.images.is_empty()));
    let repositories: BTreeSet<&str> = that.image_names.iter().map(ImageReference::repository).collect();
    assert_eq!(repositories.len(), 6);
    let text = farm.cli(&["executors"]).await.stdout;
    assert!(text.contains(&format!("images of {}: {}/tools", that.executor, registry.host())), "{text}");
    let remote = acting::remote(&farm).await;
    for number in 0..6 {
        let environment = format!("tools{number}");
        let action = asking_with(&remote, &[("env", &environment)], "cat /a").await;
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, environment);
        let metadata = response.result.unwrap().execution_metadata.unwrap();
        assert_eq!(metadata.worker, that.executor.as_str(), "the other one would fetch it");
    }
}
