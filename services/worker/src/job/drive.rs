//! Runs the tasks of a job, from the first to the last.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bus::ChunkFault;
use model::{BuildJob, JobResult, Reason, ReasonCode, TaskIndex, TaskReport, TaskStatus};
use policy::graph::{AfterTask, Consequences, GraphRun};
use tokio::{
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tracing::warn;

use super::{
    output::TaskOutput,
    outputs,
    patience::Answering,
    runner::{Runner, TaskEnd},
    seen::{Behind, Seen},
    told::{self, Untold},
};
use crate::{
    command::tell_start,
    run::{Ending, Run},
    stop::Cause,
};

/// The result of a job.
pub(crate) struct JobEnd {
    pub(crate) result: JobResult,
    /// From its first task's start to its end.
    pub(crate) wall: Duration,
    /// Start of the first task, in microseconds since 1970.
    pub(crate) started_at_us: Option<u64>,
    /// Processor time of the tasks that ran.
    pub(crate) cpu: Duration,
    /// The largest peak memory of a task.
    pub(crate) peak_memory_bytes: u64,
}

/// Why no more tasks are run.
enum Over {
    Done,
    /// The run was stopped.
    Stopped,
    TimedOut,
    /// The farm does not answer the tasks' calls.
    Unreachable(String),
}

type Went = (TaskIndex, Seen, Option<TaskEnd>);

struct Drive<'r, 'a> {
    run: &'r mut Run<'a>,
    runner: Arc<Runner>,
    graph: GraphRun,
    behind: Behind,
    tasks: JoinSet<Went>,
    /// The task index of each running future, for those that are aborted.
    indices: HashMap<Id, TaskIndex>,
    handles: HashMap<TaskIndex, AbortHandle>,
    untold: Untold,
    began: Instant,
    began_at: SystemTime,
    cpu: Duration,
    peak_memory_bytes: u64,
}

impl Run<'_> {
    /// Runs the graph of `job` in the prepared workspace.
    pub(crate) async fn run_job(&mut self, job: &BuildJob) -> Result<Ending, ChunkFault> {
        let runner = match self.begin_job(job).await? {
            Ok(runner) => runner,
            Err(ending) => return Ok(ending),
        };
        let began_at = self.shared.context.bus.clock().system_time();
        tell_start(self.record, began_at);
        let graph = Arc::clone(runner.world.graph());
        let behind = Behind::new(&graph, runner.world.watched());
        let mut drive = Drive {
            run: self,
            runner: Arc::new(runner),
            graph: GraphRun::new(graph),
            behind,
            tasks: JoinSet::new(),
            indices: HashMap::new(),
            handles: HashMap::new(),
            untold: Untold::default(),
            began: Instant::now(),
            began_at,
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
        };
        let over = drive.all().await;
        drive.end(over).await
    }
}

impl Drive<'_, '_> {
    async fn all(&mut self) -> Result<Over, ChunkFault> {
        let most = self.run.shared.context.settings.job_tasks_in_flight;
        let mut tick = tokio::time::interval(told::EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answering = self.runner.patience.listen();
        loop {
            while self.tasks.len() < most
                && let Some(index) = self.graph.start_next()
            {
                let seen = self.behind.begin(self.graph.graph(), index);
                self.spawn(index, seen, Duration::ZERO);
            }
            if self.graph.is_over() {
                return Ok(Over::Done);
            }
            tokio::select! {
                // Checked before the tasks, which fail when the farm is unreachable.
                biased;
                Ok(()) = answering.changed() => {
                    let now = answering.borrow_and_update().clone();
                    if let Answering::NotAtAll(reason) = now {
                        return Ok(Over::Unreachable(reason));
                    }
                    self.say_answering(&now).await?;
                }
                Some(ended) = self.tasks.join_next_with_id() => self.joined(ended).await?,
                () = self.run.stop.wanted() => return Ok(Over::Stopped),
                () = tokio::time::sleep_until(self.run.timeout_at) => return Ok(Over::TimedOut),
                _ = tick.tick(), if !self.untold.is_empty() => self.tell().await?,
            }
        }
    }

    async fn say_answering(&mut self, now: &Answering) -> Result<(), ChunkFault> {
        let line = match now {
            Answering::Well => "the farm's gateway answers again".to_owned(),
            Answering::Late(reason) | Answering::NotAtAll(reason) => {
                format!("the farm's gateway does not answer, retrying: {reason}")
            }
        };
        self.run.console.say(&line).await
    }

    fn spawn(&mut self, index: TaskIndex, seen: Seen, wait: Duration) {
        let runner = Arc::clone(&self.runner);
        let handle = self.tasks.spawn(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let end = runner.run(index, &seen).await;
            (index, seen, end)
        });
        self.indices.insert(handle.id(), index);
        self.handles.insert(index, handle);
    }

    async fn joined(&mut self, ended: Result<(Id, Went), JoinError>) -> Result<(), ChunkFault> {
        let (index, seen, end) = match ended {
            Ok((id, went)) => {
                self.indices.remove(&id);
                went
            }
            Err(error) => {
                let Some(index) = self.indices.remove(&error.id()) else { return Ok(()) };
                if error.is_cancelled() {
                    return Ok(());
                }
                warn!(error = telemetry::error_chain(&error), "a task of a job panicked or was aborted");
                let Some(task) = self.graph.graph().task(index) else { return Ok(()) };
                (index, Seen::default(), Some(TaskEnd::dropped(task)))
            }
        };
        self.handles.remove(&index);
        let Some(end) = end else { return Ok(()) };
        self.take(index, seen, end).await
    }

