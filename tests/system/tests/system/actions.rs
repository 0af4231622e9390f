//! Whichever process dies while an action runs, the action ends once with its correct result; it also ends when no
//! client waits for it.

use std::time::Duration;

use farm::{Farm, SOON};
use model::ExecutionRecord;
use reapi::execution::WaitExecutionRequest;
use remote::{Executed, Remote, RemoteError};
use tokio::task::JoinHandle;

use crate::{
    acting::{self, Outside, processes_with},
    check::until,
};

/// Time for a lease of 2 s to expire, for the expiry to be noticed, and for the action to run again.
const BOUND: Duration = Duration::from_secs(20);
/// The grace period of one second, and the time to notify all processes.
const CANCELLED_WITHIN: Duration = Duration::from_secs(5);
/// Number of CANCELLED in `google.rpc.Code`.
const CANCELLED: i32 = 1;

/// A running action that continues after `go`.
struct Running {
    farm: Farm,
    remote: Remote,
    outside: Outside,
    execution: JoinHandle<Result<Executed, RemoteError>>,
}

impl Running {
    async fn new(farm: Farm) -> Self {
        let (remote, outside) = (acting::remote(&farm).await, Outside::of(&farm));
        let action = acting::upload(&remote, &outside.script()).await;
        let execution = acting::execute(&remote, action);
        outside.begun(1).await;
        Self { farm, remote, outside, execution }
    }

    /// Lets the action continue; returns its last record and the number of runs.
    async fn end(self) -> (ExecutionRecord, usize) {
        self.outside.go();
        let executed = tokio::time::timeout(BOUND, self.execution).await.expect("the execution ends");
        let response = executed.unwrap().unwrap().response;
        assert_eq!(acting::stdout(&self.remote, &response).await, "out\n");
        (acting::only_end(&self.farm).await, self.outside.runs())
    }
}

#[tokio::test]
async fn another_gateway_answers_for_one_that_was_killed() {
    let farm = acting::builder().with("gateway").start().await;
    let (remote, outside) = (acting::remote(&farm).await, Outside::of(&farm));
    let action = acting::upload(&remote, &outside.script()).await;
    let (name, mut stream) = acting::begin(&remote, &action).await;
    outside.begun(1).await;
    drop(farm.take("gateway"));
    while let Ok(Some(_)) = stream.message().await {}
    let other = acting::remote(&farm).await;
    let again = other.execution().wait_execution(WaitExecutionRequest { name: name.clone() }).await;
    let again = again.unwrap().into_inner();
    // Longer than the grace period of an execution without clients.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    outside.go();
    let response = acting::ended(again).await;
    assert_eq!(acting::stdout(&other, &response).await, "out\n");
    let record = acting::only_end(&farm).await;
    assert_eq!((record.attempt.0, outside.runs()), (1, 1));
    assert!(name.ends_with(&record.execution.key().to_string()), "{name}");
    // A client that asks after the end also receives the result.
    let over = other.execution().wait_execution(WaitExecutionRequest { name }).await.unwrap().into_inner();
    assert_eq!(acting::ended(over).await.result, response.result);
}

#[tokio::test]
async fn an_action_runs_on_though_the_scheduler_is_killed() {
    let running = Running::new(acting::builder().start().await).await;
    running.farm.replace("scheduler", &[]).await;
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (1, 1), "{record:#?}");
}

#[tokio::test]
async fn an_action_ends_though_no_scheduler_is_left() {
    let running = Running::new(acting::builder().start().await).await;
    drop(running.farm.take("scheduler"));
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (1, 1), "{record:#?}");
}

#[tokio::test]
async fn an_action_runs_again_when_its_executor_is_killed() {
    let running = Running::new(acting::builder().start().await).await;
    let script = format!("{}/go", running.outside.path().display());
    let first = processes_with(&script);
    assert!(!first.is_empty());
    running.farm.replace("executor", &[]).await;
    running.outside.begun(2).await;
    assert!(!first.iter().any(|pid| farm::alive(*pid)), "the first attempt lives on");
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (2, 2), "{record:#?}");
}

