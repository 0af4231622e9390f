//! Pools that offer the same properties.

use std::collections::BTreeMap;

use farm::{Farm, SOON};
use model::{BlobDigest, Pool, Resources};
use reapi::execution::{Action, Platform, platform::Property};
use remote::Remote;

use crate::acting::{SHA256, begin, builder, ended, execute, executed, histories, remote, sh, upload_as};

/// Uploads a new action that requires `asked`.
async fn asking(remote: &Remote, asked: &[(&str, &str)]) -> BlobDigest {
    let property = |(name, value): &(&str, &str)| Property { name: (*name).into(), value: (*value).into() };
    let platform = Some(Platform { properties: asked.iter().map(property).collect() });
    let salt = model::BuildId::generate();
    let command = sh(&format!("echo {salt} > kept"));
    upload_as(remote, &command, Action { platform, ..Action::default() }, &SHA256.empty()).await
}

/// Runs a new action that requires `asked`; returns the pool of the executor that ran it.
async fn ran_in(farm: &Farm, remote: &Remote, asked: &[(&str, &str)]) -> String {
    let before = histories(farm).await;
    let action = asking(remote, asked).await;
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
async fn any_live_executor_runs_it_but_one_with_another_root_only_on_request() {
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

#[tokio::test]
async fn either_hardware_group_is_used_and_one_that_left_is_waited_for() {
    let farm = builder().without("executor").start().await;
    let remote = remote(&farm).await;
    let group = async |name: &str| {
        let properties = format!(r#"{{"hwgroup": ["{name}"]}}"#);
        let env = [("FOREBAY_POOL", name), ("FOREBAY_POOL_PROPERTIES", properties.as_str())];
        farm.spawn_with_env("executor", &env).await
    };
    let _b = group("b").await;
    assert_eq!(ran_in(&farm, &remote, &[("hwgroup", "a|b")]).await, "b", "no executor of a lives");
    let nowhere = asking(&remote, &[("hwgroup", "a")]).await;
    let refused = execute(&remote, nowhere).await.unwrap().unwrap_err().to_string();
    assert!(refused.contains(r#"hwgroup = "a"; available: b"#), "{refused}");
    let contradiction = asking(&remote, &[("hwgroup", "b"), ("Pool", "c")]).await;
    let refused = execute(&remote, contradiction).await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("Pool"), "{refused}");

    let mut a = group("a").await;
    assert_eq!(ran_in(&farm, &remote, &[("hwgroup", "a")]).await, "a");
    a.term();
    a.wait_exit(SOON).await;
    let departed = asking(&remote, &[("hwgroup", "a")]).await;
    let (_, stream) = begin(&remote, &departed).await;
    assert_eq!(ran_in(&farm, &remote, &[("hwgroup", "a|b")]).await, "b", "what waits delays nothing");
    let _a = group("a").await;
    let response = ended(stream).await;
    assert_eq!(response.result.map(|result| result.exit_code), Some(0));
}
