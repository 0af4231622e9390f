//! Runs the tasks of a job, from the first to the last.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bus::ChunkFault;
use invariant::impossible;
use model::{
    BlobDigest, BuildJob, JobResult, Reason, ReasonCode, TaskIndex, TaskReport, TaskStatus, output_globs,
};
use policy::graph::{AfterTask, Consequences, GraphRun, RunTimes};
use tokio::{
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tracing::warn;

use crate::{
    beside_services::ServicesGuard,
    output::TaskOutput,
    outputs,
    patience::Answering,
    run::{JobEnd, JobEnding, JobRun},
    runner::Runner,
    task_end::TaskEnd,
    task_reports::{self, UnpublishedReports},
    visible::{IndirectDependencies, VisibleEffects},
};

/// Why no more tasks are run.
enum LoopEnd {
    Done,
    /// The run was stopped.
    Stopped,
    TimedOut,
    /// The farm does not answer the tasks' calls.
    Unreachable(String),
}

type JoinedTask = (TaskIndex, VisibleEffects, Option<TaskEnd>);

struct Drive<'a> {
    run: JobRun<'a>,
    runner: Arc<Runner>,
    services: ServicesGuard,
    graph: GraphRun,
    indirect: IndirectDependencies,
    tasks: JoinSet<JoinedTask>,
    /// The task index of each running future, for those that are aborted.
    indices: HashMap<Id, TaskIndex>,
    handles: HashMap<TaskIndex, AbortHandle>,
    unpublished: UnpublishedReports,
    /// When the last event was published, and the number of changes in what runs that it covers.
    published: (Instant, u64),
    times: RunTimes,
    began: Instant,
    began_at: SystemTime,
    cpu: Duration,
    peak_memory_bytes: u64,
}

impl JobRun<'_> {
    /// Runs the graph of the job in the prepared workspace. Returns also the job's result, if all
    /// its tasks ended or the build exceeded its timeout while they ran.
    pub async fn run(mut self, job: &BuildJob) -> Result<(JobEnding, Option<Box<JobEnd>>), ChunkFault> {
        let runner = match self.begin(job).await? {
            Ok(runner) => runner,
            Err(ending) => return Ok((ending, None)),
        };
        let began_at = self.clock.system_time();
        self.host.tasks_start(began_at);
        let graph = Arc::clone(runner.job_files.graph());
        let indirect = IndirectDependencies::new(&graph, runner.job_files.watched());
        let runner = Arc::new(runner);
        let mut drive = Drive {
            run: self,
            services: ServicesGuard(Arc::clone(&runner)),
            runner,
            graph: GraphRun::new(graph),
            indirect,
            tasks: JoinSet::new(),
            indices: HashMap::new(),
            handles: HashMap::new(),
            unpublished: UnpublishedReports::default(),
            published: (Instant::now(), 0),
            times: RunTimes::default(),
            began: Instant::now(),
            began_at,
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
        };
        let over = drive.run_tasks().await;
        drive.end(over).await
    }
}

