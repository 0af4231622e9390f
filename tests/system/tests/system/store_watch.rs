//! A worker whose gateway does not answer accepts no builds until the gateway answers again.

use std::{fs, time::Duration};

use farm::{Farm, Port, SOON};
use model::{BuildKey, Outcome, WorkerStatus};

use crate::{check::ended_within, object_stores::held_build};

/// Time limit for a change of the worker's status: a gateway that is stopped is given up after 20 s.
const NOTICED: Duration = Duration::from_secs(60);

/// Starts a farm whose worker has its own folder and uses the store of the gateway, which listens on `port`.
async fn farm_with_a_remote_worker(port: &Port) -> Farm {
    let listen = format!("127.0.0.1:{}", port.number());
    let farm = Farm::builder().without("worker").env("FOREBAY_GRPC_LISTEN", listen).start().await;
    let (data, cas) = (farm.folder().join("second"), farm.grpc_url());
    fs::create_dir_all(&data).unwrap();
    let env = [("FOREBAY_DATA", data.to_str().unwrap()), ("FOREBAY_CAS_URL", cas.as_str())];
    farm.keep(farm.spawn_with_env("worker", &env).await);
    farm
}

/// Waits until the only worker has this status, and asserts that it says why if it is `full`.
async fn has_status(farm: &Farm, status: WorkerStatus) {
    let changed = async {
        loop {
            let workers = farm.client().workers().await.unwrap();
            if let [worker] = workers.as_slice()
                && worker.heartbeat.status == status
            {
                return worker.heartbeat.short.clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let changed = tokio::time::timeout(NOTICED, changed).await;
    let why = changed.unwrap_or_else(|_| panic!("the worker is not {status:?} after {NOTICED:?}"));
    let says_why = why.as_ref().is_some_and(|why| why.contains("does not answer"));
    assert_eq!(says_why, status == WorkerStatus::Full, "{status:?}: {why:?}");
}

/// The build ends as it would have without the failure of the gateway.
async fn succeeds(farm: &Farm, key: &BuildKey) {
    let record = ended_within(farm, key, NOTICED).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
}

#[tokio::test]
async fn a_worker_whose_gateway_was_killed_accepts_no_builds() {
    let port = Port::reserve();
    let farm = farm_with_a_remote_worker(&port).await;
    has_status(&farm, WorkerStatus::Ready).await;
    let (key, go) = held_build(&farm).await;
    let mut gateway = farm.take("gateway");
    gateway.kill9();
    gateway.wait_exit(SOON).await;
    fs::write(go, "").unwrap();
    has_status(&farm, WorkerStatus::Full).await;
    farm.keep(farm.spawn("gateway").await);
    has_status(&farm, WorkerStatus::Ready).await;
    succeeds(&farm, &key).await;
}

#[tokio::test]
async fn a_worker_whose_gateway_is_stopped_accepts_no_builds() {
    let port = Port::reserve();
    let farm = farm_with_a_remote_worker(&port).await;
    has_status(&farm, WorkerStatus::Ready).await;
    let (key, go) = held_build(&farm).await;
    let gateway = farm.take("gateway");
    gateway.pause();
    fs::write(go, "").unwrap();
    has_status(&farm, WorkerStatus::Full).await;
    gateway.resume();
    has_status(&farm, WorkerStatus::Ready).await;
    succeeds(&farm, &key).await;
}
