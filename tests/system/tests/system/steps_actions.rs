//! SIGKILL at every step between two effects of an action: it ends once, in bounded time, with its correct result.

use std::time::Duration;

use farm::{Builder, Farm, SOON, ServiceProcess};
use remote::{Executed, Remote, RemoteError};
use service::Step;
use tokio::task::JoinHandle;

use crate::{
    acting::{self, Outside},
    marks::{only_history, phases},
    scenario::{Scenario, scenario, walk},
};

/// Time for a lease of 2 s or an unowned claim to expire, and for the action to run again.
const BOUND: Duration = Duration::from_secs(20);
/// Number of UNAVAILABLE in `google.rpc.Code`.
const UNAVAILABLE: i32 = 14;

/// An event that leads a service to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// An action is executed.
    Execute,
    /// Redis loses all its data while the action runs.
    Flush,
    /// The executor that runs the action dies.
    ExecutorDies,
    /// The action exceeds its queue timeout.
    QueueTimeout,
    /// The action runs so long that a copy of it starts.
    Hedge,
}

type Execution = JoinHandle<Result<Executed, RemoteError>>;

struct Drive {
    farm: Farm,
    remote: Remote,
    outside: Outside,
    way: Way,
}

async fn kill_at(step: Step) {
    let Scenario::Action(way) = scenario(step) else { panic!("{} is not a step of an action", step.name()) };
    let farm = without(acting::builder(), step.service(), way).start().await;
    match way {
        Way::Execute | Way::Hedge => {}
        // The index already exists: it is lost, not missing.
        Way::Flush | Way::ExecutorDies => farm.keep(farm.spawn("scheduler").await),
        // The pool of the action is known.
        Way::QueueTimeout => {
            let mut executor = farm.spawn("executor").await;
            executor.term();
            executor.wait_exit(SOON).await;
        }
    }
    let drive = Drive { remote: acting::remote(&farm).await, outside: Outside::of(&farm), farm, way };
    let (mut victim, execution) = drive.provoke(step).await;
    let status = victim.wait_exit(BOUND).await;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "{status} at {}\n{}", step.name(), victim.log_tail());
    assert!(victim.log_text().contains("step selected by FOREBAY_CRASH_AT"), "{}", victim.log_tail());
    drive.farm.keep(drive.farm.spawn(step.service()).await);
    if way == Way::Hedge {
        drive.outside.begun(2).await;
    }
    drive.outside.go();

    let executed = tokio::time::timeout(BOUND, execution).await.expect("the execution ends");
    drive.assert_end(step, &executed.unwrap().unwrap()).await;
}

fn without(builder: Builder, service: &str, way: Way) -> Builder {
    match way {
        Way::Execute | Way::Flush | Way::ExecutorDies => builder.without(service),
        Way::QueueTimeout => {
            builder.without(service).without("executor").env("FOREBAY_ACTION_QUEUE_TIMEOUT_SECONDS", "1")
        }
        Way::Hedge => {
            let builder = builder.without(service).with("executor").env("FOREBAY_ACTION_HEDGES", "1");
            builder.env("FOREBAY_ACTION_HEDGE_DELAY_MS", "300")
        }
    }
}

impl Drive {
    async fn victim(&self, step: Step) -> ServiceProcess {
        self.farm.spawn_with_env(step.service(), &[("FOREBAY_CRASH_AT", step.name())]).await
    }

    async fn execute(&self) -> Execution {
        let script = match self.way {
            Way::Execute | Way::QueueTimeout => "echo kept > kept; echo out".to_owned(),
            Way::Flush | Way::ExecutorDies | Way::Hedge => self.outside.script(),
        };
        acting::execute(&self.remote, acting::upload(&self.remote, &script).await)
    }

