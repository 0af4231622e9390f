//! Builds that want more than their workspace may use, and workers that cannot run builds.

use std::{fs, time::Duration};

use farm::{Builder, Farm, SOON};
use model::{BuildLimits, BuildRequest, Outcome, ReasonCode, State, WorkerId, WorkerStatus};

use crate::check::{ended_as, script};

/// Allocates and uses 400 MB.
const HOG: &str = "python3 -c 'b = bytearray(400 << 20); b[::4096] = bytes(len(b[::4096])); print(len(b))'";
const BOMB: &str = "i=0; while [ $i -lt 3000 ]; do sleep 60 & i=$((i+1)); done; wait; echo all";

fn builder(sandbox: &str) -> Builder {
    Farm::builder()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_BUILD_SANDBOX", sandbox)
        .env("FOREBAY_WORKSPACE_MEMORY_BYTES", "150000000")
        .env("FOREBAY_WORKSPACE_PROCESSES_MAX", "100")
}

#[tokio::test]
async fn a_build_that_wants_too_much_ends_with_the_reason_and_the_next_one_runs() {
    for sandbox in ["none", "bubblewrap"] {
        let farm = builder(sandbox).start().await;
        for (command, expected) in [
            (HOG, ReasonCode::OutOfMemory),
            (BOMB, ReasonCode::TooManyProcesses),
            (HOG, ReasonCode::OutOfMemory),
        ] {
            let key = farm.submit("g", script(command)).await;
            let record = ended_as(&farm, &key, Outcome::Failed).await;
            let reason = record.result().unwrap().reason.clone().unwrap();
            assert_eq!(reason.code, expected, "{sandbox}: {reason:?}");
            assert!(reason.message.contains("workspace_"), "it names the setting: {reason:?}");
            let small = "for i in 1 2 3 4 5 6 7 8; do sleep 0.1 & done; wait; python3 -c 'print(len(bytearray(50 << 20)))'";
            let next = farm.submit("g", script(small)).await;
            ended_as(&farm, &next, Outcome::Succeeded).await;
        }
        // A build that fails for another reason says so.
        let key = farm.submit("g", script("exit 3")).await;
        let record = ended_as(&farm, &key, Outcome::Failed).await;
        assert_eq!(record.result().unwrap().reason.as_ref().unwrap().code, ReasonCode::CommandFailed);
    }
}

async fn status(farm: &Farm, worker: &WorkerId) -> (WorkerStatus, Option<String>) {
    let workers = farm.client().workers().await.unwrap();
    let found = workers.into_iter().find(|it| it.heartbeat.worker == *worker).unwrap();
    (found.heartbeat.status, found.heartbeat.short)
}

