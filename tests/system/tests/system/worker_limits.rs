//! Builds that want more than their workspace may use, and workers that cannot run builds.

use std::{fs, time::Duration};

use farm::{Builder, Farm, SOON};
use model::{BuildRequest, Outcome, ReasonCode, WorkerId, WorkerStatus};

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

#[tokio::test]
async fn a_worker_that_cannot_run_builds_gives_them_back_and_closes_until_it_can() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let first = async {
        loop {
            if let Some(view) = farm.client().workers().await.unwrap().into_iter().next() {
                return view.heartbeat.worker;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let worker = tokio::time::timeout(SOON, first).await.expect("a worker");
    // No folder can be made there.
    let folder = farm.data().join("workspaces").join(worker.as_str()).join("0");
    let _ = fs::remove_dir_all(&folder);
    fs::write(&folder, "").unwrap();
    let mut keys = Vec::new();
    for _ in 0..3 {
        keys.push(farm.submit("g", BuildRequest { max_attempts: Some(9), ..script("true") }).await);
    }
    let why = status_is(&farm, &worker, WorkerStatus::Full).await.unwrap();
    assert!(why.contains("3 builds in a row") && why.contains("creating the workspace failed"), "{why}");
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
    assert_eq!(attempts.iter().sum::<u32>(), 6, "three were given back: {attempts:?}");
    fs::remove_file(&folder).unwrap();
    status_is(&farm, &worker, WorkerStatus::Ready).await;
}
