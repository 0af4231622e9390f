//! Runs one task: its action through the farm, or its internal step on the worker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cas::Cas;
use download::Downloader;
use futures::{StreamExt as _, stream};
use invariant::impossible;
use model::{BlobDigest, CommandStep, Step, Task, TaskIndex, TaskReport, TaskStatus};
use prost::Message as _;
use reapi::{
    execution::{ExecuteOperationMetadata, ExecuteResponse, RequestMetadata, ToolDetails, execution_stage},
    metadata::REQUEST_METADATA,
    status::missing_blobs,
};
use remote::{Remote, RemoteError, image_fetch};
use tonic::{
    Code,
    metadata::{MetadataMap, MetadataValue},
};

use crate::{
    action::{ActionRun, TaskAction, action_of, priority},
    answer::{self, ProducedOutput, fail},
    blobs,
    job_files::{Effect, JobFiles},
    output::TaskOutput,
    patience::Patience,
    running::RunningTries,
    series::MeasuredTasks,
    shared_services::SharedServices,
    task_end::TaskEnd,
    task_error::TaskError,
    tree::{Folder, Node},
    unsent::Unsent,
    uploads::Uploads,
    visible::VisibleEffects,
};

/// How often blobs are sent again if the farm's store lost them before their use.
const SENDINGS: u32 = 3;
/// How often the lost inputs of a task are made again during one run of it.
const REMAKES: u32 = 3;
/// Time limit for cancelling operations, and how many are cancelled at once.
const CANCELLING: Duration = Duration::from_secs(5);
const CANCELS: usize = 16;

/// Runs the tasks of one job.
pub(crate) struct Runner {
    pub(crate) job_files: Arc<JobFiles>,
    pub(crate) remote: Remote,
    /// The farm's store, for files that are known by their hash only.
    pub(crate) cas: Cas,
    pub(crate) uploads: Uploads,
    pub(crate) patience: Patience,
    pub(crate) downloader: Downloader,
    /// Sent with every execution.
    pub(crate) headers: MetadataMap,
    /// The run that tasks are executed on behalf of.
    pub(crate) invocation: String,
    /// Folder for the files of internal steps.
    pub(crate) folder: PathBuf,
    /// Maximum bytes that an internal step may write.
    pub(crate) bytes_max: u64,
    pub(crate) running: RunningTries,
    pub(crate) measured_tasks: MeasuredTasks,
    pub(crate) services: SharedServices,
    /// Held during a comparison of two files.
    pub(crate) comparing: tokio::sync::Mutex<()>,
}

impl Runner {
    /// Runs a task that may see the effects in `visible`.
    pub(crate) async fn run(self: &Arc<Self>, index: TaskIndex, visible: &VisibleEffects) -> Option<TaskEnd> {
        let Some(task) = self.job_files.graph().task(index) else {
            impossible!("the job has no task {} to run", index.get());
            return None;
        };
        let mut ended = self.run_once(index, task, visible).await;
        for _ in 0..REMAKES {
            let Err(TaskError::Lost(lost)) = &ended else { break };
            ended = match self.remake(lost).await {
                Ok(()) => self.run_once(index, task, visible).await,
                Err(error) => Err(error),
            };
        }
        let ran = self.running.end(index);
        let mut end = ended.unwrap_or_else(|error| TaskEnd::failed(task, error));
        if let Some(ran) = ran {
            ran.add_to(&mut end.report);
        }
        Some(end)
    }

    async fn run_once(
        self: &Arc<Self>,
        index: TaskIndex,
        task: &Task,
        visible: &VisibleEffects,
    ) -> Result<TaskEnd, TaskError> {
        let end = match &task.step {
            Step::Command(command) => self.command(index, task, command, visible).await?,
            step @ (Step::Fetch { .. }
            | Step::Extract { .. }
            | Step::Archive { .. }
            | Step::Copy { .. }
            | Step::Rename { .. }
            | Step::Truncate { .. }
            | Step::Exists { .. }
            | Step::MakeFolder(_)
            | Step::Remove(_)
            | Step::Compare(_)) => self.step(index, task, step, visible).await?,
        };
        match &end.effect {
            Some(Effect::Adds(added)) => added.iter().try_for_each(|(path, node)| node.check(path))?,
            Some(Effect::Moves { to, node, .. }) => node.check(to)?,
            Some(Effect::Removes(_)) | None => {}
        }
        Ok(end)
    }