#[tokio::test]
async fn an_action_runs_again_elsewhere_when_its_machine_is_gone() {
    let running = Running::new(acting::builder().lease_ttl(2).start().await).await;
    // It has its own folder: no executor takes over the folder of the first, whose lease has to expire.
    let other = running.farm.spawn("executor").await;
    running.farm.take("executor").kill9();
    running.farm.keep(other);
    running.outside.begun(2).await;
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (2, 2), "{record:#?}");
}

#[tokio::test]
async fn an_action_runs_on_though_redis_forgets_everything() {
    let running = Running::new(acting::builder().start().await).await;
    for _ in 0..3 {
        running.farm.servers.flush_redis();
        // The projection is rebuilt and dispatches, as another action shows.
        let next = acting::upload(&running.remote, "cat /proc/sys/kernel/random/uuid").await;
        let response = running.remote.execute(&next, true, 0, |_, _| {}).await.unwrap().response;
        acting::stdout(&running.remote, &response).await;
    }
    running.outside.go();
    let executed = tokio::time::timeout(BOUND, running.execution).await.expect("it ends").unwrap().unwrap();
    assert_eq!(acting::stdout(&running.remote, &executed.response).await, "out\n");
    assert_eq!(running.outside.runs(), 1, "the service was restarted");
}

#[tokio::test]
async fn an_action_runs_on_though_nats_server_is_killed() {
    // A lease outlives a restart of the server, so nothing runs twice.
    let running = Running::new(acting::builder().start().await).await;
    running.farm.servers.kill_nats();
    running.farm.servers.start_nats().await;
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (1, 1), "{record:#?}");
}

#[tokio::test]
async fn a_result_is_written_when_nats_server_is_back() {
    let running = Running::new(acting::builder().start().await).await;
    running.farm.servers.kill_nats();
    running.outside.go();
    let script = format!("{}/go", running.outside.path().display());
    until("the command ends", SOON, || processes_with(&script).is_empty()).await;
    running.farm.servers.start_nats().await;
    let (record, runs) = running.end().await;
    assert_eq!((record.attempt.0, runs), (1, 1), "{record:#?}");
}

#[tokio::test]
async fn a_cancelled_action_is_killed() {
    let farm = acting::builder().start().await;
    let (remote, outside) = (acting::remote(&farm).await, Outside::of(&farm));
    let action = acting::upload(&remote, &outside.script()).await;
    let (name, stream) = acting::begin(&remote, &action).await;
    outside.begun(1).await;
    remote.cancel(&name).await.unwrap();
    let response = acting::ended(stream).await;
    assert_eq!(response.status.unwrap().code, CANCELLED);
    gone(&outside).await;
    assert_eq!(acting::only_end(&farm).await.outcome().unwrap().code, CANCELLED);
    // Cancelling twice is not an error.
    remote.cancel(&name).await.unwrap();
}

#[tokio::test]
async fn an_action_that_nobody_waits_for_is_killed() {
    let farm = acting::builder().start().await;
    let (remote, outside) = (acting::remote(&farm).await, Outside::of(&farm));
    let action = acting::upload(&remote, &outside.script()).await;
    let (_, stream) = acting::begin(&remote, &action).await;
    outside.begun(1).await;
    drop(stream);
    gone(&outside).await;
    assert_eq!(acting::only_end(&farm).await.outcome().unwrap().code, CANCELLED);
    // Its slot is free, and the next request runs the action again.
    outside.go();
    let response = acting::executed(&remote, action).await;
    assert_eq!(acting::stdout(&remote, &response).await, "out\n");
}

async fn gone(outside: &Outside) {
    let script = format!("{}/go", outside.path().display());
    until("its processes are dead", CANCELLED_WITHIN, || processes_with(&script).is_empty()).await;
}
