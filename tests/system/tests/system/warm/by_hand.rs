//! A worker to which the test offers builds directly: a dispatcher's choice is a hint, the actual state
//! of the workspace decides.

use bus::{EventKind, FromJson as _, Message as _, Subject};
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{
    ActionUsage, BuildKey, BuildRecord, BuildRequest, Control, Esu, ExecutorType, Heartbeat, Millis, Offer,
    OfferReply, OfferVerdict, Offers, Outcome, SendingBuild, UsageReport, WorkerId, WorkspaceKeys,
    WorkspaceKind, WorkspaceState,
};

use super::{kind_of, warm};
use crate::check::{processes_of, script, until};

use WorkspaceKind::{Exact, New, Prefix};

/// A worker with one workspace, which receives offers only from the test.
pub(super) struct Hand {
    pub(super) farm: Farm,
    worker: WorkerId,
}

impl Hand {
    async fn with_env(env: &[(&str, &str)]) -> Self {
        let mut builder = Farm::builder().only(&["enqueuer"]).workspaces(1);
        for (name, value) in env {
            builder = builder.env(name, *value);
        }
        Self::of(builder.start().await, &[]).await
    }

    /// Starts the worker, with additional environment variables, in a farm that has none.
    pub(super) async fn of(farm: Farm, env: &[(&str, &str)]) -> Self {
        let mut heartbeats = farm.bus().client().subscribe(Subject::Heartbeat.to_string()).await.unwrap();
        farm.bus().client().flush().await.unwrap();
        farm.keep(farm.spawn_with_env("worker", env).await);
        let first = tokio::time::timeout(SOON, heartbeats.next()).await.unwrap().unwrap();
        let heartbeat = Heartbeat::from_json(&first.payload).unwrap();
        Self { farm, worker: heartbeat.worker }
    }

    pub(super) async fn new() -> Self {
        Self::with_env(&[]).await
    }

    /// Requests heartbeats until one satisfies the condition, and returns it.
    async fn heartbeat(&self, wanted: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
        let client = self.farm.bus().client();
        let mut heartbeats = client.subscribe(Subject::Heartbeat.to_string()).await.unwrap();
        client.publish(Subject::Announce.to_string(), "".into()).await.unwrap();
        let found = async {
            loop {
                let heartbeat = Heartbeat::from_json(&heartbeats.next().await.unwrap().payload).unwrap();
                if wanted(&heartbeat) {
                    return heartbeat;
                }
            }
        };
        tokio::time::timeout(SOON, found).await.expect("the worker says so")
    }

    /// Returns the keys by which the workspace is found, once it is idle.
    pub(super) async fn left(&self) -> Option<WorkspaceKeys> {
        let idle = |heartbeat: &Heartbeat| matches!(heartbeat.workspaces[0], WorkspaceState::Idle { .. });
        match &self.heartbeat(idle).await.workspaces[0] {
            WorkspaceState::Idle { warm } => warm.clone(),
            other
            @ (WorkspaceState::Busy { .. } | WorkspaceState::Closed { .. } | WorkspaceState::Broken) => {
                panic!("{other:?}")
            }
        }
    }

    /// Offers a build to the worker.
    pub(super) async fn offer(
        &self,
        key: &BuildKey,
        kind: Option<WorkspaceKind>,
        deadline_ms: Millis,
    ) -> OfferVerdict {
        let (sequence, _) = self.farm.bus().records().latest(key).await.unwrap().unwrap();
        let offer = Offer {
            group: key.group.clone(),
            id: key.id,
            sequence,
            workspace: 0,
            deadline_ms,
            dispatched_at_us: 1,
            dispatched_at_sequence: sequence,
            workspace_kind: kind,
            record: None,
        };
        let payload = Offers { offers: vec![offer] }.to_json();
        let subject = Subject::Offer(self.worker.clone()).to_string();
        let reply = self.farm.bus().client().request(subject, payload).await.unwrap();
        let reply = OfferReply::from_json(&reply.payload).unwrap();
        reply.verdicts[0]
    }

