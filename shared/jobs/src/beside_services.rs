//! Runs tasks that use the shared services of their job.

use std::{sync::Arc, time::Duration};

use invariant::impossible;
use model::{CommandStep, Task, TaskIndex, TaskReport, TaskStatus, brief};
use policy::graph::{GraphRun, ServicesEnd, services_platform};
use reapi::execution::{ExecuteOperationMetadata, ExecuteResponse};

use crate::{
    action::{ActionRun, TaskAction, services_action},
    answer,
    host::Host,
    runner::Runner,
    shared_services::{EndOfServices, Found, StartedServices},
    task_end::TaskEnd,
    task_error::TaskError,
    visible::VisibleEffects,
};

/// Time limit for cancelling the execution of the services.
const CANCELLING: Duration = Duration::from_secs(5);
/// How long a task that failed with its executor waits for the end of the services to become known.
const NOTICE: Duration = Duration::from_secs(2);

impl Runner {
    /// Runs a task when the services are ready, which it starts if necessary.
    pub(crate) async fn beside_services(
        self: &Arc<Self>,
        index: TaskIndex,
        task: &Task,
        command: &CommandStep,
        visible: &VisibleEffects,
    ) -> Result<TaskEnd, TaskError> {
        let started = match self.services.begin() {
            Found::Failed(end) => return without_services(task, &end),
            Found::Started(started) => started,
            Found::ToStart(started) => {
                self.start_services(&started);
                started
            }
        };
        if let Err(end) = started.ready().await {
            return without_services(task, &end);
        }
        let run = async {
            // Without a result they run again with the next task.
            let replayed = started.replayed.get_or_try_init(|| self.replay(&started)).await?;
            if let Err(reason) = replayed {
                return Err(TaskError::Own(reason.clone()));
            }
            self.run_command(index, task, command, visible, ActionRun::beside(started.id)).await
        };
        let ended = tokio::select! {
            biased;
            ended = run => ended,
            end = started.ended() => {
                self.cancel(Some(&[index])).await;
                return without_services(task, &end);
            }
        };
        if is_due_to_services(&ended)
            && let Ok(end) = tokio::time::timeout(NOTICE, started.ended()).await
        {
            return match (end.end, ended) {
                (ServicesEnd::Failed, Ok(task)) => Ok(with_logs(task, &end)),
                (ServicesEnd::Failed, Err(_)) | (ServicesEnd::Lost | ServicesEnd::Stopped, _) => {
                    without_services(task, &end)
                }
            };
        }
        if ended.as_ref().is_ok_and(|end| end.report.status == TaskStatus::Succeeded) {
            self.services.succeeded(index);
        }
        ended
    }

    /// Runs the tasks again that had succeeded with an earlier start of the services. Their outputs stay those of their first runs.
    /// The inner error is why one of them failed.
    async fn replay(&self, started: &StartedServices) -> Result<Result<(), String>, TaskError> {
        for index in self.services.replays() {
            let graph = self.job_files.graph();
            let Some((task, command)) =
                graph.task(index).and_then(|task| Some((task, task.step.as_command()?)))
            else {
                impossible!("the job has no task {} to run again", index.get());
                continue;
            };
            let visible = self.job_files.visible_to(index);
            let run = ActionRun::beside(started.id);
            let ended = self.run_action(index, task, command, &visible, run).await;
            self.running.end(index);
            let report = ended?.report;
            let why = report.reason.unwrap_or_default();
            match report.status {
                TaskStatus::Succeeded => {}
                TaskStatus::FarmFailed => return Err(TaskError::Farm(why)),
                TaskStatus::Failed | TaskStatus::OverLimit | TaskStatus::Skipped => {
                    return Ok(Err(format!(
                        "the shared services started again, and task {}, which had succeeded before, failed: {why}",
                        task.id
                    )));
                }
            }
        }
        Ok(Ok(()))
    }

    fn start_services(self: &Arc<Self>, started: &Arc<StartedServices>) {
        let (runner, of_task) = (Arc::clone(self), Arc::clone(started));
        let task = tokio::spawn(async move {
            let end = runner.run_services(&of_task).await;
            runner.services.ended(&of_task, end);
        });
        started.set_waiting(task.abort_handle());
    }