impl Drive<'_> {
    async fn run_tasks(&mut self) -> Result<LoopEnd, ChunkFault> {
        let most = self.run.tasks_in_flight;
        let mut tick = tokio::time::interval(task_reports::EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answering = self.runner.patience.listen();
        loop {
            while self.tasks.len() < most
                && let Some(index) = self.graph.start_next()
            {
                let visible = self.indirect.begin(self.graph.graph(), index);
                self.spawn(index, visible, Duration::ZERO);
            }
            self.services.stop_if_done(&self.graph, self.run.host).await;
            if self.graph.is_over() {
                return Ok(LoopEnd::Done);
            }
            tokio::select! {
                // Checked before the tasks, which fail when the farm is unreachable.
                biased;
                Ok(()) = answering.changed() => {
                    let now = answering.borrow_and_update().clone();
                    if let Answering::NotAtAll(reason) = now {
                        return Ok(LoopEnd::Unreachable(reason));
                    }
                    self.say_answering(&now).await?;
                }
                Some(ended) = self.tasks.join_next_with_id() => self.joined(ended).await?,
                () = self.run.host.stop_wanted() => return Ok(LoopEnd::Stopped),
                () = tokio::time::sleep_until(self.run.timeout_at) => return Ok(LoopEnd::TimedOut),
                _ = tick.tick() => if self.is_publishing_due() { self.publish_reports().await? },
            }
        }
    }

    async fn say_answering(&mut self, now: &Answering) -> Result<(), ChunkFault> {
        let line = match now {
            Answering::Well => "calls to the farm's gateway succeed again",
            Answering::Late(line) | Answering::NotAtAll(line) => line,
        };
        self.run.host.say(line).await
    }

    fn spawn(&mut self, index: TaskIndex, visible: VisibleEffects, wait: Duration) {
        let runner = Arc::clone(&self.runner);
        let handle = self.tasks.spawn(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let end = runner.run(index, &visible).await;
            (index, visible, end)
        });
        self.indices.insert(handle.id(), index);
        self.handles.insert(index, handle);
    }

    async fn joined(&mut self, ended: Result<(Id, JoinedTask), JoinError>) -> Result<(), ChunkFault> {
        let (index, visible, end) = match ended {
            Ok((id, joined)) => {
                self.indices.remove(&id);
                joined
            }
            Err(error) => {
                let Some(index) = self.indices.remove(&error.id()) else {
                    impossible!("a future ended that runs no task");
                    return Ok(());
                };
                if error.is_cancelled() {
                    return Ok(());
                }
                warn!(error = telemetry::error_chain(&error), "a task of a job panicked or was aborted");
                let Some(task) = self.graph.graph().task(index) else {
                    impossible!("task {} ended, which the job does not have", index.get());
                    return Ok(());
                };
                let mut end = TaskEnd::dropped(task);
                if let Some(ran) = self.runner.running.end(index) {
                    ran.add_to(&mut end.report);
                }
                (index, VisibleEffects::default(), Some(end))
            }
        };
        self.handles.remove(&index);
        let Some(end) = end else { return Ok(()) };
        self.handle_task_end(index, visible, end).await
    }

    async fn handle_task_end(
        &mut self,
        index: TaskIndex,
        visible: VisibleEffects,
        end: TaskEnd,
    ) -> Result<(), ChunkFault> {
        let TaskEnd { report, effect, output, reported_us: _ } = end;
        // Recorded before a task that depends on it can start.
        if let (TaskStatus::Succeeded, Some(effect)) = (report.status, effect) {
            self.runner.job_files.record_effect(index, effect);
        }
        match self.graph.ended(index, report.clone()) {
            AfterTask::Nothing => Ok(()),
            AfterTask::Again { wait, tries } => {
                let reason = report.reason.as_deref().unwrap_or("unknown reason");
                let line = format!("task {} is retried (try {tries}): {reason}", report.id);
                self.spawn(index, visible, wait);
                self.run.host.say(&line).await
            }
            AfterTask::Ended(consequences) => {
                self.count(index, &report);
                self.written(report, output).await?;
                self.follow(consequences).await
            }
        }
    }

    fn count(&mut self, index: TaskIndex, report: &TaskReport) {
        if let Some(task) = self.graph.graph().task(index) {
            self.times.add(task, report);
        }
        if !report.cached {
            let all_runs = report.measurement.as_ref().map(|all| Duration::from_micros(all.total_cpu_us()));
            let one_run = || Duration::from_millis(report.cpu_ms.unwrap_or_default());
            self.cpu += all_runs.unwrap_or_else(one_run);
            self.peak_memory_bytes = self.peak_memory_bytes.max(report.memory_bytes.unwrap_or_default());
        }
    }

    async fn written(&mut self, report: TaskReport, output: TaskOutput) -> Result<(), ChunkFault> {
        output.write(&report, self.run.host).await?;
        self.unpublished.push(&report);
        if self.unpublished.is_full() { self.publish_reports().await } else { Ok(()) }
    }

    /// Handles the consequences of a task's end for other tasks.
    async fn follow(&mut self, consequences: Consequences) -> Result<(), ChunkFault> {
        for index in &consequences.cancelled {
            if let Some(handle) = self.handles.remove(index) {
                handle.abort();
            }
        }
        if !consequences.cancelled.is_empty() {
            self.runner.cancel(Some(&consequences.cancelled)).await;
        }
        let Consequences { skipped, cancelled } = consequences;
        for index in &cancelled {
            if let (Some(ran), Some(report)) =
                (self.runner.running.end(*index), self.graph.report_mut(*index))
            {
                ran.add_to(report);
            }
        }
        for index in skipped.into_iter().chain(cancelled) {
            if let Some(report) = self.graph.report(index) {
                self.unpublished.push(report);
            } else {
                impossible!("skipped task {} has no report", index.get());
            }
        }
        if self.unpublished.is_full() { self.publish_reports().await } else { Ok(()) }
    }

    fn is_publishing_due(&self) -> bool {
        let (at, changes) = self.published;
        let is_due = at.elapsed() >= task_reports::RUNNING_EVERY && self.runner.running.changes() != changes;
        is_due || !self.unpublished.is_empty() || self.runner.measured_tasks.has_preliminary()
    }

    async fn publish_reports(&mut self) -> Result<(), ChunkFault> {
        self.published = (Instant::now(), self.runner.running.changes());
        let running = self.runner.running.executing(&self.graph, self.times);
        let has_ended = |task: TaskIndex| self.graph.report(task).is_some();
        let preliminary = self.runner.measured_tasks.take_preliminary(has_ended);
        for event in self.unpublished.take(self.run.record.attempt, &self.graph, running, preliminary) {
            self.run.host.tool(&event).await?;
        }
        Ok(())
    }

    /// Publishes the reports that are left when no task runs any more.
    async fn publish_rest(&mut self) -> Result<(), ChunkFault> {
        if self.unpublished.is_empty() { Ok(()) } else { self.publish_reports().await }
    }

    async fn end(
        mut self,
        over: Result<LoopEnd, ChunkFault>,
    ) -> Result<(JobEnding, Option<Box<JobEnd>>), ChunkFault> {
        match over {
            Ok(LoopEnd::Done) => {
                self.publish_rest().await?;
                // If the run is over meanwhile, the reports have no logs.
                let logs = self.run.unless_over(self.runner.services.logs()).await.unwrap_or_default();
                add_service_logs(&mut self.graph, &logs);
                self.services.cancel().await;
                let ending = self.fetch_outputs().await?;
                Ok((ending, Some(self.result().await)))
            }
            Ok(LoopEnd::Unreachable(reason)) => {
                self.tasks.shutdown().await;
                let worker = self.run.worker;
                let message = format!("worker {worker} could not reach the farm's gateway: {reason}");
                self.run.host.say(&message).await?;
                Ok((JobEnding::GiveBack(Reason { code: ReasonCode::GatewayUnreachable, message }), None))
            }
            Ok(LoopEnd::TimedOut) => {
                let consequences = self.graph.give_up("the build exceeded its timeout");
                self.follow(consequences).await?;
                self.services.cancel().await;
                self.publish_rest().await?;
                Ok((JobEnding::TimedOut, Some(self.result().await)))
            }
            Ok(LoopEnd::Stopped) => {
                self.tasks.shutdown().await;
                self.services.cancel().await;
                // The next attempt of the build joins the running actions; after any other end they are cancelled.
                if self.run.host.is_ended_elsewhere() {
                    self.runner.cancel(None).await;
                }
                Ok((JobEnding::Stopped, None))
            }
            Err(fault) => {
                self.tasks.shutdown().await;
                self.services.cancel().await;
                self.runner.cancel(None).await;
                Err(fault)
            }
        }
    }

    /// Fetches the files that match the build's output globs.
    async fn fetch_outputs(&mut self) -> Result<JobEnding, ChunkFault> {
        let folder = self.runner.folder.join("outputs");
        let patterns = &self.run.record.build.outputs;
        if patterns.is_empty() {
            return Ok(JobEnding::Tasks { outputs: folder });
        }
        let globs = match output_globs(patterns) {
            Ok(globs) => globs,
            Err(reason) => return Ok(JobEnding::Failed(reason)),
        };
        let tree = self.runner.job_files.outcome();
        let fetched = outputs::fetch_all(&self.runner, &tree, &globs, &folder);
        match self.run.unless_over(fetched).await {
            Ok(Ok(())) => Ok(JobEnding::Tasks { outputs: folder }),
            Ok(Err(message)) => {
                self.run.host.say(&message).await?;
                Ok(JobEnding::Failed(Reason { code: ReasonCode::OutputNotKept, message }))
            }
            Err(ending) => Ok(ending),
        }
    }

    async fn result(self) -> Box<JobEnd> {
        let mut result = self.graph.result();
        match task_reports::keep_reports(&self.graph, self.run.cas).await {
            Ok(report) => result.report = Some(report),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot store the reports of a job");
            }
        }
        let since = self.began_at.duration_since(UNIX_EPOCH).ok();
        Box::new(JobEnd {
            result,
            wall: self.began.elapsed(),
            started_at_us: since.and_then(|since| u64::try_from(since.as_micros()).ok()),
            cpu: self.cpu,
            peak_memory_bytes: self.peak_memory_bytes,
        })
    }
}

/// Adds what the shared services wrote to the reports of the tasks that used them.
fn add_service_logs(graph: &mut GraphRun, logs: &BTreeMap<String, BlobDigest>) {
    let users: Vec<TaskIndex> = graph.graph().users_of_services().map(|(at, _)| at).collect();
    for user in users.into_iter().filter(|_| !logs.is_empty()) {
        if let Some(report) = graph.report_mut(user).filter(|report| report.status != TaskStatus::Skipped) {
            report.service_logs.clone_from(logs);
        }
    }
}

/// A text that says what failed; `None` if no task did. Without a failure, tasks are skipped only because
/// they would have followed a failure.
pub fn shortcoming(result: &JobResult) -> Option<String> {
    if result.failed == 0 {
        return None;
    }
    let failed = format!("{} of {} tasks failed", result.failed, result.tasks);
    let skipped = (result.skipped > 0).then(|| format!(", {} skipped", result.skipped));
    let first = result.failures.first().map(|first| {
        let reason = first.reason.as_deref().unwrap_or("unknown reason");
        format!("; {}: {reason}", first.id)
    });
    Some([Some(failed), skipped, first].into_iter().flatten().collect())
}
