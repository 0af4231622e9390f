//! Runs the job of a build in a prepared workspace.

use std::{io, path::PathBuf, time::SystemTime};

use bus::ChunkFault;
use bytes::Bytes;
use futures::future::BoxFuture;
use jobs::{Host, JobEnding, JobRun};
use model::{BuildJob, BuildRecord, ExecutionKey, ExecutorId, OutputStream, StopServices, ToolEvent};

use crate::{
    build_run::Run,
    command::record_start,
    console::Console,
    ending::Ending,
    folder::RunFolder,
    prepare,
    shared::Shared,
    stop::{Cause, Stop},
};

/// The worker as one run of a job uses it.
struct JobHost<'a> {
    shared: &'a Shared,
    console: &'a mut Console,
    folder: &'a RunFolder,
    record: &'a BuildRecord,
    stop: &'a Stop,
}

impl Host for JobHost<'_> {
    fn write(&mut self, stream: OutputStream, data: Bytes) -> BoxFuture<'_, Result<(), ChunkFault>> {
        Box::pin(self.console.write(stream, data))
    }

    fn say<'a>(&'a mut self, line: &'a str) -> BoxFuture<'a, Result<(), ChunkFault>> {
        Box::pin(self.console.say(line))
    }

    fn tool<'a>(&'a mut self, event: &'a ToolEvent) -> BoxFuture<'a, Result<(), ChunkFault>> {
        Box::pin(self.console.tool(event))
    }

    fn find_gateway(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.shared.gateways.find(&self.shared.context.bus))
    }

    fn stop_wanted(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.stop.wanted())
    }

    fn is_ended_elsewhere(&self) -> bool {
        self.stop.cause() == Some(Cause::EndedElsewhere)
    }

    fn own_folder(&self) -> io::Result<PathBuf> {
        self.folder.own().map(ToOwned::to_owned)
    }

    fn stop_services<'a>(&'a self, executor: &'a ExecutorId, execution: ExecutionKey) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.shared.context.bus.send_or_log(executor, &StopServices { execution }).await;
        })
    }

    fn tasks_start(&self, at: SystemTime) {
        record_start(self.record, at);
    }
}

impl Run<'_> {
    /// Runs the graph of `job`.
    pub(crate) async fn run_job(&mut self, job: &BuildJob) -> Result<Ending, ChunkFault> {
        let (shared, record, stop) = (self.shared, self.record, self.stop);
        let folder = &self.workspace.folder;
        let settings = &shared.settings;
        let store = shared.store_of(&record.build.group);
        let run = JobRun {
            host: &mut JobHost { shared, console: self.console, folder, record, stop },
            record,
            worker: &shared.id,
            cas: &store,
            clock: shared.context.bus.clock(),
            workspace: &folder.build,
            timeout_at: self.timeout_at,
            tasks_in_flight: settings.job_tasks_in_flight,
            reach: &shared.sources.reach,
            bytes_max: settings.action_output_bytes_max,
        };
        let (ending, end) = run.run(job).await?;
        self.job = end;
        Ok(match ending {
            JobEnding::Tasks { outputs } => Ending::Tasks { outputs },
            JobEnding::Failed(reason) => Ending::Failed(reason, None),
            JobEnding::Unscanned(error) => {
                let reason = prepare::broken("scanning the workspace", &error);
                self.console.say(&reason.message).await?;
                Ending::Failed(reason, None)
            }
            JobEnding::TimedOut => Ending::TimedOut(None),
            JobEnding::GiveBack(reason) => Ending::GiveBack(reason),
            JobEnding::Stopped => self.stopped(None),
        })
    }
}
