//! One run of a job, and how it ends.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bus::FarmClock;
use cas::Cas;
use download::Reach;
use model::{BuildRecord, JobResult, Reason, WorkerId};
use tokio::time::Instant;

use crate::host::Host;

/// One run of a build that is a job.
pub struct JobRun<'a> {
    pub host: &'a mut dyn Host,
    pub record: &'a BuildRecord,
    /// The worker that runs it.
    pub worker: &'a WorkerId,
    /// The farm's store, for the job and the reports of its tasks.
    pub cas: &'a Cas,
    pub clock: &'a FarmClock,
    /// Folder with the files of the build's context.
    pub workspace: &'a Path,
    pub timeout_at: Instant,
    /// Maximum number of tasks that run at the same time.
    pub tasks_in_flight: usize,
    /// Hosts that the step `fetch` may connect to.
    pub reach: &'a Reach,
    /// Maximum bytes that an internal step may write.
    pub bytes_max: u64,
}

/// How the run of a job ended.
pub enum JobEnding {
    /// All tasks ended, or can never start.
    Tasks {
        /// Folder with the outputs that its globs match.
        outputs: PathBuf,
    },
    /// The build failed before its first task, or its outputs could not be fetched.
    Failed(Reason),
    /// The files of the workspace could not be listed.
    Unscanned(io::Error),
    /// The build exceeded its timeout.
    TimedOut,
    /// The farm's gateways or its store do not answer: the build is requeued.
    GiveBack(Reason),
    /// The host stopped the run.
    Stopped,
}

/// The result of a job.
pub struct JobEnd {
    pub result: JobResult,
    /// From its first task's start to its end.
    pub wall: Duration,
    /// Start of the first task, in microseconds since 1970.
    pub started_at_us: Option<u64>,
    /// Processor time of the tasks that ran.
    pub cpu: Duration,
    /// The largest peak memory of a task.
    pub peak_memory_bytes: u64,
}

impl JobRun<'_> {
    /// Runs `work` unless the run is stopped first.
    pub(crate) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Result<T, JobEnding> {
        tokio::select! {
            done = work => Ok(done),
            () = self.host.stop_wanted() => Err(JobEnding::Stopped),
            () = tokio::time::sleep_until(self.timeout_at) => Err(JobEnding::TimedOut),
        }
    }
}