    async fn take(&mut self, index: TaskIndex, seen: Seen, end: TaskEnd) -> Result<(), ChunkFault> {
        let TaskEnd { report, effect, output } = end;
        // Recorded before a task that depends on it can start.
        if let (TaskStatus::Succeeded, Some(effect)) = (report.status, effect) {
            self.runner.world.done(index, effect);
        }
        match self.graph.ended(index, report.clone()) {
            AfterTask::Nothing => Ok(()),
            AfterTask::Again { wait, tries } => {
                let reason = report.reason.as_deref().unwrap_or("unknown reason");
                let line = format!("task {} is retried (try {tries}): {reason}", report.id);
                self.spawn(index, seen, wait);
                self.run.console.say(&line).await
            }
            AfterTask::Ended(consequences) => {
                self.count(&report);
                self.written(report, output).await?;
                self.follow(consequences).await
            }
        }
    }

    fn count(&mut self, report: &TaskReport) {
        if !report.cached {
            self.cpu += Duration::from_millis(report.cpu_ms.unwrap_or_default());
            self.peak_memory_bytes = self.peak_memory_bytes.max(report.memory_bytes.unwrap_or_default());
        }
    }

    async fn written(&mut self, report: TaskReport, output: TaskOutput) -> Result<(), ChunkFault> {
        output.write(&report, self.run.console).await?;
        self.untold.push(report);
        if self.untold.is_full() { self.tell().await } else { Ok(()) }
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
        for index in skipped.into_iter().chain(cancelled) {
            if let Some(report) = self.graph.report(index) {
                self.untold.push(report.clone());
            }
        }
        if self.untold.is_full() { self.tell().await } else { Ok(()) }
    }

    async fn tell(&mut self) -> Result<(), ChunkFault> {
        for event in self.untold.take(self.run.record.attempt, &self.graph) {
            self.run.console.tool(&event).await?;
        }
        Ok(())
    }

    async fn end(mut self, over: Result<Over, ChunkFault>) -> Result<Ending, ChunkFault> {
        match over {
            Ok(Over::Done) => {
                self.tell().await?;
                let ending = self.bring().await?;
                self.sum_up().await;
                Ok(ending)
            }
            Ok(Over::Unreachable(reason)) => {
                self.tasks.shutdown().await;
                let worker = &self.run.shared.id;
                let message = format!("worker {worker} could not reach the farm's gateway: {reason}");
                self.run.console.say(&message).await?;
                Ok(Ending::GiveBack(Reason { code: ReasonCode::GatewayUnreachable, message }))
            }
            Ok(Over::TimedOut) => {
                let consequences = self.graph.give_up("the build exceeded its timeout");
                self.follow(consequences).await?;
                self.tell().await?;
                self.sum_up().await;
                Ok(Ending::TimedOut(None))
            }
            Ok(Over::Stopped) => {
                self.tasks.shutdown().await;
                // The next attempt of the build joins the running actions; after any other end they are cancelled.
                if self.run.stop.cause() == Some(Cause::EndedElsewhere) {
                    self.runner.cancel(None).await;
                }
                Ok(self.run.stopped(None))
            }
            Err(fault) => {
                self.tasks.shutdown().await;
                self.runner.cancel(None).await;
                Err(fault)
            }
        }
    }

    /// Fetches the files that match the build's output globs.
    async fn bring(&mut self) -> Result<Ending, ChunkFault> {
        let folder = self.runner.folder.join("outputs");
        let patterns = &self.run.record.build.outputs;
        if patterns.is_empty() {
            return Ok(Ending::Tasks { outputs: folder });
        }
        let globs = match crate::outputs::compile(patterns) {
            Ok(globs) => globs,
            Err(reason) => return Ok(Ending::Failed(reason, None)),
        };
        let tree = self.runner.world.outcome();
        let brought = outputs::bring(&self.runner, &tree, &globs, &folder);
        match self.run.unless_over(brought).await {
            Ok(Ok(())) => Ok(Ending::Tasks { outputs: folder }),
            Ok(Err(message)) => {
                self.run.console.say(&message).await?;
                Ok(Ending::Failed(Reason { code: ReasonCode::OutputNotKept, message }, None))
            }
            Err(ending) => Ok(ending),
        }
    }

    async fn sum_up(&mut self) {
        let mut result = self.graph.result();
        match told::keep_reports(&self.graph, &self.run.shared.store).await {
            Ok(report) => result.report = Some(report),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot store the reports of a job");
            }
        }
        let since = self.began_at.duration_since(UNIX_EPOCH).ok();
        self.run.job = Some(Box::new(JobEnd {
            result,
            wall: self.began.elapsed(),
            started_at_us: since.and_then(|since| u64::try_from(since.as_micros()).ok()),
            cpu: self.cpu,
            peak_memory_bytes: self.peak_memory_bytes,
        }));
    }
}

/// A text that lists the tasks that did not succeed; `None` if all did.
pub(crate) fn shortcoming(result: &JobResult) -> Option<String> {
    if result.failed == 0 && result.skipped == 0 {
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