    /// Queues a build and offers it; returns when it runs.
    pub(super) async fn start(&self, request: BuildRequest, kind: Option<WorkspaceKind>) -> BuildKey {
        let key = self.farm.submit("g", request).await;
        loop {
            match self.offer(&key, kind, Millis::of_this_machine().after(SOON)).await {
                OfferVerdict::Started => return key,
                // The previous build is about to end.
                OfferVerdict::Busy => drop(self.left().await),
                verdict @ (OfferVerdict::Stale | OfferVerdict::Failed) => panic!("{verdict:?}"),
            }
        }
    }

    /// Returns when the command has written something.
    async fn speaks(&self, key: &BuildKey) {
        self.farm.wait_event(key, SOON, &[EventKind::Console], |_| true).await;
    }

    pub(super) async fn end(&self, key: &BuildKey) -> BuildRecord {
        self.farm.wait_finished(key, SOON).await
    }

    /// Runs a build to its end and asserts the outcome; returns the reported state of its workspace.
    pub(super) async fn run(
        &self,
        request: BuildRequest,
        kind: Option<WorkspaceKind>,
        outcome: Outcome,
    ) -> Option<WorkspaceKind> {
        let key = self.start(request, kind).await;
        let record = self.end(&key).await;
        assert_eq!(record.result().unwrap().outcome, outcome, "{record:#?}");
        kind_of(&record)
    }

    pub(super) async fn succeed(
        &self,
        request: BuildRequest,
        kind: Option<WorkspaceKind>,
    ) -> Option<WorkspaceKind> {
        self.run(request, kind, Outcome::Succeeded).await
    }
}

/// Creates a build that counts its runs in its workspace, and must find this count.
fn counting(wanted: u32) -> BuildRequest {
    counting_for(wanted, "target")
}

/// The requested target is passed separately, so that the script is not part of the keys.
fn counting_for(wanted: u32, target: &str) -> BuildRequest {
    let text = "echo >> ran; echo >> \"$TMPDIR/ran\"; [ $(wc -l < ran) = \"$WANTED\" ] && [ $(wc -l < \"$TMPDIR/ran\") = \"$WANTED\" ]";
    let tool =
        model::ToolCall { command: "count".into(), targets: vec![target.into()], ..Default::default() };
    let env = [("WANTED".to_owned(), wanted.to_string())].into();
    BuildRequest { tool: Some(tool), env, ..warm(text) }
}

#[tokio::test]
async fn a_workspace_is_used_again_only_if_it_is_what_it_is_said_to_be() {
    let hand = Hand::new().await;
    assert_eq!(hand.left().await, None);
    // The workspace is empty, whatever the offer says.
    assert_eq!(hand.succeed(counting(1), Some(Exact)).await, Some(New));
    let keys = hand.left().await.unwrap();
    assert_eq!(hand.succeed(counting(2), Some(Exact)).await, Some(Exact));
    assert_eq!(hand.left().await.unwrap(), keys);
    assert_eq!(hand.succeed(counting(3), Some(Prefix)).await, Some(Exact));
    // The offer requires a new workspace.
    assert_eq!(hand.succeed(counting(1), Some(New)).await, Some(New));
    // Another target: nothing in common.
    assert_eq!(hand.succeed(counting_for(1, "other"), Some(Exact)).await, Some(New));
    assert_eq!(hand.succeed(counting_for(2, "other"), Some(Prefix)).await, Some(Exact));
    assert_ne!(hand.left().await.unwrap(), keys);
    // A build that did not ask for a warm workspace finds nothing and leaves nothing.
    let fresh = script("test -z \"$(ls -A . \"$TMPDIR\" | grep ran)\" && echo >> ran");
    assert_eq!(hand.succeed(fresh, Some(Exact)).await, None);
    assert_eq!(hand.left().await, None);
    assert_eq!(hand.succeed(counting_for(1, "other"), Some(Exact)).await, Some(New));
    // A dispatcher that does not support warm workspaces.
    assert_eq!(hand.succeed(counting_for(1, "other"), None).await, None);
    assert_eq!(hand.left().await, None);
}