    async fn provoke(&self, step: Step) -> (ServiceProcess, Execution) {
        match self.way {
            Way::Execute | Way::QueueTimeout | Way::Hedge => {
                let victim = self.victim(step).await;
                (victim, self.execute().await)
            }
            Way::Flush => {
                let (victim, execution) = self.running(step).await;
                self.farm.servers.flush_redis();
                (victim, execution)
            }
            Way::ExecutorDies => {
                let (victim, execution) = self.running(step).await;
                let mut executor = self.farm.take("executor");
                executor.kill9();
                executor.wait_exit(SOON).await;
                // The executor's successor releases its lease.
                self.farm.keep(self.farm.spawn("executor").await);
                (victim, execution)
            }
        }
    }

    /// Starts an action, and makes the scheduler that is to die the only one.
    async fn running(&self, step: Step) -> (ServiceProcess, Execution) {
        let execution = self.execute().await;
        self.outside.begun(1).await;
        drop(self.farm.take("scheduler"));
        (self.victim(step).await, execution)
    }

    async fn assert_end(&self, step: Step, executed: &Executed) {
        let response = &executed.response;
        let record = match self.way {
            Way::Hedge => {
                let records = only_history(&self.farm).await;
                assert_eq!(phases(&records), ["accepted", "hedged", "finished"], "{records:#?}");
                records.last().unwrap().clone()
            }
            Way::Execute | Way::Flush | Way::ExecutorDies | Way::QueueTimeout => {
                acting::only_end(&self.farm).await
            }
        };
        assert!(executed.operation.ends_with(&record.execution.key().to_string()), "{executed:?}");
        let outcome = record.outcome().unwrap();
        if self.way == Way::QueueTimeout {
            let status = response.status.as_ref().unwrap();
            assert_eq!((status.code, outcome.code), (UNAVAILABLE, UNAVAILABLE), "{status:?}");
            assert!(status.message.contains("no executor is live"), "{status:?}");
            return;
        }
        assert_eq!((outcome.code, outcome.exit_code), (0, Some(0)), "{outcome:?}");
        assert_eq!(acting::stdout(&self.remote, response).await, "out\n");
        let files = &response.result.as_ref().unwrap().output_files;
        let digest =
            reapi::digest::from_proto(files.first().unwrap().digest.as_ref().unwrap(), acting::SHA256);
        assert_eq!(self.remote.read(&digest.unwrap()).await.unwrap(), b"kept\n", "{files:?}");
        // After a death during a claim, it may be unknown whether an attempt began.
        let (most, runs) = match self.way {
            Way::Execute if step == Step::ActionResultWritten => (1, 0),
            Way::Execute if step.service() == "executor" => (2, 0),
            Way::Execute | Way::QueueTimeout => (1, 0),
            Way::Flush => (1, 1),
            Way::Hedge => (1, 2),
            Way::ExecutorDies => (2, 2),
        };
        assert!(record.attempt.0 <= most, "{record:#?}");
        assert_eq!(self.outside.runs(), runs, "{record:#?}");
    }
}

walk! {
    killed_with_records_read = ActionEventsRead,
    killed_with_records_applied = ActionEventsApplied,
    killed_with_an_action_rebuild_begun = ActionRebuildBegun,
    killed_with_executions_picked = ActionPicked,
    killed_with_executions_committed = ActionCommitted,
    killed_with_grants_sent = ActionGrantsSent,
    killed_with_a_lost_executor_heard_of = ExecutorLossHeard,
    killed_with_a_lost_executor_written = ExecutorLossWritten,
    killed_with_a_slow_execution_found = ActionHedgeFound,
    killed_with_an_overdue_execution_found = ActionOverdueFound,
    killed_with_an_overdue_execution_ended = ActionOverdueWritten,
    killed_with_a_grant_received = ActionGrantReceived,
    killed_with_an_execution_taken = ActionTaken,
    killed_with_the_inputs_ready = ActionInputsReady,
    killed_with_the_action_ended = ActionCommandEnded,
    killed_with_the_action_outputs_kept = ActionOutputsKept,
    killed_with_the_action_cached = ActionCached,
    killed_with_the_result_written = ActionResultWritten,
}
