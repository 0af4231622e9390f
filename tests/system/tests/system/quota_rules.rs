//! Rules for quotas, and their reports.

use bus::QuotaOf;
use farm::{Farm, SOON};
use model::{
    BuildRecord, BuildRequest, ExecutorType, GovernorRecord, Outcome, Priority, Quota, ReasonCode, State,
};

use crate::{
    check::{ended, ended_as, script, why_when},
    quota::{decide, decided, esu, set_quota, x86},
};

#[tokio::test]
async fn why_and_quota_tell_what_throttles() {
    let farm = Farm::builder().workspaces(4).without("dispatcher").start().await;
    set_quota(&farm, "g", 5.0).await;
    decide(&farm, "g", 5.0).await;
    // It reads the decision before it starts a build; a running dispatcher would read it later.
    farm.keep(farm.spawn("dispatcher").await);
    let running = farm.submit("g", BuildRequest { occupancy: x86(4.0), ..script("sleep 60") }).await;
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    let first = farm.submit("g", BuildRequest { occupancy: x86(2.0), ..script("true") }).await;
    let second = farm.submit("g", BuildRequest { occupancy: x86(1.0), ..script("true") }).await;
    let why = why_when(&farm, &second, |why| why.waiting.is_some()).await;
    let waiting = why.waiting.as_ref().unwrap();
    assert_eq!((waiting.place, waiting.queued), (2, 2));
    let by = &waiting.throttled_by[0];
    assert_eq!((by.needed, by.target, by.in_progress), (esu(1.0), esu(5.0), esu(4.0)));
    assert_eq!((by.reserved, by.remaining), (esu(2.0), esu(-1.0)), "the cheaper one does not overtake");
    assert_eq!(waiting.in_progress[0].id, running.id);
    assert!(waiting.idle_workspaces > 0);

    let told = farm.cli(&["why", &second.id.to_string()]).await;
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.stdout.contains("throttled by") && told.stdout.contains("2 of 2"), "{}", told.stdout);
    let told = farm.cli(&["quota"]).await;
    assert!(told.stdout.contains("needs 2 ESU of x86"), "{}", told.stdout);
    let told = farm.cli(&["why", &running.id.to_string()]).await;
    assert!(told.stdout.contains("it is running in workspace"), "{}", told.stdout);

    // Without restart: the quota is removed, and both builds start.
    farm.bus().buckets().put::<Quota>(&QuotaOf::Group("g".parse().unwrap()), None).await.unwrap();
    ended_as(&farm, &first, Outcome::Succeeded).await;
    ended_as(&farm, &second, Outcome::Succeeded).await;
}

#[tokio::test]
async fn a_quota_takes_effect_without_restart() {
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "200")
        .only(&["enqueuer", "dispatcher", "governor"])
        .start()
        .await;
    let of = |record: &GovernorRecord| {
        let types = record.groups.get(&"g".parse().unwrap());
        types.and_then(|types| types.get(&ExecutorType::x86())).copied().unwrap_or_default()
    };
    for units in [1.0, 4.0, 2.5] {
        set_quota(&farm, "g", units).await;
        decided(&farm, |record| of(record).sp == esu(units)).await;
    }
}