#[tokio::test]
async fn only_a_command_that_ends_by_itself_leaves_its_workspace() {
    let hand = Hand::new().await;
    let slow = |text: &str| BuildRequest { command: script(text).command, ..counting(1) };
    // Failed, by exit code and by a signal.
    assert_eq!(hand.run(slow("echo >> ran; exit 3"), Some(New), Outcome::Failed).await, Some(New));
    assert_eq!(hand.run(slow("test -e ran && exit 4"), Some(Exact), Outcome::Failed).await, Some(Exact));
    assert_eq!(
        hand.run(slow("test -e ran && kill -SEGV $$"), Some(Exact), Outcome::Failed).await,
        Some(Exact)
    );
    assert!(hand.left().await.is_some());
    // Timed out, even when it reacts to SIGTERM.
    let late = BuildRequest { timeout_seconds: Some(1), ..slow("trap 'exit 0' TERM; sleep 1000 & wait") };
    assert_eq!(hand.run(late, Some(Exact), Outcome::TimedOut).await, Some(Exact));
    assert_eq!(hand.left().await, None);
    // A cancelled build.
    let key = hand.start(slow("echo up; exec sleep 1000"), Some(New)).await;
    hand.speaks(&key).await;
    assert_eq!(hand.farm.cli(&["cancel", &key.id.to_string()]).await.code, 0);
    let order = Control::Cancel { group: key.group.clone(), id: key.id, attempt: model::Attempt::FIRST };
    let control = Subject::Control(hand.worker.clone()).to_string();
    hand.farm.bus().client().publish(control, order.to_json()).await.unwrap();
    assert_eq!(hand.left().await, None);
    // A build that could not start.
    let absent = BuildRequest { command: vec!["no-such-program".into()], ..counting(1) };
    hand.run(absent, Some(New), Outcome::Failed).await;
    assert_eq!(hand.left().await, None);
    // A build that lost its shim.
    assert_eq!(hand.succeed(counting(1), Some(Exact)).await, Some(New));
}

/// Creates a build that leaves a daemon, and needs the existing one if there was one.
fn serving(text: &str) -> BuildRequest {
    let tool = model::ToolCall { command: "serve".into(), targets: vec!["t".into()], ..Default::default() };
    BuildRequest { tool: Some(tool), ..warm(text) }
}

const SERVE: &str = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid";
const CALL: &str = "kill -0 $(cat pid)";

#[tokio::test]
async fn a_tool_server_serves_the_next_build_and_no_other() {
    let hand = Hand::new().await;
    let first = hand.start(serving(SERVE), Some(New)).await;
    hand.end(&first).await;
    assert!(hand.left().await.is_some());
    let server = processes_of(first.id);
    assert_eq!(server.len(), 1);
    for _ in 0..3 {
        assert_eq!(hand.succeed(serving(CALL), Some(Exact)).await, Some(Exact));
        hand.left().await;
        assert_eq!(processes_of(first.id), server);
    }
    // A fresh build evicts the daemon before it begins.
    let fresh = hand.start(script("echo up; sleep 1000"), None).await;
    hand.speaks(&fresh).await;
    assert!(processes_of(first.id).is_empty());
    drop(hand.farm.take("worker"));
    until("all are dead", SOON, || processes_of(fresh.id).is_empty()).await;
}

#[tokio::test]
async fn a_dead_or_draining_worker_keeps_no_tool_server() {
    let hand = Hand::new().await;
    let first = hand.start(serving(SERVE), Some(New)).await;
    hand.end(&first).await;
    hand.left().await;
    assert_eq!(processes_of(first.id).len(), 1);
    let control = Subject::Control(hand.worker.clone()).to_string();
    let order = |order: &Control| order.to_json();
    hand.farm.bus().client().publish(control.clone(), order(&Control::Drain)).await.unwrap();
    until("draining ends it", SOON, || processes_of(first.id).is_empty()).await;
    hand.farm.bus().client().publish(control, order(&Control::Resume)).await.unwrap();
    // Its folder still exists.
    assert_eq!(hand.succeed(serving("test -e pid && ! kill -0 $(cat pid)"), Some(Exact)).await, Some(Exact));
    let second = hand.start(serving(SERVE), Some(Exact)).await;
    hand.end(&second).await;
    hand.left().await;
    assert_eq!(processes_of(second.id).len(), 1);
    drop(hand.farm.take("worker"));
    until("SIGKILL ends it", SOON, || processes_of(second.id).is_empty()).await;
}

