//! Pools that offer the same properties.

use std::collections::BTreeMap;

use farm::{Farm, SOON};
use model::{Pool, Resources};
use reapi::execution::{Action, Platform, platform::Property};
use remote::Remote;

use crate::acting::{SHA256, builder, executed, histories, remote, sh, upload_as};

/// Runs a new action that requires `asked`; returns the pool of the executor that ran it.
async fn ran_in(farm: &Farm, remote: &Remote, asked: &[(&str, &str)]) -> String {
    let before = histories(farm).await;
    let property = |(name, value): &(&str, &str)| Property { name: (*name).into(), value: (*value).into() };
    let platform = Some(Platform { properties: asked.iter().map(property).collect() });
    let salt = model::BuildId::generate();
    let command = sh(&format!("echo {salt} > kept"));
    let action = Action { platform, ..Action::default() };
    let action = upload_as(remote, &command, action, &SHA256.empty()).await;
    let response = executed(remote, action).await;
    assert_eq!(response.result.as_ref().map(|result| result.exit_code), Some(0), "{response:#?}");
    let after = histories(farm).await;
    let new = after.into_iter().find(|(key, _)| !before.contains_key(key)).unwrap();
    let last = new.1.last().unwrap();
    let ran = last.outcome().and_then(|outcome| outcome.executor.clone()).unwrap();
    let live = farm.bus().leases().executors().await.unwrap();
    live.iter().find(|it| it.executor == ran).unwrap().pool.to_string()
}

#[tokio::test]
async fn whatever_executor_lives_runs_it_but_one_with_another_root_only_when_asked_for() {
    let farm = builder().without("executor").start().await;
    let linux = BTreeMap::from([("OSFamily".to_owned(), vec!["linux".to_owned()])]);
    // First by name, and known permanently.
    let rooted = Pool {
        name: "buildstream".parse().unwrap(),
        properties: linux,
        root_is_input: true,
        capacity: Resources::default(),
        executor_type: model::ExecutorType::x86(),
    };
    farm.bus().buckets().announce_pool(&rooted).await.unwrap();
    let remote = remote(&farm).await;
    let mut usual = farm.spawn("executor").await;
    let asked = [("OSFamily", "linux")];
    assert_eq!(ran_in(&farm, &remote, &asked).await, "default");
    let _another = farm.spawn_with_env("executor", &[("FOREBAY_POOL", "another")]).await;
    assert_eq!(ran_in(&farm, &remote, &[]).await, "default", "it is preferred while it has room");
    assert_eq!(ran_in(&farm, &remote, &[("Pool", "another")]).await, "another");
    usual.term();
    usual.wait_exit(SOON).await;
    assert_eq!(ran_in(&farm, &remote, &asked).await, "another");
    assert_eq!(ran_in(&farm, &remote, &[]).await, "another");
    let _usual = farm.spawn("executor").await;
    assert_eq!(ran_in(&farm, &remote, &[]).await, "default");
}

#[tokio::test]
async fn an_instance_name_can_stand_for_a_pool() {
    let farm = builder().env("FOREBAY_INSTANCES", "=default bst=default;pool=another").start().await;
    let _another = farm.spawn_with_env("executor", &[("FOREBAY_POOL", "another")]).await;
    let remote = remote(&farm).await;
    assert_eq!(ran_in(&farm, &remote, &[]).await, "default");
    let named = remote.with_instance("bst");
    assert_eq!(ran_in(&farm, &named, &[("OSFamily", "linux")]).await, "another");
    assert_eq!(
        ran_in(&farm, &named, &[("Pool", "default")]).await,
        "default",
        "the requested pool takes precedence"
    );
}
