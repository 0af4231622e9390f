//! A disk that is full for a moment: acknowledged builds still end, and `doctor` reports the truth.

use std::{fs, time::Duration};

use bus::EventKind;
use client::{Client, WatchBody, WatchEvent};
use farm::{Farm, Guard, SmallDisk, Up};
use model::{BuildId, BuildKey, BuildRecord, BuildRequest, Outcome, ReasonCode, State};

use crate::check::script;

/// A wide margin for operations that take seconds.
const BOUND: Duration = Duration::from_secs(90);
/// Builds that ran while the bus accepted no writes count as lost after this time.
const LEASE: (&str, &str) = ("FOREBAY_LEASE_TTL_SECONDS", "3");

async fn submit(client: &Client, request: BuildRequest) -> BuildKey {
    let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
    let request = BuildRequest { id: Some(key.id), ..request };
    client.create(&key.group, &request, None).await.unwrap();
    key
}

async fn record(client: &Client, key: &BuildKey) -> Option<BuildRecord> {
    Some(client.bus().records().latest(key).await.ok()??.1)
}

async fn ended(client: &Client, key: &BuildKey) -> BuildRecord {
    let deadline = std::time::Instant::now() + BOUND;
    loop {
        match record(client, key).await {
            Some(record) if record.state() == State::Finished => return record,
            last => assert!(std::time::Instant::now() < deadline, "{key} has not ended: {last:#?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn doctor(up: &Up) -> String {
    up.cli(&["doctor"]).await.stdout
}

/// Waits until `doctor` reports no problems.
async fn is_well(up: &Up) {
    let deadline = std::time::Instant::now() + BOUND;
    loop {
        let said = doctor(up).await;
        if !said.contains("FAIL") && said.contains("ok    writes") && said.contains("ok    disk") {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{said}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_build_that_fills_the_disk_is_ended_and_disturbs_nobody() {
    let Some(disk) = SmallDisk::mount(160) else { return };
    let fills = "while :; do head -c 2000000 /dev/zero >> fill; sleep 0.01; done";
    ends_who_fills(&disk, "40", fills).await;
}

#[tokio::test]
async fn a_build_that_uses_up_the_inodes_is_ended_and_disturbs_nobody() {
    let Some(disk) = SmallDisk::mount_for_files(400, 20_000) else { return };
    let fills = "i=0; while :; do seq $i $((i + 99)) | xargs touch; i=$((i + 100)); sleep 0.01; done";
    ends_who_fills(&disk, "20", fills).await;
}

#[tokio::test]
async fn a_build_that_fills_the_disk_by_a_file_without_a_name_is_ended_and_disturbs_nobody() {
    let Some(disk) = SmallDisk::mount(160) else { return };
    let fills = "exec 3> fill; rm fill; while :; do head -c 2000000 /dev/zero >&3; sleep 0.01; done";
    ends_who_fills(&disk, "40", fills).await;
}

/// Runs `fills` three times next to other builds.
async fn ends_who_fills(disk: &SmallDisk, left_percent: &str, fills: &str) {
    let guard = Guard::start(disk.path());
    let env = [("FOREBAY_DISK_LEFT_PERCENT", left_percent), LEASE];
    let mut up = Up::start(disk.path(), &guard, &["--workspaces", "3", "--executors", "0"], &env).await;
    let client = up.client().await;
    let server = up.children()["nats-server"];
    for _ in 0..3 {
        let bystander = submit(&client, script("sleep 1; echo done")).await;
        let careless = submit(&client, script(fills)).await;
        let next = submit(&client, script("echo next")).await;
        let result = ended(&client, &careless).await;
        let reason = result.result().unwrap().reason.clone().unwrap();
        assert_eq!((result.result().unwrap().outcome, result.attempt.0), (Outcome::Failed, 1), "{result:#?}");
        assert!(
            reason.code == ReasonCode::DiskFull && reason.message.contains("disk_left_percent"),
            "{reason:?}"
        );
        let result = result.result().unwrap();
        assert!(result.wall_seconds > 0.0 && result.peak_memory_bytes > 0, "its use: {result:#?}");
        for key in [bystander, next] {
            let record = ended(&client, &key).await;
            assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        }
    }
    is_well(&up).await;
    assert_eq!(up.children()["nats-server"], server, "nats-server met a full disk");
}

#[tokio::test]
async fn output_waits_for_room_in_the_store() {
    let Some(disk) = SmallDisk::mount(20) else { return };
    let farm = Farm::builder().only(&[]).start().await;
    let store = disk.path().join("cas");
    fs::create_dir(&store).unwrap();
    fs::create_dir_all(farm.data()).unwrap();
    std::os::unix::fs::symlink(&store, farm.data().join("cas")).unwrap();
    for service in ["enqueuer", "dispatcher", "reaper", "worker"] {
        farm.keep(farm.spawn(service).await);
    }
    let fill = disk.fill();
    let request = BuildRequest { outputs: vec!["out".to_owned()], ..script("echo kept > out") };
    let key = farm.submit("g", request).await;
    let waits = |event: &WatchEvent| match &event.body {
        WatchBody::Console(chunk) => {
            String::from_utf8_lossy(&chunk.data).contains("waiting for space in the store")
        }
        WatchBody::Lifecycle(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => false,
    };
    farm.wait_event(&key, BOUND, &[EventKind::Console], waits).await;
    fs::remove_file(fill).unwrap();
    let record = farm.wait_finished(&key, BOUND).await;
    let result = record.result().unwrap();
    assert_eq!(
        (result.outcome, result.outputs.len(), record.attempt.0),
        (Outcome::Succeeded, 1, 1),
        "{record:#?}"
    );
}

#[tokio::test]
async fn builds_end_though_the_disk_of_the_bus_was_full() {
    let Some(disk) = SmallDisk::mount(100) else { return };
    let guard = Guard::start(disk.path());
    let mut up = Up::start(disk.path(), &guard, &["--workspaces", "2", "--executors", "0"], &[LEASE]).await;
    let client = up.client().await;
    is_well(&up).await;
    for round in 0..3 {
        let mut keys = Vec::new();
        for number in 0..5 {
            keys.push(submit(&client, script(&format!("sleep 1; echo {round} {number}"))).await);
        }
        while record(&client, &keys[0]).await.is_none_or(|it| it.state() == State::Enqueued) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let fill = disk.fill();
        let deadline = std::time::Instant::now() + BOUND;
        loop {
            let said = doctor(&up).await;
            if said.contains("FAIL  writes") {
                assert!(
                    said.contains("FAIL  disk") && said.contains("restart nats-server forebay-"),
                    "{said}"
                );
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{said}");
        }
        fs::remove_file(fill).unwrap();
        for key in &keys {
            let record = ended(&client, key).await;
            assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        }
        is_well(&up).await;
    }
}