    async fn command(
        self: &Arc<Self>,
        index: TaskIndex,
        task: &Task,
        command: &CommandStep,
        visible: &VisibleEffects,
    ) -> Result<TaskEnd, TaskError> {
        if command.shared_services {
            self.beside_services(index, task, command, visible).await
        } else {
            self.run_command(index, task, command, visible, ActionRun::ONCE).await
        }
    }

    /// Runs a command like `run`, or as often as it is to be measured.
    pub(crate) async fn run_command(
        &self,
        index: TaskIndex,
        task: &Task,
        command: &CommandStep,
        visible: &VisibleEffects,
        run: ActionRun,
    ) -> Result<TaskEnd, TaskError> {
        match &command.measure {
            Some(plan) => self.measured(index, task, (command, plan), visible, run).await,
            None => self.run_action(index, task, command, visible, run).await,
        }
    }

    /// Runs a command once, reads what it reports itself, and judges its output.
    pub(crate) async fn run_action(
        &self,
        index: TaskIndex,
        task: &Task,
        command: &CommandStep,
        visible: &VisibleEffects,
        run: ActionRun,
    ) -> Result<TaskEnd, TaskError> {
        let root = self.job_files.input_root(index, command, visible)?;
        let action = action_of(command, &root.message()?.0, run);
        let end = self.result_of(index, task, command, &action, &root).await?;
        self.examine(index, command, visible, end).await
    }

    async fn result_of(
        &self,
        index: TaskIndex,
        task: &Task,
        command: &CommandStep,
        action: &TaskAction,
        root: &Arc<Folder>,
    ) -> Result<TaskEnd, TaskError> {
        self.running.start(index, Some(action.digest));
        if command.cache {
            let known = self.patience.patiently(|| self.remote.cached(&action.digest)).await?;
            if let Some(result) = known.filter(|result| result.exit_code == 0) {
                let known = ExecuteResponse {
                    result: Some(result),
                    cached_result: true,
                    ..ExecuteResponse::default()
                };
                return self.task_end(task, command, known).await;
            }
        }
        let mut all = false;
        for _ in 0..SENDINGS {
            self.send(action, root, all).await?;
            let executed = self.execute(index, task, action).await;
            let response = match executed {
                Ok(response) => response,
                Err(RemoteError::Refused { status, .. }) if is_missing(&status) => ExecuteResponse {
                    status: Some(reapi::status::rpc_status(&status)),
                    ..ExecuteResponse::default()
                },
                Err(error) => return Err(error.into()),
            };
            // Blobs may be evicted between upload and use.
            let status = response.status.clone().unwrap_or_default();
            let missing = missing_blobs(&status);
            all = status.code == i32::from(Code::FailedPrecondition) && !missing.is_empty();
            if !all {
                return self.task_end(task, command, response).await;
            }
            let lost = lost(&missing, action, root)?;
            if !lost.is_empty() {
                return Err(TaskError::Lost(lost));
            }
        }
        Err(TaskError::Farm("the farm's store repeatedly lost uploaded blobs".to_owned()))
    }

    /// Uploads all blobs that an action needs.
    async fn send(&self, action: &TaskAction, root: &Arc<Folder>, all: bool) -> Result<(), TaskError> {
        let unsent = Unsent::of(root, all);
        let mut blobs = action.blobs.clone();
        unsent.add_to(&mut blobs)?;
        let sent = self.patience.patiently(|| self.uploads.send(blobs.clone())).await;
        sent.map_err(|error| TaskError::from(&*error))?;
        unsent.mark_sent();
        Ok(())
    }

    async fn execute(
        &self,
        index: TaskIndex,
        task: &Task,
        action: &TaskAction,
    ) -> Result<ExecuteResponse, RemoteError> {
        let remote = self.remote.with_headers(self.headers_of(task));
        let note = |name: &str, metadata: &ExecuteOperationMetadata| {
            let executes = metadata.stage == i32::from(execution_stage::Value::Executing);
            self.running.learn_operation(index, name, (executes, image_fetch(metadata)));
        };
        let remote = &remote;
        self.running.start(index, Some(action.digest));
        let executed =
            self.patience.patiently(|| remote.execute(&action.digest, false, priority(task.priority), note));
        Ok(executed.await?.response)
    }

