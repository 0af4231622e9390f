//! The steps before the first task: read the job, connect to the farm, and scan the workspace.

use std::{fs, io, sync::Arc, time::Duration};

use bus::ChunkFault;
use cas::CasError;
use download::Downloader;
use model::{BuildJob, Graph, Job, JobLimits, Reason, ReasonCode, SendingBuild};
use reapi::metadata::GROUP;
use remote::Remote;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use trace::BuildTrace;
use tracing::warn;

use crate::{
    cancel::Cancel,
    job_files::JobFiles,
    patience::Patience,
    run::{JobEnding, JobRun},
    runner::Runner,
    running::RunningTries,
    scan::{hash_all, scan},
    series::MeasuredTasks,
    shared_services::SharedServices,
    store_wait::{StoreWait, passing_code},
    tree::FUNCTION,
    uploads::Uploads,
};

/// The instance name whose cache jobs use.
const INSTANCE: &str = "";
/// Time between two requests for the gateway's address.
const ASKING: Duration = Duration::from_secs(1);
/// How long a run waits for a gateway before the build is requeued.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(60);
/// Name of the folder with the job's files, inside the worker's own folder for the run.
const FOLDER: &str = "job";

impl JobRun<'_> {
    /// Prepares the tasks of the job; returns how the run ends if that fails.
    pub(crate) async fn begin(&mut self, job: &BuildJob) -> Result<Result<Runner, JobEnding>, ChunkFault> {
        let graph = match self.read_job(job).await? {
            Ok(graph) => graph,
            Err(ending) => return Ok(Err(ending)),
        };
        let remote = match self.connect().await? {
            Ok(remote) => remote,
            Err(ending) => return Ok(Err(ending)),
        };
        let runner = async {
            let all = self.host.own_folder()?.join(FOLDER);
            // Files of an earlier run in a reused workspace.
            match fs::remove_dir_all(&all) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            // A unique name, because an earlier run may still be writing to its folder.
            let folder = all.join(format!("{}-{}", self.record.build.id, self.record.attempt));
            fs::create_dir_all(&folder)?;
            let services = SharedServices::new(&graph);
            let job_files = self.scan_workspace(graph).await?;
            Ok(Runner {
                services,
                job_files: Arc::new(job_files),
                uploads: Uploads::start(remote.clone()),
                patience: Patience::new(),
                remote,
                cas: self.cas.clone(),
                downloader: Downloader::new(self.reach.clone()).map_err(io::Error::other)?,
                headers: self.headers(),
                invocation: format!("{}/{}", self.record.build.id, self.record.attempt),
                folder,
                bytes_max: self.bytes_max,
                running: RunningTries::new(self.clock.clone()),
                measured_tasks: MeasuredTasks::default(),
                comparing: tokio::sync::Mutex::new(()),
            })
        };
        match self.unless_over(runner).await {
            Ok(Ok(runner)) => Ok(Ok(runner)),
            Ok(Err(error)) => Ok(Err(JobEnding::Unscanned(error))),
            Err(ending) => Ok(Err(ending)),
        }
    }

    /// Reads the job, waiting for the store if necessary.
    async fn read_job(&mut self, job: &BuildJob) -> Result<Result<Arc<Graph>, JobEnding>, ChunkFault> {
        let mut wait = StoreWait::default();
        loop {
            let reason = match self.unless_over(self.read_job_once(job)).await {
                Ok(Ok(graph)) => return Ok(Ok(graph)),
                Ok(Err(reason)) => reason,
                Err(ending) => return Ok(Err(ending)),
            };
            if reason.code == ReasonCode::ContextUnavailable {
                self.host.say(&reason.message).await?;
                return Ok(Err(JobEnding::Failed(reason)));
            }
            if wait.is_over() {
                self.host.say(&reason.message).await?;
                return Ok(Err(JobEnding::GiveBack(reason)));
            }
            if let Some(line) = wait.begin(&reason) {
                self.host.say(&line).await?;
            }
            if let Err(ending) = self.unless_over(wait.pause()).await {
                return Ok(Err(ending));
            }
        }
    }

    async fn read_job_once(&self, job: &BuildJob) -> Result<Arc<Graph>, Reason> {
        let message = |why: String| format!("cannot read the build's job {}: {why}", job.digest);
        let unreadable = |why: String| Reason { code: ReasonCode::ContextUnavailable, message: message(why) };
        let failed = |error: CasError| Reason {
            code: passing_code(&error).unwrap_or(ReasonCode::ContextUnavailable),
            message: message(telemetry::error_chain(&error)),
        };
        let blob = self.cas.resolve(&job.digest, job.size_bytes).await.map_err(failed)?;
        let json = self.cas.read_whole(&blob, u64::MAX).await.map_err(failed)?;
        let job: Job = serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?;
        // It was checked when the build was accepted.
        let graph = Graph::new(&job, &JobLimits::NONE).map_err(|invalid| unreadable(invalid.to_string()))?;
        Ok(Arc::new(graph))
    }

    /// Connects to a live gateway, waiting for one if necessary.
    async fn connect(&mut self) -> Result<Result<Remote, JobEnding>, ChunkFault> {
        let until = Instant::now() + GATEWAY_PATIENCE;
        let mut announced = false;
        loop {
            let found = match self.unless_over(self.host.find_gateway()).await {
                Ok(found) => found,
                Err(ending) => return Ok(Err(ending)),
            };
            if let Some(url) = found {
                return Ok(Remote::lazily(&url, INSTANCE, FUNCTION)
                    .map(|remote| match self.cas.zone() {
                        Some(zone) => remote.in_zone(zone),
                        None => remote,
                    })
                    .map_err(|error| failed(ReasonCode::WorkerFault, telemetry::error_chain(&error))));
            }
            let seconds = GATEWAY_PATIENCE.as_secs();
            if Instant::now() >= until {
                let message =
                    format!("no gateway of the farm answered worker {} for {seconds} s", self.worker);
                self.host.say(&message).await?;
                return Ok(Err(JobEnding::GiveBack(Reason {
                    code: ReasonCode::GatewayUnreachable,
                    message,
                })));
            }
            if !std::mem::replace(&mut announced, true) {
                let line = format!("no gateway of the farm answers: waiting at most {seconds} s for one");
                self.host.say(&line).await?;
            }
            if let Err(ending) = self.unless_over(tokio::time::sleep(ASKING)).await {
                return Ok(Err(ending));
            }
        }
    }

    /// Scans the files of the workspace, and hashes those that tasks read.
    async fn scan_workspace(&self, graph: Arc<Graph>) -> io::Result<JobFiles> {
        let cancel = Cancel::default();
        let (flag, root) = (cancel.flag(), self.workspace.to_owned());
        let work = move || {
            let job_files = JobFiles::new(graph, scan(&root, &flag)?);
            hash_all(&job_files.wanted_files(), &flag);
            Ok(job_files)
        };
        let job_files = tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?;
        drop(cancel);
        job_files
    }

    /// Headers of every call: the build's group and trace, and the build that executor usage is counted for. If the
    /// farm's instance names do not grant the group, the group of the instance name applies.
    fn headers(&self) -> MetadataMap {
        let build = &self.record.build;
        let sender = SendingBuild { worker: self.worker.clone(), id: build.id, attempt: self.record.attempt };
        let trace = BuildTrace::of(build).command(self.record.attempt);
        let mut headers = MetadataMap::new();
        let mut set = |name: &'static str, value: String| match value.parse::<MetadataValue<Ascii>>() {
            Ok(value) => drop(headers.insert(name, value)),
            Err(error) => warn!(name, %error, "a header is left out of the calls of a job"),
        };
        set(GROUP, build.group.to_string());
        set("x-forebay-build", sender.to_string());
        if let Some(trace) = trace {
            set("traceparent", trace.to_string());
        }
        headers
    }
}

fn failed(code: ReasonCode, message: String) -> JobEnding {
    JobEnding::Failed(Reason { code, message })
}