async fn status_is(farm: &Farm, worker: &WorkerId, wanted: WorkerStatus) -> Option<String> {
    let looks = async {
        loop {
            let (found, why) = status(farm, worker).await;
            if found == wanted {
                return why;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, looks).await.unwrap_or_else(|_| panic!("the worker is not {wanted:?}"))
}

/// The worker of a farm, when its first heartbeat has come.
async fn first_worker(farm: &Farm) -> WorkerId {
    let first = async {
        loop {
            if let Some(view) = farm.client().workers().await.unwrap().into_iter().next() {
                return view.heartbeat.worker;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, first).await.expect("a worker")
}

#[tokio::test]
async fn a_worker_that_cannot_run_builds_gives_them_back_and_closes_until_it_can() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let worker = first_worker(&farm).await;
    // No folder can be made there.
    let folder = farm.data().join("workspaces").join(worker.as_str());
    let away = folder.with_extension("away");
    fs::rename(&folder, &away).unwrap();
    let mut keys = Vec::new();
    for _ in 0..3 {
        keys.push(farm.submit("g", BuildRequest { max_attempts: Some(9), ..script("true") }).await);
    }
    let why = status_is(&farm, &worker, WorkerStatus::Full).await.unwrap();
    assert!(why.contains("given back") && why.contains("creating the workspace failed"), "{why}");
    let listed = farm.cli(&["workers"]).await;
    assert!(listed.stdout.contains("creating the workspace failed"), "{listed:?}");
    // Another worker runs it.
    farm.keep(farm.spawn("worker").await);
    let mut attempts = Vec::new();
    for key in &keys {
        let record = ended_as(&farm, key, Outcome::Succeeded).await;
        assert_ne!(record.invocation().unwrap().worker, worker);
        attempts.push(record.attempt.0);
    }
    // The worker closed after the first fault, so at most one attempt of each build failed on it.
    assert!((4..=6).contains(&attempts.iter().sum::<u32>()), "{attempts:?}");
    fs::rename(&away, &folder).unwrap();
    status_is(&farm, &worker, WorkerStatus::Ready).await;
}

#[tokio::test]
async fn a_fault_that_soon_passes_costs_no_build_although_there_is_no_other_worker() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let folder = farm.data().join("workspaces").join(first_worker(&farm).await.as_str());
    let away = folder.with_extension("away");
    fs::rename(&folder, &away).unwrap();
    let key = farm.submit("g", script("true")).await;
    farm.wait_until(&key, SOON, |record| record.attempt.0 == 2).await;
    fs::rename(&away, &folder).unwrap();
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert!(record.attempt.0 <= 3, "{record:?}");
}

#[tokio::test]
async fn a_build_that_a_worker_gave_back_waits_for_another_one() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let gate = farm.folder().join("gate");
    let first =
        farm.submit("g", script(&format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display()))).await;
    farm.wait_until(&first, SOON, |record| record.state() == State::InProgress).await;
    let sound = farm.client().workers().await.unwrap()[0].heartbeat.worker.clone();
    farm.keep(farm.spawn("worker").await);
    let broken = async {
        loop {
            let workers = farm.client().workers().await.unwrap();
            if let Some(view) = workers.into_iter().find(|it| it.heartbeat.worker != sound) {
                return view.heartbeat.worker;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let broken = tokio::time::timeout(SOON, broken).await.expect("the second worker");
    let folder = farm.data().join("workspaces").join(broken.as_str());
    fs::rename(&folder, folder.with_extension("away")).unwrap();
    // Its second attempt is its last one: on the same worker it would be lost.
    let key = farm.submit("g", BuildRequest { max_attempts: Some(2), ..script("true") }).await;
    farm.wait_until(&key, SOON, |record| record.attempt.0 == 2 && record.state() == State::Enqueued).await;
    fs::write(&gate, "").unwrap();
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.invocation().unwrap().worker, sound);
}

#[tokio::test]
async fn a_build_ends_with_the_reason_of_the_limit_that_it_asked_for() {
    let farm = Farm::builder()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_BUILD_LIMITS", r#"{"*": {"memory_bytes": 400000000, "output_bytes": 1000000}}"#)
        .start()
        .await;
    let limits = |field: &str, value: u64| -> BuildLimits {
        serde_json::from_value(serde_json::json!({ field: value })).unwrap()
    };
    let fills = "while :; do head -c 1000000 /dev/zero >> fill; sleep 0.02; done";
    for (command, asked, expected) in [
        (HOG, limits("memory_bytes", 100_000_000), ReasonCode::OutOfMemory),
        (HOG, BuildLimits::default(), ReasonCode::OutOfMemory),
        (BOMB, limits("processes", 50), ReasonCode::TooManyProcesses),
        (fills, limits("disk_bytes", 5_000_000), ReasonCode::TooMuchDisk),
        ("yes", BuildLimits::default(), ReasonCode::TooMuchOutput),
        // They succeed before anything is measured.
        ("echo 12345", limits("output_bytes", 3), ReasonCode::TooMuchOutput),
        ("head -c 6000000 /dev/zero > file", limits("disk_bytes", 5_000_000), ReasonCode::TooMuchDisk),
        ("seq 1 30000 | xargs touch", limits("disk_bytes", 5_000_000), ReasonCode::TooMuchDisk),
    ] {
        let key = farm.submit("g", BuildRequest { limits: asked, ..script(command) }).await;
        let record = ended_as(&farm, &key, Outcome::Failed).await;
        let reason = record.result().unwrap().reason.clone().unwrap();
        assert_eq!(reason.code, expected, "{reason:?}");
        if command == "echo 12345" {
            let log = farm.cli(&["logs", &key.to_string()]).await.stdout;
            assert_eq!(log, "123", "what is allowed is kept");
        }
    }
    // No build may ask for more than the settings allow.
    let wants_more = BuildRequest { limits: limits("memory_bytes", 400_000_001), ..script("true") };
    let error = farm.client().create(&"g".parse().unwrap(), &wants_more, None).await.unwrap_err().to_string();
    assert!(error.contains("build_limits"), "{error}");
}

#[tokio::test]
async fn a_build_gets_more_memory_after_it_ran_out_where_a_setting_says_so() {
    let farm = Farm::builder()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_OUT_OF_MEMORY_FACTOR", "3")
        .start()
        .await;
    let limits = BuildLimits { memory_bytes: Some(200_000_000), ..BuildLimits::default() };
    let key = farm.submit("g", BuildRequest { limits, ..script(HOG) }).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.attempt.0, 2, "{record:#?}");
    assert_eq!(record.queue.retry.unwrap().reason.code, ReasonCode::OutOfMemory);
}

#[tokio::test]
async fn a_build_uses_only_the_processors_that_it_may() {
    if !std::path::Path::new("/sys/fs/cgroup/cpu/cgroup.procs").exists() {
        return;
    }
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let limits = BuildLimits { cpu_millis: Some(200), ..BuildLimits::default() };
    let busy = script("timeout 2 sh -c 'while :; do :; done'; true");
    let key = farm.submit("g", BuildRequest { limits, ..busy }).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    let result = record.result().unwrap();
    assert!(
        result.cpu_seconds < 0.8,
        "{} s of processor time in {} s",
        result.cpu_seconds,
        result.wall_seconds
    );
}

#[tokio::test]
async fn a_fork_bomb_is_stopped_by_the_kernel_beside_busy_builds() {
    for sandbox in ["none", "bubblewrap"] {
        let farm = Farm::builder()
            .without("gateway")
            .workspaces(6)
            .env("FOREBAY_BUILD_SANDBOX", sandbox)
            .env("FOREBAY_WORKSPACE_PROCESSES_MAX", "200")
            .start()
            .await;
        let mut busy = Vec::new();
        for _ in 0..5 {
            busy.push(farm.submit("g", script("timeout 3 sh -c 'while :; do :; done'; true")).await);
        }
        let bomb = "b() { b | b & }; b; sleep 60";
        let key = farm.submit("g", BuildRequest { timeout_seconds: Some(5), ..script(bomb) }).await;
        let record = farm.wait_finished(&key, SOON).await;
        let result = record.result().unwrap();
        assert_eq!(result.outcome, Outcome::Failed, "{sandbox}: {record:#?}");
        assert_eq!(result.reason.as_ref().unwrap().code, ReasonCode::TooManyProcesses, "{sandbox}");
        for key in &busy {
            ended_as(&farm, key, Outcome::Succeeded).await;
        }
        let next = farm.submit("g", script("true")).await;
        ended_as(&farm, &next, Outcome::Succeeded).await;
    }
}
