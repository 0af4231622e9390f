//! Builds that require properties of their worker.

use std::time::Duration;

use farm::{Builder, Farm, SOON, ServiceProcess};
use model::{
    BuildKey, BuildRequest, BuildRequirements, ErrorCode, ExecutorType, Occupancy, Outcome, State, WhyReply,
    WorkerId, WorkerProperties,
};
use policy::can_run;

use crate::{
    check::{ended_as, script, why_when},
    marks::Marks,
    quota::{decide, esu, set_quota, x86},
};

fn requires(properties: &[(&str, &str)]) -> BuildRequirements {
    BuildRequirements(properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
}

/// Starts a worker of a hardware group with this number of workspaces.
async fn worker(farm: &Farm, group: &str, workspaces: u16) -> ServiceProcess {
    let (properties, workspaces) = (format!(r#"{{"hwgroup": ["{group}"]}}"#), workspaces.to_string());
    let env = [("FOREBAY_WORKER_PROPERTIES", properties.as_str()), ("FOREBAY_WORKSPACES", &workspaces)];
    farm.spawn_with_env("worker", &env).await
}

fn builder() -> Builder {
    Farm::builder().without("worker")
}

async fn submit(farm: &Farm, text: &str, required: &[(&str, &str)]) -> BuildKey {
    farm.submit("g", BuildRequest { requirements: requires(required), ..script(text) }).await
}

async fn offers(farm: &Farm, worker: &WorkerId) -> WorkerProperties {
    let views = farm.client().workers().await.unwrap();
    views.into_iter().find(|view| view.heartbeat.worker == *worker).unwrap().heartbeat.properties
}

/// Waits for the success of the build; returns the hardware group of its worker.
async fn ran_in(farm: &Farm, key: &BuildKey) -> String {
    let record = ended_as(farm, key, Outcome::Succeeded).await;
    let worker = record.invocation().unwrap().worker.clone();
    offers(farm, &worker).await.values("hwgroup").next().unwrap_or("none").to_owned()
}

async fn waits_because(farm: &Farm, key: &BuildKey, expected: &str) -> WhyReply {
    why_when(farm, key, |why| why.reason == expected).await
}

async fn runs(farm: &Farm, key: &BuildKey) {
    farm.wait_until(key, SOON, |record| record.state() == State::InProgress).await;
}

#[tokio::test]
async fn a_build_runs_where_its_requirements_are_met_and_what_waits_delays_nothing() {
    let farm = builder().start().await;
    let marks = Marks::of(&farm);
    let (_a, _b) = (worker(&farm, "a", 1).await, worker(&farm, "b", 1).await);
    let first = submit(&farm, &marks.script("first"), &[("hwgroup", "b")]).await;
    runs(&farm, &first).await;
    let second = submit(&farm, "true", &[("hwgroup", "b")]).await;
    // They pass the one that waits for b.
    let either = submit(&farm, "true", &[("hwgroup", "b|a")]).await;
    assert_eq!(ran_in(&farm, &either).await, "a");
    let any = submit(&farm, "true", &[]).await;
    assert_eq!(ran_in(&farm, &any).await, "a");
    let why = "of the workers that offer hwgroup = \"b\": no workspace is idle";
    let why = waits_because(&farm, &second, why).await;
    let waiting = why.waiting.unwrap();
    assert_eq!((waiting.idle_workspaces, waiting.workspaces), (0, 1));
    marks.go("first");
    assert_eq!(ran_in(&farm, &first).await, "b");
    assert_eq!(ran_in(&farm, &second).await, "b");
}

#[tokio::test]
async fn what_only_a_worker_that_left_could_run_waits_for_one() {
    let farm = builder().start().await;
    let _a = worker(&farm, "a", 1).await;
    let mut b = worker(&farm, "b", 1).await;
    b.term();
    b.wait_exit(SOON).await;
    let departed = submit(&farm, "true", &[("hwgroup", "b")]).await;
    assert_eq!(ran_in(&farm, &submit(&farm, "true", &[]).await).await, "a", "it delays nothing");
    waits_because(&farm, &departed, "no live worker offers hwgroup = \"b\"; it waits for one").await;
    farm.servers.flush_redis();
    let _b = worker(&farm, "b", 1).await;
    assert_eq!(ran_in(&farm, &departed).await, "b");
}

#[tokio::test]
async fn what_no_worker_ever_offered_is_refused_with_what_is_on_offer() {
    let farm = builder().start().await;
    // Without a known worker, nothing is known about what the farm can run.
    let early = submit(&farm, "true", &[("hwgroup", "a")]).await;
    let _a = worker(&farm, "a", 1).await;
    assert_eq!(ran_in(&farm, &early).await, "a");
    let request =
        |required: &[(&str, &str)]| BuildRequest { requirements: requires(required), ..script("true") };
    let mut refusals = farm.bus().client().subscribe("forebay.build.rejected.g").await.unwrap();
    for (required, why) in [
        (("hwgroup", "b"), "requirements: no worker has offered hwgroup = \"b\"; offered: a"),
        (("gpu", "1"), "requirements: no worker has offered the property gpu; known properties: "),
    ] {
        let group = "g".parse().unwrap();
        let error = farm.client().create(&group, &request(&[required]), None).await.unwrap_err();
        assert!(error.to_string().contains(why) && error.to_string().contains("hwgroup"), "{error}");
        let published = farm.publish("g", model::Priority::Batch, &request(&[required])).await;
        let refused = futures::StreamExt::next(&mut refusals).await.unwrap();
        let refused: serde_json::Value = serde_json::from_slice(&refused.payload).unwrap();
        assert!(refused.to_string().contains(&why.replace('"', "\\\"")), "{refused}");
        ended_as(&farm, &published, Outcome::Rejected).await;
    }
    let bad = request(&[("", "x")]);
    let error = farm.client().create(&"g".parse().unwrap(), &bad, None).await.unwrap_err();
    assert!(
        matches!(&error, client::ClientError::Api(api) if api.error == ErrorCode::InvalidRequest),
        "{error}"
    );
    // A worker of another kind may start at any time.
    let _b = worker(&farm, "b", 1).await;
    assert_eq!(ran_in(&farm, &submit(&farm, "true", &[("hwgroup", "b")]).await).await, "b");
}

#[tokio::test]
async fn a_build_that_waits_for_a_busy_worker_keeps_its_part_of_the_quota() {
    let farm = builder().without("dispatcher").start().await;
    set_quota(&farm, "g", 2.0).await;
    decide(&farm, "g", 2.0).await;
    // It reads the decision before it starts a build; a running dispatcher would read it later.
    farm.keep(farm.spawn("dispatcher").await);
    let marks = Marks::of(&farm);
    let (_a, _b) = (worker(&farm, "a", 4).await, worker(&farm, "b", 1).await);
    let of_one = async |text: &str, required: &[(&str, &str)]| {
        let request = BuildRequest { requirements: requires(required), occupancy: x86(1.0), ..script(text) };
        farm.submit("g", request).await
    };
    let first = of_one(&marks.script("first"), &[("hwgroup", "b")]).await;
    runs(&farm, &first).await;
    let second = of_one(&marks.script("second"), &[("hwgroup", "b")]).await;
    let third = of_one("true", &[]).await;
    let blocked = "it needs 1 ESU of x86: the target is 2, with 1 in progress and 1 reserved by builds ahead";
    waits_because(&farm, &third, blocked).await;
    marks.go("first");
    runs(&farm, &second).await;
    ended_as(&farm, &third, Outcome::Succeeded).await;
    marks.go("second");
    ended_as(&farm, &second, Outcome::Succeeded).await;
}

#[tokio::test]
async fn two_dispatchers_give_each_of_many_builds_a_worker_that_can_run_it() {
    let farm = builder().start().await;
    let _second = farm.spawn("dispatcher").await;
    let groups = ["a", "b", "c"];
    let mut workers = Vec::new();
    for group in groups {
        workers.push(worker(&farm, group, 2).await);
    }
    let mut sent = Vec::new();
    for number in 0..90 {
        let (one, two) = (groups[number % 3], groups[(number / 3) % 3]);
        let required = requires(&[("hwgroup", &format!("{one}|{two}"))]);
        let request = BuildRequest { requirements: required.clone(), ..script("sleep 0.02") };
        let priority = model::Priority::ALL[number % 4];
        let group = format!("g{}", number % 2);
        let request = BuildRequest { priority: Some(priority), ..request };
        sent.push((farm.submit(&group, request).await, required));
        if number == 45 {
            farm.servers.flush_redis();
        }
    }
    for (key, required) in sent {
        let record = farm.wait_finished(&key, Duration::from_secs(30)).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded);
        let offers = offers(&farm, &record.invocation().unwrap().worker).await;
        assert!(can_run(&offers, &required), "{required} ran on {offers:?}");
    }
}

#[tokio::test]
async fn many_builds_that_wait_for_a_worker_delay_none_behind_them() {
    let farm = builder().env("FOREBAY_EMERGENCY_WORKSPACES", "1").start().await;
    let _a = worker(&farm, "a", 2).await;
    let mut b = worker(&farm, "b", 1).await;
    b.term();
    b.wait_exit(SOON).await;
    let of_priority = async |priority: model::Priority, required: &[(&str, &str)]| {
        let request = BuildRequest { requirements: requires(required), ..script("true") };
        farm.submit("g", BuildRequest { priority: Some(priority), ..request }).await
    };
    let mut waiting = Vec::new();
    for priority in [model::Priority::Emergency, model::Priority::Batch] {
        // More than a page of the queue.
        for _ in 0..100 {
            waiting.push(of_priority(priority, &[("hwgroup", "b")]).await);
        }
    }
    for required in [&[][..], &[("hwgroup", "a|c")]] {
        let batch = of_priority(model::Priority::Batch, required).await;
        assert_eq!(ran_in(&farm, &batch).await, "a");
        let emergency = of_priority(model::Priority::Emergency, required).await;
        assert_eq!(ran_in(&farm, &emergency).await, "a");
    }
    let _b = worker(&farm, "b", 1).await;
    for key in &waiting {
        farm.wait_finished(key, Duration::from_secs(30)).await;
    }
}

#[tokio::test]
async fn builds_without_quota_take_no_workspace_and_hide_no_requirements() {
    let farm = builder().start().await;
    for group in ["g", "h"] {
        set_quota(&farm, group, 100.0).await;
    }
    let _a = worker(&farm, "a", 2).await;
    let mut b = worker(&farm, "b", 1).await;
    b.term();
    b.wait_exit(SOON).await;
    let without_quota = Occupancy::of_each(["gpu".parse().unwrap(), ExecutorType::x86()], esu(1.0));
    let submit = async |group: &str, occupancy: &Occupancy, required: &[(&str, &str)]| {
        let request = BuildRequest { requirements: requires(required), ..script("true") };
        farm.submit(group, BuildRequest { occupancy: occupancy.clone(), ..request }).await
    };
    // The first page of a queue has 8 builds: none of them has requirements.
    for _ in 0..10 {
        submit("h", &without_quota, &[]).await;
    }
    for _ in 0..5 {
        submit("h", &x86(1.0), &[("hwgroup", "b")]).await;
    }
    let behind = submit("h", &x86(1.0), &[]).await;
    assert_eq!(ran_in(&farm, &behind).await, "a");
    // Requirements on the first page, and builds that wait for a quota.
    submit("g", &x86(1.0), &[("hwgroup", "b")]).await;
    for _ in 0..10 {
        submit("g", &without_quota, &[]).await;
    }
    let behind = submit("g", &x86(1.0), &[]).await;
    assert_eq!(ran_in(&farm, &behind).await, "a");
}