    /// Executes the services; returns when they have ended.
    async fn run_services(&self, started: &StartedServices) -> EndOfServices {
        let graph = self.job_files.graph();
        let TaskAction { digest, blobs } = services_action(services_platform(graph), started.id);
        let sent = self.patience.patiently(|| self.uploads.send(blobs.clone())).await;
        if let Err(error) = sent {
            return of_error(TaskError::from(&*error));
        }
        let remote = self.remote.with_headers(self.headers_of_services());
        let note = |name: &str, metadata: &ExecuteOperationMetadata| {
            let partial = metadata.partial_execution_metadata.clone().unwrap_or_default();
            started.learn(name, &partial.worker, partial.execution_start_timestamp.is_some());
        };
        let (remote, digest) = (&remote, &digest);
        let executed = self
            .patience
            .patiently(|| async move {
                match remote.execute(digest, false, 0, note).await {
                    // Once it was accepted, another execution would be another start.
                    Err(error) if started.is_accepted() => Ok(Err(error)),
                    other => other.map(Ok),
                }
            })
            .await;
        match executed {
            Ok(Ok(executed)) => end_of(&executed.response, graph.services()),
            Ok(Err(error)) | Err(error) => of_error(TaskError::from(&error)),
        }
    }
}

/// Ends the wait for the execution of the services when it is dropped, so that the farm cancels it.
pub(crate) struct ServicesGuard(pub(crate) Arc<Runner>);

impl ServicesGuard {
    /// Stops the services if all tasks that use them have ended.
    pub(crate) async fn stop_if_done(&self, run: &GraphRun, host: &dyn Host) {
        let Some(started) = self.0.services.to_stop(run) else { return };
        match started.ready_at() {
            Some((executor, execution)) => host.stop_services(&executor, execution).await,
            None => self.cancel().await,
        }
    }

    /// Cancels the execution of the services, if it has not ended.
    pub(crate) async fn cancel(&self) {
        if let Some(operation) = self.0.services.give_up() {
            // If this call fails, the execution ends when the farm notices that no client waits for it.
            let _ = tokio::time::timeout(CANCELLING, self.0.remote.cancel(&operation)).await;
        }
    }
}

impl Drop for ServicesGuard {
    fn drop(&mut self) {
        drop(self.0.services.give_up());
    }
}

/// The end of services whose execution has no response.
fn of_error(error: TaskError) -> EndOfServices {
    match error {
        TaskError::Own(reason) => {
            EndOfServices { end: ServicesEnd::Failed, ..EndOfServices::lost(refused(&reason)) }
        }
        TaskError::Farm(_) | TaskError::Lost(_) => EndOfServices::lost(error.into_reason()),
    }
}

fn refused(reason: &str) -> String {
    format!("the shared services cannot be started: {reason}")
}

fn end_of(response: &ExecuteResponse, services: &[model::ServiceRequest]) -> EndOfServices {
    let status = response.status.clone().unwrap_or_default();
    let logs = answer::logs_of(&response.server_logs, |name| answer::is_of(services, name));
    EndOfServices { end: ServicesEnd::of(status.code), reason: status.message, logs }
}

/// The end of a task whose services do not run any more.
fn without_services(task: &Task, end: &EndOfServices) -> Result<TaskEnd, TaskError> {
    match end.end {
        ServicesEnd::Failed => {
            let report = TaskReport {
                reason: Some(brief(end.reason.clone())),
                ..TaskReport::new(task.id.clone(), TaskStatus::Failed)
            };
            Ok(with_logs(TaskEnd::of(report), end))
        }
        ServicesEnd::Lost => Err(TaskError::Farm(format!(
            "the shared services were lost, and start again with all tasks that used them: {}",
            end.reason
        ))),
        ServicesEnd::Stopped => Err(TaskError::Farm("the shared services were stopped".to_owned())),
    }
}

fn with_logs(mut task: TaskEnd, end: &EndOfServices) -> TaskEnd {
    task.report.service_logs.clone_from(&end.logs);
    task
}

/// Whether a task may have ended like this because its services did: its command had no result.
fn is_due_to_services(ended: &Result<TaskEnd, TaskError>) -> bool {
    match ended {
        Ok(TaskEnd { report, .. }) => match report.status {
            TaskStatus::FarmFailed => true,
            TaskStatus::Failed => report.exit_code.is_none(),
            TaskStatus::Succeeded | TaskStatus::OverLimit | TaskStatus::Skipped => false,
        },
        Err(TaskError::Farm(_)) => true,
        Err(TaskError::Own(_) | TaskError::Lost(_)) => false,
    }
}