    fn headers_of(&self, task: &Task) -> MetadataMap {
        self.headers_with(&task.id.to_string(), "Task")
    }

    /// The headers of the execution that runs the shared services.
    pub(crate) fn headers_of_services(&self) -> MetadataMap {
        self.headers_with("", "Services")
    }

    fn headers_with(&self, target: &str, mnemonic: &str) -> MetadataMap {
        let metadata = RequestMetadata {
            tool_details: Some(ToolDetails {
                tool_name: "forebay".to_owned(),
                tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            tool_invocation_id: self.invocation.clone(),
            target_id: target.to_owned(),
            action_mnemonic: mnemonic.to_owned(),
            ..RequestMetadata::default()
        };
        let mut headers = self.headers.clone();
        headers.insert_bin(REQUEST_METADATA, MetadataValue::from_bytes(&metadata.encode_to_vec()));
        headers
    }

    /// Converts the farm's answer into the task's end.
    async fn task_end(
        &self,
        task: &Task,
        command: &CommandStep,
        response: ExecuteResponse,
    ) -> Result<TaskEnd, TaskError> {
        let service_logs = answer::service_logs(command, &response.server_logs);
        let (status, cached) = (response.status.unwrap_or_default(), response.cached_result);
        let Some(result) = response.result else {
            let report = answer::report(task, &status, None, cached, &[]);
            return Ok(TaskEnd::of(TaskReport { service_logs, ..report }));
        };
        let output = match self.patience.patiently(|| TaskOutput::of(&self.remote, &result)).await {
            Ok(output) => output,
            Err(error) if answer::prints_score(task) => return Err(error.into()),
            // Console output is not an output file: a task does not fail because it is missing.
            Err(_) => TaskOutput::default(),
        };
        let mut report = answer::report(task, &status, Some(&result), cached, output.stdout());
        report.service_logs = service_logs;
        let effect = if report.status == TaskStatus::Succeeded {
            match answer::outputs(command, &result) {
                Ok(made) => Some(Effect::Adds(self.load_outputs(made).await?)),
                Err(reason) => {
                    fail(&mut report, reason);
                    None
                }
            }
        } else {
            None
        };
        Ok(TaskEnd { effect, output, ..TaskEnd::of(report) })
    }

    async fn load_outputs(
        &self,
        made: Vec<(String, ProducedOutput)>,
    ) -> Result<Vec<(String, Node)>, TaskError> {
        let mut added = Vec::with_capacity(made.len());
        for (path, made) in made {
            let node = match made {
                ProducedOutput::Node(node) => node,
                ProducedOutput::Tree(digest) => {
                    let tree = self.patience.patiently(|| blobs::read(&self.remote, &digest)).await?;
                    Node::Folder(answer::folder_of(&tree).map_err(TaskError::Farm)?)
                }
            };
            added.push((path, node));
        }
        Ok(added)
    }

    /// Cancels the operations of these tasks, or all running ones.
    pub(crate) async fn cancel(&self, tasks: Option<&[TaskIndex]>) {
        let cancels = self.running.take_operations(tasks).into_iter().map(|name| {
            let remote = self.remote.clone();
            // If this call fails, the operations end later, when the farm notices that no client waits for them.
            async move { drop(remote.cancel(&name).await) }
        });
        let all = stream::iter(cancels).buffer_unordered(CANCELS).collect::<Vec<()>>();
        // Operations that are not cancelled in time end in the same way.
        let _ = tokio::time::timeout(CANCELLING, all).await;
    }
}

/// The missing blobs that the worker cannot send, because earlier tasks made them and only the farm's store had them.
fn lost(
    missing: &[BlobDigest],
    action: &TaskAction,
    root: &Arc<Folder>,
) -> Result<Vec<BlobDigest>, TaskError> {
    let mut ours = action.blobs.clone();
    Unsent::of(root, true).add_to(&mut ours)?;
    Ok(missing.iter().filter(|digest| !ours.contains_key(digest)).copied().collect())
}

fn is_missing(status: &tonic::Status) -> bool {
    !missing_blobs(&reapi::status::rpc_status(status)).is_empty()
}