#[tokio::test]
async fn nonsense_quotas_are_refused_and_change_nothing() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    for (bad, told) in [
        (&["quota", "set", "g", "x86=-1"][..], "at least 0 ESU"),
        (&["quota", "set", "g", "x86=NaN"][..], "invalid ESU amount"),
        (&["quota", "set", "g", "x86=lots"][..], "TYPE=ESU"),
        (&["quota", "set", "g", "vax=1"][..], "known types"),
        (&["quota", "set", "a b", "x86=1"][..], "group"),
    ] {
        let output = farm.cli(bad).await;
        assert_eq!(output.code, 2, "{bad:?}: {output:?}");
        assert!(output.stderr.contains(told), "{bad:?}: {}", output.stderr);
    }
    assert!(farm.bus().buckets().quotas().await.unwrap().is_empty());
    let file = farm.folder().join("quotas.yaml");
    std::fs::write(&file, "ci: {x86: 30, gpu: 2}\n'*': {x86: 1}\n").unwrap();
    let output = farm.cli(&["quota", "load", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let quotas = farm.bus().buckets().quotas().await.unwrap();
    assert_eq!(quotas.groups[&"ci".parse().unwrap()].esu.to_string(), "gpu 2, x86 30");
    assert_eq!(quotas.default.unwrap().esu, x86(1.0));
    std::fs::write(&file, "{ci: {x86: 30, gpu: 2}, \"*\": {x86: 1}}").unwrap();
    let output = farm.cli(&["quota", "load", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for (bad, told) in [
        ("", "contains no quota"),
        ("{}", "contains no quota"),
        ("ci: {x86: 1}\nci: {x86: 2}\n", "given twice"),
        ("{\"ci\": {\"x86\": 1}, \"ci\": {\"x86\": 2}}", "given twice"),
        ("a b: {x86: 1}", "invalid group"),
    ] {
        std::fs::write(&file, bad).unwrap();
        let output = farm.cli(&["quota", "load", file.to_str().unwrap()]).await;
        assert_eq!(output.code, 2, "{bad}: {output:?}");
        assert!(output.stderr.contains(told), "{bad}: {}", output.stderr);
    }
    let output = farm.cli(&["quota", "set", "--default", "x86=7"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(farm.bus().buckets().quotas().await.unwrap().default.unwrap().esu, x86(7.0));
    std::fs::write(&file, "ci: {x86: 30, gpu: -2}\nother: {x86: 1}\n").unwrap();
    let output = farm.cli(&["quota", "load", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert_eq!(farm.bus().buckets().quotas().await.unwrap().groups.len(), 1, "nothing was set");
}

#[tokio::test]
async fn quotas_that_add_up_to_more_than_the_farm_are_scaled_down() {
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "200")
        .env("FOREBAY_CAPACITY", r#"{"x86":10}"#)
        .only(&["enqueuer", "dispatcher", "governor"])
        .start()
        .await;
    let told = farm.cli(&["quota", "set", "a", "x86=30"]).await;
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.stderr.contains("total 30 ESU but the farm has 10"), "{}", told.stderr);
    assert_eq!(farm.cli(&["quota", "set", "b", "x86=10"]).await.code, 0);
    let of = |record: &GovernorRecord, group: &str| {
        let types = record.groups.get(&group.parse().unwrap());
        types.and_then(|types| types.get(&ExecutorType::x86())).copied().unwrap_or_default()
    };
    decided(&farm, |record| of(record, "a").quota == esu(7.5) && of(record, "b").quota == esu(2.5)).await;
}

#[tokio::test]
async fn a_quota_that_cannot_be_read_limits_nobody_else() {
    let farm = Farm::builder().without("gateway").start().await;
    let key = "$KV.FOREBAY_QUOTA.group.broken";
    farm.bus().jetstream().publish(key, "{\"esu\":{\"x86\":\"NaN\"}}".into()).await.unwrap().await.unwrap();
    let build = farm.submit("g", script("true")).await;
    ended_as(&farm, &build, Outcome::Succeeded).await;
}

#[tokio::test]
async fn a_group_without_quota_is_refused_where_the_settings_say_so() {
    let farm = Farm::builder().env("FOREBAY_GROUPS_WITHOUT_QUOTA", "refuse").without("gateway").start().await;
    set_quota(&farm, "known", 5.0).await;
    decide(&farm, "known", 5.0).await;
    let known = farm.submit("known", script("true")).await;
    ended_as(&farm, &known, Outcome::Succeeded).await;
    let began = std::time::Instant::now();
    let reason = loop {
        let unknown = farm.publish("unknown", Priority::Batch, &script("true")).await;
        let record = ended(&farm, &unknown).await;
        let result = record.result().unwrap();
        if result.outcome == Outcome::Rejected {
            break result.reason.clone().unwrap();
        }
        // The enqueuer reads quotas from time to time.
        assert!(began.elapsed() < SOON, "{record:#?}");
    };
    assert_eq!(reason.code, ReasonCode::InvalidRequest);
    assert!(reason.message.contains("group unknown has no quota"), "{}", reason.message);
    let refused = farm.cli(&["submit", "--group", "unknown", "--", "true"]).await;
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[tokio::test]
async fn times_are_set_by_priority_and_each_has_its_reason() {
    let farm = Farm::builder()
        .env("FOREBAY_PRIORITY_LIMITS", r#"{"batch":{"timeout_seconds":1,"queue_timeout_seconds":1}}"#)
        .without("gateway")
        .without("worker")
        .start()
        .await;
    let ended_by = |record: BuildRecord| record.result().unwrap().reason.clone().unwrap().code;
    let waits = farm.create("g", Priority::Batch, &["true"]).await;
    assert_eq!(ended_by(ended_as(&farm, &waits, Outcome::Expired).await), ReasonCode::QueuedTooLong);
    let other = farm.create("g", Priority::Automated, &["sleep", "2"]).await;
    farm.keep(farm.spawn("worker").await);
    ended_as(&farm, &other, Outcome::Succeeded).await;
    let runs = farm.create("g", Priority::Batch, &["sleep", "60"]).await;
    assert_eq!(ended_by(ended_as(&farm, &runs, Outcome::TimedOut).await), ReasonCode::RunningTooLong);
    // A build may set its own limit; and the time that it may run without its worker.
    let own = BuildRequest {
        priority: Some(Priority::Batch),
        timeout_seconds: Some(5),
        lease_ttl_seconds: Some(1),
        max_attempts: Some(1),
        ..script("sleep 4")
    };
    let key = farm.submit("g", own).await;
    let (_, running) = farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    assert_eq!(running.build.lease_ttl_seconds, 1);
    let worker = farm.take("worker");
    drop(worker);
    assert_eq!(ended_by(ended_as(&farm, &key, Outcome::Lost).await), ReasonCode::LeaseExpired);
}