#[tokio::test]
async fn short_memory_ends_an_idle_tool_server_and_leaves_its_folder() {
    // The machine uses more than a hundredth of its memory.
    let hand = Hand::with_env(&[("FOREBAY_TOOL_MEMORY_PERCENT", "1")]).await;
    let first = hand.start(serving(SERVE), Some(New)).await;
    hand.end(&first).await;
    until("it is shut down", SOON, || processes_of(first.id).is_empty()).await;
    assert!(hand.left().await.is_some());
    assert_eq!(hand.succeed(serving("test -e pid && ! kill -0 $(cat pid)"), Some(Exact)).await, Some(Exact));
}

#[tokio::test]
async fn a_build_kills_the_tool_server_that_it_was_killed_with() {
    let hand = Hand::new().await;
    let first = hand.start(serving(SERVE), Some(New)).await;
    hand.end(&first).await;
    let late = BuildRequest { timeout_seconds: Some(1), ..serving("exec sleep 1000") };
    hand.run(late, Some(Exact), Outcome::TimedOut).await;
    assert!(processes_of(first.id).is_empty());
    assert_eq!(hand.left().await, None);
}

/// Sums the ESU of `group` in the reports of the worker, each times its seconds, until a report of zero.
async fn reported(reports: &mut async_nats::Subscriber, worker: &WorkerId) -> f64 {
    let mut total = 0.0;
    loop {
        let message = tokio::time::timeout(SOON, reports.next()).await.unwrap().unwrap();
        let report = UsageReport::from_json(&message.payload).unwrap();
        assert_eq!((report.source.as_str(), report.interval_ms), (worker.as_str(), 2000));
        match report.groups.get(&"g".parse().unwrap()) {
            Some(used) => total += used.get(&ExecutorType::x86()).units() * 2.0,
            None => return total,
        }
    }
}

#[tokio::test]
async fn what_a_build_uses_is_in_its_result_and_in_the_reports() {
    let hand = Hand::new().await;
    let client = hand.farm.bus().client();
    let mut reports = client.subscribe(Subject::Usage.to_string()).await.unwrap();
    client.flush().await.unwrap();
    // About three seconds of one processor in a child process.
    let burn =
        "echo up; sh -c 'end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do :; done'; exit 0";
    let key = hand.start(script(burn), None).await;
    hand.speaks(&key).await;
    let used = ActionUsage {
        group: key.group.clone(),
        build: SendingBuild { worker: hand.worker.clone(), id: key.id, attempt: model::Attempt::FIRST },
        executor_type: "gpu".parse().unwrap(),
        esu_seconds: Esu::new(7.0).unwrap(),
    };
    let subject = Subject::ActionUsage(hand.worker.clone()).to_string();
    client.publish(subject, used.to_json()).await.unwrap();
    let record = hand.end(&key).await;
    let result = record.result().unwrap();
    let (wall, cpu) = (result.wall_seconds, result.cpu_seconds);
    let x86 = result.usage.get(&ExecutorType::x86()).units();
    assert!((x86 - cpu / wall).abs() < 0.01, "{x86} of {cpu} s in {wall} s");
    let gpu = result.usage.get(&"gpu".parse().unwrap()).units();
    assert!((gpu - 7.0 / wall).abs() < 0.01, "{gpu} in {wall} s");
    let total = reported(&mut reports, &hand.worker).await;
    assert!((total - cpu).abs() < cpu * 0.2 + 0.2, "{total} of {cpu}");
    // No further reports while nothing runs.
    assert!(tokio::time::timeout(std::time::Duration::from_secs(5), reports.next()).await.is_err());
}
